"""The types that a JSON schema allows, each with all its limits: `$ref`, `allOf`, `anyOf`, `oneOf`,
`enum` and `const` are resolved, so that calls without JSON can be written from the result."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from decimal import Decimal
from functools import reduce
from typing import Any, NamedTuple
from urllib.parse import unquote

from inference_svc.structured_output.numbers import exact, is_number, satisfies

LIMITS = {
    "string": ("minLength", "maxLength", "pattern", "format"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "integer": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "boolean": (),
    "null": (),
    "object": (
        "properties", "required", "additionalProperties", "patternProperties", "propertyNames",
        "minProperties", "maxProperties", "dependentRequired", "dependentSchemas", "dependencies",
        "unevaluatedProperties",
    ),
    "array": (
        "items", "minItems", "maxItems", "prefixItems", "additionalItems", "uniqueItems",
        "contains", "minContains", "maxContains", "unevaluatedItems",
    ),
}  # fmt: skip
"""The keywords that limit the values of each type."""
_PLAIN = {"object": LIMITS["object"][:3], "array": LIMITS["array"][:3]}
_IMPLYING = {"object": ("properties", "additionalProperties"), "array": ("items", "prefixItems")}
_APPLICATORS = ("$ref", "allOf", "anyOf", "oneOf", "const", "enum")
_UNSUPPORTED = ("not", "if", "$dynamicRef", "$recursiveRef")
_ANY_KIND = ("string", "number", "boolean", "null", "object", "array")
_KINDS = {
    str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null",
    list: "array", dict: "object",
}  # fmt: skip
_TIGHTEST: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("minLength", "minItems", "minimum", "exclusiveMinimum"), max),
    **dict.fromkeys(("maxLength", "maxItems", "maximum", "exclusiveMaximum"), min),
}
_NUMBER = (int, float, Decimal)
_VALUES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(LIMITS["number"], _NUMBER),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), (int,)),
    **dict.fromkeys(("pattern", "format"), (str,)),
    **dict.fromkeys(("properties",), (dict,)),
    **dict.fromkeys(("required",), (list,)),
    "items": (dict, bool, list),
    "additionalProperties": (dict, bool),
}
_DRAFT_4 = {"exclusiveMinimum": "minimum", "exclusiveMaximum": "maximum"}
_MAX_REFERENCES = 16
_MAX_OPTIONS = 256
_MAX_WORK = 2048  # schemas that are read and pairs that are combined


class Alternative(NamedTuple):
    """One type that a value may have; empty: any. `schema` has only limits of this type, and, where
    one keyword holds twice, `allOf`. `values` are the only ones that it may be."""

    kind: str
    schema: dict[str, Any]
    values: tuple[Any, ...] | None = None

    @property
    def combining(self) -> str:
        """The keyword, if any, for which members or items cannot be written one by one; or ""."""
        return _combining(self.schema, self.kind)

    @property
    def whole(self) -> dict[str, Any]:
        kind = {"type": self.kind} if self.kind else {}
        values = {} if self.values is None else {"enum": list(self.values)}
        return {**kind, **self.schema, **values}


_ANY = Alternative("", {})
Report = Callable[[str], None]
"""Receives what is not enforced, as the subject of a sentence."""


def kind_of(value: Any) -> str:
    """The JSON type of a value; that of whole numbers is "integer"."""
    return _KINDS.get(type(value), "number")


def alternatives(schema: Any, root: Any, report: Report | None = None) -> list[Alternative]:
    """The types that a schema allows; none if no value matches it."""
    return _Reader(root, report).read(schema)


def member_schemas(found: Iterable[Alternative], key: str) -> Iterator[Any]:
    """The schemas that members with a key have in some alternatives, and items if it is "item"."""
    for each in found:
        if key in properties(each.schema):
            yield properties(each.schema)[key]
        elif key == "item" and "items" in each.schema:
            yield each.schema["items"]


def differ_in_types(found: Sequence[Alternative], root: Any, levels: int) -> bool:
    """Whether a member or item, up to so many levels inside, may be a string in one of some
    alternatives and has other types in another one, so that a text without quotes does not tell
    which it is."""
    keys = {key for each in found for key in (*properties(each.schema), "item")}
    for key in keys if levels else ():
        schemas = {repr(schema): schema for schema in member_schemas(found, key)}
        if len(schemas) < 2:
            continue
        inner = [alternatives(schema, root) for schema in schemas.values()]
        kinds = {frozenset(option.kind for option in each) for each in inner}
        if len(kinds) > 1 and any(each & {"", "string"} for each in kinds):
            return True
        if differ_in_types([option for each in inner for option in each], root, levels - 1):
            return True
    return False


class _Reader:
    """Reads one schema, with a limit on the schemas that it combines."""

    def __init__(self, root: Any, report: Report | None) -> None:
        self._root = root
        self._reports = report
        self._open: set[int] = set()
        self._work = 0
        self._known: dict[int, tuple[Any, list[Alternative]]] = {}

    def _report(self, keyword: str) -> None:
        if self._reports is not None:
            self._reports(f"'{keyword}'")

    def _may_do(self, work: int) -> bool:
        self._work += work
        if self._work > _MAX_WORK:
            self._report("anyOf")
        return self._work <= _MAX_WORK

    def read(self, schema: Any) -> list[Alternative]:
        if schema is False:
            return []
        if not isinstance(schema, dict):
            return [_ANY]
        if not self._may_do(1):
            return [_ANY]
        if id(schema) in self._open:  # it adds no alternative to itself
            return []
        self._open.add(id(schema))
        found = self._read(schema)
        self._open.discard(id(schema))
        return found

    def _read(self, schema: dict[str, Any]) -> list[Alternative]:
        for keyword in _UNSUPPORTED:
            if keyword in schema:
                self._report(keyword)
        found = self._own(schema)
        for keyword in schema:
            if keyword in _APPLICATORS:
                for factor in self._factors(keyword, schema[keyword]):
                    found = self._product(found, factor)
        return found

    def _own(self, schema: dict[str, Any]) -> list[Alternative]:
        """The alternatives without the keywords that apply other schemas."""
        given = schema.get("type")
        kinds: list[Any] = given if isinstance(given, list) else [given]
        if given is None:
            limited = [kind for kind, words in LIMITS.items() if any(w in schema for w in words)]
            implied = [kind for kind, words in _IMPLYING.items() if {*words} & {*schema}]
            kinds = implied[:1] or ([*_ANY_KIND] if limited else [""])
        known = [kind if isinstance(kind, str) and kind in LIMITS else "" for kind in kinds]
        if "" in known and given is not None:
            self._report("type")  # some write "float" or "text"
            return [_ANY]
        limits = dict(self._limits(schema))
        return [
            Alternative(
                kind, {word: limits[word] for word in LIMITS.get(kind, ()) if word in limits}
            )
            for kind in known
        ]

    def _limits(self, schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        for word, value in schema.items():
            expected = _VALUES.get(word, ())
            if word in _DRAFT_4 and isinstance(value, bool):
                if value and is_number(schema.get(_DRAFT_4[word])):
                    yield word, schema[_DRAFT_4[word]]
            elif not expected or _is_value(value, expected):
                yield word, value
            else:
                self._report(word)

    def _factors(self, keyword: str, value: Any) -> Iterator[list[Alternative]]:
        """Lists of alternatives: a value matches one of each list."""
        if keyword == "$ref":
            target = find_reference(value, self._root) if isinstance(value, str) else None
            if target is None:
                self._report(keyword)
            yield self.read(target)
        elif keyword == "const":
            yield list(_listed([value]))
        elif not isinstance(value, list):
            self._report(keyword)
        elif keyword == "enum":
            yield list(_listed(value))
        elif keyword == "allOf":
            yield from map(self.read, value)
        else:
            branches = list(map(self.read, value))
            if keyword == "oneOf" and self._reports and not self._are_disjoint(branches):
                self._report(keyword)
            yield self._limited([each for branch in branches for each in branch], keyword)

    def _product(self, left: list[Alternative], right: list[Alternative]) -> list[Alternative]:
        if not self._may_do(len(left) * len(right)):
            return [_ANY]
        pairs = (self._both(one, other) for one in left for other in right)
        return self._limited([each for each in pairs if each is not None], "anyOf")

    def _limited(self, found: list[Alternative], keyword: str) -> list[Alternative]:
        """The alternatives, with the values of each type as one; any value if they are too many."""
        listed: dict[str, dict[Hashable, Any]] = {}
        for each in found:
            if each.values is not None and not each.schema:
                values = listed.setdefault(each.kind, {})
                values.update((_identity(value), value) for value in each.values)
        others = [each for each in found if each.values is None or each.schema]
        if len(others) > _MAX_OPTIONS:
            self._report(keyword)
            return [_ANY]
        return [
            *others,
            *(Alternative(kind, {}, tuple(each.values())) for kind, each in listed.items()),
        ]

    def _both(self, one: Alternative, other: Alternative) -> Alternative | None:
        """What matches both alternatives."""
        kind = _common_kind(one.kind, other.kind)
        if kind is None:
            return None
        if _ANY in (one, other):
            return one if other == _ANY else other
        schema = _merge(one.schema, other.schema, kind)
        values = one.values if other.values is None else other.values
        if values is None:
            return Alternative(kind, schema)
        if one.values is not None:
            shared = set(map(_identity, one.values))
            values = tuple(each for each in values if _identity(each) in shared)
        if kind in ("number", "integer"):
            values = tuple(each for each in values if _keeps(each, kind, schema))
            schema = {}
        elif schema and kind in _PLAIN:
            self._report("enum")
            schema = {}
        return Alternative(kind, schema, values) if values else None

    def _read_once(self, schema: Any) -> list[Alternative]:
        known = self._known.get(id(schema))
        if known is None:
            alone = _Reader(self._root, None)  # the schema may be one that is being read
            known = self._known[id(schema)] = (schema, alone.read(schema))
        return known[1]

    def _are_disjoint(self, branches: list[list[Alternative]]) -> bool:
        pairs = (
            (one, other)
            for number, branch in enumerate(branches)
            for later in branches[number + 1 :]
            for one in branch
            for other in later
        )
        return all(self._exclude(one, other, _MAX_REFERENCES) for one, other in pairs)

    def _exclude(self, one: Alternative, other: Alternative, depth: int) -> bool:
        """Whether no value certainly matches both: their types differ, or values, or members that
        one of them requires."""
        if _common_kind(one.kind, other.kind) is None:
            return True
        if one.values is not None and other.values is not None:
            return set(map(_identity, one.values)).isdisjoint(map(_identity, other.values))
        if one.kind != "object" or other.kind != "object" or one.combining or other.combining:
            return False
        both = [properties(each.schema) for each in (one, other)]
        needed = (required(one.schema) | required(other.schema)) & both[0].keys() & both[1].keys()
        return depth > 0 and any(
            all(
                self._exclude(mine, yours, depth - 1)
                for mine in self._read_once(both[0][key])
                for yours in self._read_once(both[1][key])
            )
            for key in needed
        )


def _combining(schema: dict[str, Any], kind: str) -> str:
    plain = _PLAIN.get(kind, LIMITS.get(kind, ()))
    is_tuple = isinstance(schema.get("items"), list)
    return "items" if is_tuple else next((word for word in schema if word not in plain), "")


def _is_value(value: Any, expected: tuple[type, ...]) -> bool:
    return isinstance(value, expected) and (bool in expected or not isinstance(value, bool))


def find_reference(reference: str, root: Any) -> Any:
    """What a `$ref` refers to within a schema; None if there is nothing."""
    head, *steps = unquote(reference).split("/")
    found = root if head == "#" else None
    for step in steps:
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and step.isdecimal():
            found = found[int(step)] if int(step) < len(found) else None
        else:
            found = found.get(step) if isinstance(found, dict) else None
    return found


def _listed(values: list[Any]) -> Iterator[Alternative]:
    for kind in dict.fromkeys(map(kind_of, values)):
        yield Alternative(kind, {}, tuple(value for value in values if kind_of(value) == kind))


def _common_kind(one: str, other: str) -> str | None:
    if one == other or not other:
        return one
    if {one, other} == {"integer", "number"}:
        return "integer"
    return None if one else other


def _identity(value: Any) -> Hashable:
    """What is equal for values that are the same in JSON: 1 and 1.0 are, 1 and true are not."""
    if is_number(value):
        return exact(value)
    if isinstance(value, dict):
        return frozenset((key, _identity(each)) for key, each in value.items())
    if isinstance(value, list):
        return tuple(map(_identity, value))
    return (type(value), value)


def _keeps(value: Any, kind: str, schema: dict[str, Any]) -> bool:
    return satisfies(value, schema | ({"multipleOf": 1} if kind == "integer" else {}))


def _merge(one: dict[str, Any], other: dict[str, Any], kind: str) -> dict[str, Any]:
    """The limits of both for a type."""
    one, other = (
        {word: each[word] for word in (*LIMITS[kind], "allOf") if word in each}
        for each in (one, other)
    )
    if not one or not other or one == other:
        return one or other
    if kind in _PLAIN:
        if _combining(one, kind) or _combining(other, kind):
            return {"allOf": [one, other]}
        return _merge_objects(one, other) if kind == "object" else _merge_lists(one, other)
    merged, again = {**one}, [*one.get("allOf", ()), *other.get("allOf", ())]
    for word, value in other.items():
        if word in _TIGHTEST:
            merged[word] = _TIGHTEST[word](merged.get(word, value), value, key=exact)
        elif word != "allOf" and merged.setdefault(word, value) != value:
            again.append({word: value})
    return {**merged, "allOf": again} if again else merged


def _merge_objects(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    def member(each: dict[str, Any], key: str) -> Any:
        return properties(each).get(key, each.get("additionalProperties", True))

    keys = {**properties(one), **properties(other)}
    merged: dict[str, Any] = {
        "properties": {key: _all_of(member(one, key), member(other, key)) for key in keys},
        "required": sorted(required(one) | required(other)),
    }
    extra = [
        each[word] for word in ("additionalProperties",) for each in (one, other) if word in each
    ]
    return {**merged, **({"additionalProperties": _all_of(*extra)} if extra else {})}


def _merge_lists(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    merged = {**one, **other}
    for word in merged.keys() & one.keys() & other.keys():
        merge: Callable[..., Any] = _TIGHTEST.get(word, _all_of)
        merged[word] = merge(one[word], other[word])
    return merged


def _all_of(*schemas: Any) -> Any:
    if any(each is False for each in schemas):
        return False
    different = [each for each in schemas if each is not True and each != {}]
    different = [each for number, each in enumerate(different) if each not in different[:number]]
    return different[0] if len(different) == 1 else {"allOf": different} if different else True


def properties(schema: dict[str, Any]) -> dict[str, Any]:
    """The schemas of the members of an object's schema without references."""
    given = schema.get("properties")
    return given if isinstance(given, dict) else {}


def required(schema: dict[str, Any]) -> frozenset[str]:
    """The keys that an object must have."""
    keys = schema.get("required")
    return (
        frozenset(k for k in keys if isinstance(k, str)) if isinstance(keys, list) else frozenset()
    )


def plain_object(schema: dict[str, Any]) -> dict[str, Any]:
    """The limits of an object that hold for its members one by one."""
    parts = [plain_object(each) for each in schema.get("allOf", ())]
    own = {word: schema[word] for word in _PLAIN["object"] if word in schema}
    return reduce(_merge_objects, parts, own) if parts else own


def members(schema: dict[str, Any]) -> dict[str, Any]:
    """The schemas of the members that an object has or must have."""
    known = properties(schema)
    extra = schema.get("additionalProperties", {})
    return known | {key: extra for key in sorted(required(schema) - set(known))}
