"""What becomes of parameters that a request model does not implement, and of lists that are too
long: both are known before Pydantic makes an object of each item.

`policy` of a `WireModel` lists them. Ignored ones are recorded in the report of the request, from
which the gateway writes a header; a strict request refuses them. Refused ones are an error.
Subclasses inherit the policy: a field that they declare replaces its rule, and a rule replaces an
inherited field. `tools/parameters_page.py` and the OpenAPI document are written from it.
"""

import functools
import inspect
import operator
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, get_args, get_origin

from pydantic import AliasChoices, BaseModel
from pydantic.fields import FieldInfo

from svc_kit.errors import TooLong, UnknownField, UnsupportedField

UNKNOWN: Final = "*"
"""The name of the rule for parameters that are neither fields nor in the policy. Without it they
are refused as unknown."""
MAX_ITEMS: Final = 10_000
"""Items of a list, and members of an object that is no model, without a `max_length`."""
MAX_MEMBERS: Final = 256
"""Members of an object that is a model. Pydantic makes an error of each unknown one."""
TAG_PREFIX: Final = "~"
"""Prefix of union tags, which are left out of a field's path."""
_ITEMS: Final = "[]"
_POSITION: Final = re.compile(r"\[\d+\]")
_ITEM: Final = re.compile(r"(\w+)\[(\d+)\]")


@dataclass(frozen=True, slots=True, eq=False)
class Ignored:
    """A parameter that is accepted without effect."""

    reason: str
    """Why nothing is lost, as the end of "'user' is ignored: ..."."""
    neutral: tuple[object, ...] = ()
    """Values that ask for what is done anyway, and so are not reported."""


@dataclass(frozen=True, slots=True, eq=False)
class Refused:
    """A parameter that would change the answer if it was ignored."""

    reason: str
    """What to do instead, or why it is not supported."""
    neutral: tuple[object, ...] = ()
    """Values that ask for what is done anyway, and so are accepted."""


Rule = Ignored | Refused
Policy = dict[str, Rule]


def ignored(names: str, reason: str, neutral: tuple[object, ...] = ()) -> Policy:
    """The policy that ignores each of these names, words of one text."""
    return dict.fromkeys(names.split(), Ignored(reason, neutral))


class ParameterReport:
    """The parameters of one request that were ignored."""

    def __init__(self, *, strict: bool = False) -> None:
        """`strict`: refuse them instead."""
        self.strict = strict
        self._names: dict[str, None] = {}
        self._kept: dict[str, Sequence[int]] = {}

    def add(self, field: str, reason: str) -> None:
        """Record an ignored parameter. Raises UnsupportedField in a strict request."""
        if self.strict:
            problem = f"it has no effect, and the request is strict: {reason}"
            raise UnsupportedField(field=field, problem=problem)
        self.add_unenforced((field,))

    def add_unenforced(self, fields: Iterable[str]) -> None:
        """Record parameters of a response that is complete, which cannot be refused any more."""
        self._names |= dict.fromkeys(fields)

    def record_sent(self, field: str, indexes: Sequence[int]) -> None:
        """Record which items of a list are sent on; the others were ignored."""
        self._kept[field] = indexes

    def place_of(self, field: str) -> str:
        """The place in the caller's body of a field in the lists that were sent on."""
        item = _ITEM.match(field)
        kept = self._kept.get(item[1], ()) if item is not None else ()
        if item is None or int(item[2]) >= len(kept):
            return field
        return f"{item[1]}[{kept[int(item[2])]}]{field[item.end() :]}"

    @property
    def names(self) -> tuple[str, ...]:
        """The names, each once. Positions in lists are left out, as in `tools[].strict`."""
        return tuple(dict.fromkeys(_POSITION.sub(_ITEMS, name) for name in self._names))


parameter_report: Final[ContextVar[ParameterReport | None]] = ContextVar(
    "parameter_report", default=None
)
"""The report of the running request; None where nobody reads it, as in a batch."""


def ignore_parameter(field: str, reason: str) -> None:
    """Record that a parameter has no effect. Raises UnsupportedField in a strict request."""
    if (report := parameter_report.get()) is not None:
        report.add(field, reason)


def apply_policy(model: type[BaseModel], fields: Mapping[str, Any], at: str) -> dict[str, Any]:
    """The fields of a body that its model validates: without nulls and ignored parameters.

    `at` is the path of `fields` in the body. Raises UnsupportedField.
    """
    given = {name: value for name, value in fields.items() if value is not None}
    kept: dict[str, Any] = _prune(_place(model), given, (at,) if at else ())
    return kept


