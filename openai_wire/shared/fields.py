"""Base of request bodies: strict Pydantic models, unions by JSON type, errors as DomainErrors."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Discriminator, Field, ValidationError
from pydantic_core import ErrorDetails

from svc_kit.errors import (
    DomainError,
    InvalidField,
    InvalidType,
    MissingField,
    OutOfRange,
    TooLong,
    TooShort,
    UnknownField,
    UnsupportedField,
)

INT32_MAX = 2**31 - 1
INT64_MIN = -(2**63)
UINT64_MAX = 2**64 - 1
MARK = "~"
"""Begins the tags of unions, which are no part of a field's path."""
Count = Annotated[int, Field(ge=0, le=INT32_MAX)]
TokenId = Annotated[int, Field(ge=0, le=INT32_MAX)]


class WireModel(BaseModel):
    """A part of a body: types as JSON has them, nothing unknown."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, populate_by_name=False, protected_namespaces=()
    )


def kind_of(value: object) -> str:
    """Names the JSON kind of a value, as a tag."""
    if isinstance(value, str):
        return "~string"
    if isinstance(value, list | tuple):
        return "~array"
    if isinstance(value, dict | BaseModel):
        return "~object"
    return "~other"


def array_kind_of(value: object) -> str:
    """Names the JSON kind of a value and, of an array, that of its items: prompts and inputs."""
    if isinstance(value, list) and value:
        inner = value[0]
        if isinstance(inner, str):
            return "~array of strings"
        return "~array of arrays" if isinstance(inner, list) else "~array of integers"
    return kind_of(value) if not isinstance(value, list) else "~array of strings"


BY_KIND = Discriminator(kind_of)
Body = TypeVar("Body", bound=WireModel)


def validated(model: type[Body], fields: Mapping[str, Any], at: str = "") -> Body:
    """Checks a body, or the part of one that is found at a path. Raises the DomainError of its
    first problem, with OpenAI's field name."""
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
    if at:
        first["loc"] = (at, *first["loc"])
    raise _domain_error(first)


def without_neutral(
    fields: Mapping[str, Any], unsupported: Mapping[str, Sequence[object]], at: str = ""
) -> dict[str, Any]:
    """Drops nulls, which mean "not given", and unsupported fields whose value has no effect.

    `unsupported` maps a known field to its values without effect. Raises UnsupportedField for any
    other value; `at` is where a part of a body stands in it.
    """
    kept = {}
    for name, value in fields.items():
        if value is None:
            continue
        if name not in unsupported:
            kept[name] = value
        elif not any(_same(value, neutral) for neutral in unsupported[name]):
            raise UnsupportedField(field=f"{at}.{name}" if at else name)
    return kept


def one_of(body: WireModel, *names: str) -> Any:
    """The value of a field with several names. Raises InvalidField when two disagree."""
    found: str | None = None
    value: Any = None
    for name in names:
        given = getattr(body, name)
        if given is None:
            continue
        if found is not None and given != value:
            raise InvalidField(field=name, problem=f"it disagrees with '{found}'")
        found, value = name, given
    return value


def path_of(location: Sequence[int | str]) -> str:
    """Writes a Pydantic location as OpenAI does: messages[0].content."""
    path = ""
    for step in location:
        if isinstance(step, int):
            path += f"[{step}]"
        elif not step.startswith(MARK):
            path += f".{step}" if path else step
    return path


def _same(value: object, neutral: object) -> bool:
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)


def _domain_error(problem: ErrorDetails) -> DomainError:
    field = path_of(problem["loc"])
    kind = problem["type"]
    translate = _BY_TYPE.get(kind)
    if translate is not None:
        return translate(field, problem)
    expected = _EXPECTED.get(kind)
    if expected is not None:
        return InvalidType(field=field, expected=expected)
    return InvalidField(field=field, problem=problem["msg"])


def _out_of_range(field: str, problem: ErrorDetails) -> DomainError:
    limits = problem.get("ctx", {})
    value = problem["input"]
    return OutOfRange(
        field=field,
        value=value,
        minimum=limits.get("ge", limits.get("gt")),
        maximum=limits.get("le", limits.get("lt")),
    )


def _no_integer(field: str, problem: ErrorDetails) -> DomainError:
    """JSON's integers of more than 64 bits are floats by the time they come here."""
    value = problem["input"]
    if isinstance(value, float) and value.is_integer() and not INT64_MIN <= value <= UINT64_MAX:
        return OutOfRange(field=field, value=int(value), minimum=INT64_MIN, maximum=UINT64_MAX)
    return InvalidType(field=field, expected="an integer")


def _too_long(field: str, problem: ErrorDetails) -> DomainError:
    unit = "characters" if problem["type"] == "string_too_long" else "items"
    length, limit = len(problem["input"]), problem["ctx"]["max_length"]
    return TooLong(field=field, length=length, limit=limit, unit=unit)


def _too_short(field: str, problem: ErrorDetails) -> DomainError:
    unit = "characters" if problem["type"] == "string_too_short" else "items"
    length, minimum = len(problem["input"]), problem["ctx"]["min_length"]
    return TooShort(field=field, length=length, minimum=minimum, unit=unit)


def _wrong_kind(field: str, problem: ErrorDetails) -> DomainError:
    kinds = problem["ctx"]["expected_tags"].replace("'", "").replace(MARK, "").split(", ")
    return InvalidType(field=field, expected=" or ".join(kinds))


def _not_among(field: str, problem: ErrorDetails) -> DomainError:
    if not isinstance(problem["input"], str):
        return InvalidType(field=field, expected="a string")
    return InvalidField(field=field, problem=f"supported values are {problem['ctx']['expected']}")


_EXPECTED = {
    "string_type": "a string",
    "int_from_float": "an integer",
    "int_parsing_size": "an integer of ordinary size",
    "float_type": "a number",
    "bool_type": "a boolean",
    "list_type": "an array",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
}
_BY_TYPE: dict[str, Callable[[str, ErrorDetails], DomainError]] = {
    "int_type": _no_integer,
    "missing": lambda field, _: MissingField(field=field),
    "extra_forbidden": lambda field, _: UnknownField(field=field),
    "greater_than": _out_of_range,
    "greater_than_equal": _out_of_range,
    "less_than": _out_of_range,
    "less_than_equal": _out_of_range,
    "finite_number": _out_of_range,
    "too_short": _too_short,
    "string_too_short": _too_short,
    "too_long": _too_long,
    "string_too_long": _too_long,
    "union_tag_invalid": _wrong_kind,
    "literal_error": _not_among,
}


def number_of(text: str) -> int | str:
    """A number in a query or a form; what is none stays a text, for the model to refuse."""
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdigit() and len(digits) < 19 else text