@functools.cache
def policy_of(model: type[BaseModel]) -> Policy:
    """The policy of a model, with the inherited rules."""
    rules: dict[str, Rule] = {}
    for base in reversed(model.__mro__):
        for name in inspect.get_annotations(base):
            rules.pop(name, None)
        rules |= vars(base).get("policy", {})
    return rules


def policies(model: type[BaseModel]) -> dict[str, Rule]:
    """The rules of a model and of the models in its fields, by path, as in `tools[].strict`."""
    rules = dict(policy_of(model))
    for steps, part in _nested_models(model):
        path = ".".join(steps).replace(f".{_ITEMS}", _ITEMS)
        rules |= {f"{path}.{name}": rule for name, rule in policy_of(part).items()}
    return rules


@functools.cache
def known_names(model: type[BaseModel]) -> frozenset[str]:
    """The names of a model's fields in a body."""
    names: set[str] = set()
    for name, info in model.model_fields.items():
        alias = info.validation_alias or name
        choices = alias.choices if isinstance(alias, AliasChoices) else [alias]
        names.update(choice for choice in choices if isinstance(choice, str))
    return frozenset(names)


def rule_schemas(model: type[BaseModel]) -> dict[str, dict[str, Any]]:
    """The JSON Schemas of the parameters in a model's policy. Refused ones allow only the values
    that are accepted."""
    schemas: dict[str, dict[str, Any]] = {}
    for name, rule in policy_of(model).items():
        if isinstance(rule, Ignored):
            schemas[name] = {"description": f"Ignored: {rule.reason}."}
        else:
            allowed = [{"type": "null"}, *map(_value_schema, rule.neutral)]
            schemas[name] = {"description": f"Not supported: {rule.reason}.", "anyOf": allowed}
    schemas.pop(UNKNOWN, None)
    return schemas


def _value_schema(value: object) -> dict[str, Any]:
    """The JSON Schema of one value. Generators of clients read no lists or booleans in `enum`."""
    if isinstance(value, list | tuple):
        items = [_value_schema(each) for each in value]
        return {"type": "array", "maxItems": len(items), "items": items[0] if items else {}}
    return {"type": "object", "maxProperties": 0} if value == {} else {"const": value}


@dataclass(slots=True)
class _Place:
    """A place in a body: what the values there may be, and places in them."""

    inner: dict[str, "_Place"] = field(default_factory=dict)
    models: list[tuple[type[BaseModel], frozenset[str] | None]] = field(default_factory=list)
    """The models with a policy, with the names in it; None if unknown ones are, too."""
    max_items: int | None = None
    """Of a list, or of an object that is no model; None: it is neither."""
    members: set[str] = field(default_factory=set)
    """The names that models know."""
    is_open: bool = False
    """Whether a model allows other members."""

    def add(self, annotation: object, max_items: int | None = None) -> None:
        """Add a type that values may have here. Models do not contain themselves."""
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            self._add_model(annotation)
            return
        origin, arguments = get_origin(annotation), get_args(annotation)
        if origin is Annotated:
            self.add(arguments[0], _max_length(arguments[1:]) or max_items)
        elif origin in (list, dict):
            self.max_items = max(self.max_items or 0, max_items or MAX_ITEMS)
            if origin is list:
                self._add_inner(_ITEMS, arguments[0])
        else:
            for argument in arguments:
                self.add(argument, max_items)

    def _add_model(self, model: type[BaseModel]) -> None:
        policy = policy_of(model)
        if policy:
            self.models.append((model, None if UNKNOWN in policy else frozenset(policy)))
        self.members |= known_names(model) | policy.keys()
        self.is_open |= UNKNOWN in policy or model.model_config.get("extra") != "forbid"
        for name, info in model.model_fields.items():
            self._add_inner(info.alias or name, info.annotation, _max_length(info.metadata))

    def _add_inner(self, step: str, annotation: object, max_items: int | None = None) -> None:
        place = self.inner.get(step, _Place())
        place.add(annotation, max_items)
        if place.inner or place.models or place.members or place.max_items is not None:
            self.inner[step] = place

    def check_size(self, value: Any, path: tuple[int | str, ...]) -> None:
        """Raise TooLong for too many items or members, or UnknownField for one that no model
        knows."""
        number = len(value)
        if self.members and type(value) is dict:
            if self.is_open:
                limit, field = MAX_MEMBERS, format_path(path) or "body"
                raise TooLong(field=field, length=number, limit=limit, unit="members")
            for unknown in (name for name in value if name not in self.members):
                raise UnknownField(field=format_path((*path, unknown)))
        elif self.max_items is not None and number > self.max_items:
            raise TooLong(field=format_path(path), length=number, limit=self.max_items)


def _max_length(metadata: Sequence[object]) -> int | None:
    """The `max_length` in the metadata of a type."""
    for each in metadata:
        if isinstance(each, FieldInfo) and (limit := _max_length(each.metadata)) is not None:
            return limit
        if (length := getattr(each, "max_length", None)) is not None:
            return int(length)
    return None


@functools.cache
def _place(model: type[BaseModel]) -> _Place:
    place = _Place()
    place.add(model)
    return place


def _prune(place: _Place, value: Any, path: tuple[int | str, ...]) -> Any:
    """Apply the policies and limits at a place to a value. Returns `value` itself if nothing
    changes."""
    is_list = type(value) is list
    if not is_list and type(value) is not dict:
        return value
    if len(value) > MAX_MEMBERS:  # Pydantic checks shorter lists
        place.check_size(value, path)
    if is_list:
        return _prune_items(place, value, path)
    for model, names in place.models:
        if (names is None or not names.isdisjoint(value)) and _is_of(model, value):
            value = _apply(model, value, path)
    for step, inner in place.inner.items():
        part = value.get(step)
        if type(part) is not dict and type(part) is not list:
            continue
        kept = _prune(inner, part, (*path, step))
        if kept is not part:
            value = {**value, step: kept}
    return value


def _prune_items(place: _Place, values: list[Any], path: tuple[int | str, ...]) -> list[Any]:
    items = place.inner.get(_ITEMS)
    if items is None or not values or type(values[0]) not in (dict, list):
        return values  # such as a long list of tokens
    pruned = [_prune(items, each, (*path, index)) for index, each in enumerate(values)]
    return values if all(map(operator.is_, pruned, values)) else pruned


def _apply(
    model: type[BaseModel], fields: dict[str, Any], path: tuple[int | str, ...]
) -> dict[str, Any]:
    """Remove the fields that a model's policy names. Returns `fields` itself if there is none."""
    policy = policy_of(model)
    others = policy.get(UNKNOWN)
    known = known_names(model) if others else fields.keys()
    dropped = {
        name: rule
        for name in fields
        if (rule := policy.get(name) or (None if name in known else others)) is not None
    }
    for name, rule in dropped.items():
        value = fields[name]
        if value is None or any(_same(value, neutral) for neutral in rule.neutral):
            continue
        field = format_path((*path, name))
        if isinstance(rule, Refused):
            raise UnsupportedField(field=field, problem=rule.reason)
        ignore_parameter(field, rule.reason)
    return {name: fields[name] for name in fields if name not in dropped} if dropped else fields


def _is_of(model: type[BaseModel], value: Mapping[str, Any]) -> bool:
    """Whether a model of a union takes an object, by its fields with literals."""
    return all(value[name] in values for name, values in _literals(model) if name in value)


@functools.cache
def _literals(model: type[BaseModel]) -> tuple[tuple[str, tuple[Any, ...]], ...]:
    """The required fields of a model that have one of a few values, with these values."""
    return tuple(
        (field.alias or name, get_args(field.annotation))
        for name, field in model.model_fields.items()
        if field.is_required() and get_origin(field.annotation) is Literal
    )


@functools.cache
def _nested_models(model: type[BaseModel]) -> tuple[tuple[tuple[str, ...], type[BaseModel]], ...]:
    """The models with a policy in the fields of a model, with the steps that lead to them."""
    return tuple(
        (steps, part)
        for name, field in model.model_fields.items()
        for steps, part in _models_in(field.annotation, (field.alias or name,))
        if policy_of(part)
    )


def _models_in(
    annotation: object, steps: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], type[BaseModel]]]:
    """The models in a type, and in their fields. Models do not contain themselves."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield steps, annotation
        for name, field in annotation.model_fields.items():
            yield from _models_in(field.annotation, (*steps, field.alias or name))
        return
    inner = (*steps, _ITEMS) if get_origin(annotation) is list else steps
    for argument in get_args(annotation):
        yield from _models_in(argument, inner)


def format_path(location: Sequence[int | str]) -> str:
    """Format a Pydantic location as OpenAI does, as in "messages[0].content"."""
    path = ""
    for step in location:
        if isinstance(step, int):
            path += f"[{step}]"
        elif not step.startswith(TAG_PREFIX):
            path += f".{step}" if path else step
    return path


def _same(value: object, neutral: object) -> bool:
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)
