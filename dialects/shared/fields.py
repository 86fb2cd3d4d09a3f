"""Base of request bodies: strict Pydantic models, unions by JSON type, DomainErrors."""

from collections.abc import Callable, Container, Mapping, Set
from functools import cache
from typing import Annotated, Any, ClassVar, TypeVar

from google.protobuf.descriptor import Descriptor
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.message import Message
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationError,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, ErrorDetails

from dialects.shared.body_routes import check_route
from dialects.shared.parameters import (
    TAG_PREFIX,
    Policy,
    apply_policy,
    format_path,
    rule_schemas,
)
from svc_kit.errors import (
    DomainError,
    InvalidField,
    InvalidType,
    MissingField,
    OutOfRange,
    TooLong,
    TooShort,
    UnknownField,
    UnsupportedValue,
)
from svc_kit.rpc.field_limits import TOO_MANY_BYTES

INT32_MAX = 2**31 - 1
INT64_MIN = -(2**63)
UINT64_MAX = 2**64 - 1
Count = Annotated[int, Field(ge=0, le=INT32_MAX)]
TokenId = Annotated[int, Field(ge=0, le=INT32_MAX)]
MAX_TOKENS = 2**20
"""Token ids in one list of a body."""
Tokens = Annotated[list[TokenId], Field(min_length=1, max_length=MAX_TOKENS)]
Gbnf = Annotated[str | None, AfterValidator(lambda text: text or None)]
"""A grammar; an empty text is none, as for llama-server."""


def _stop_at_first_item(schema: object) -> None:
    if isinstance(schema, dict):
        if schema.get("type") == "list":
            schema["fail_fast"] = True
        for part in schema.values():
            _stop_at_first_item(part)
    elif isinstance(schema, list | tuple):
        for part in schema:
            _stop_at_first_item(part)


class WireModel(BaseModel):
    """A part of a body. Types are not coerced; unknown fields are rejected."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        populate_by_name=False,
        protected_namespaces=(),
        defer_build=True,  # until the first body of a route: there are hundreds of models
    )
    policy: ClassVar[Policy] = {}
    """Its known parameters that are not implemented."""
    route: ClassVar[str] = ""
    """The route of a body, if it is to be told apart from bodies of other routes."""

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: type[BaseModel], handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Lists end at their first invalid item. An error of each item would take long."""
        schema = handler(source)
        _stop_at_first_item(schema)
        return schema

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        written = handler(schema)
        target = handler.resolve_ref_schema(written)
        target["properties"] = target.get("properties", {}) | rule_schemas(cls)
        return written


class EchoedModel(WireModel):
    """An object that clients send back as received. Fields that they add are ignored."""

    model_config = ConfigDict(extra="ignore")


def json_kind(value: object) -> str:
    """The union tag for the JSON type of a value."""
    if isinstance(value, str):
        return "~string"
    if isinstance(value, list | tuple):
        return "~array"
    if isinstance(value, dict | BaseModel):
        return "~object"
    return "~other"


def json_array_kind(value: object) -> str:
    """As `json_kind`, with the item type of an array. Used for prompts and inputs."""
    if not isinstance(value, list):
        return json_kind(value)
    if not value or isinstance(value[0], str):
        return "~array of strings"
    return "~array of arrays" if isinstance(value[0], list) else "~array of integers"


def split_inputs(
    value: str | list[str] | list[int] | list[list[int]],
) -> list[str | list[int]]:
    """Split a prompt or an input into its items, each a text or token ids."""
    if isinstance(value, str):
        return [value]
    if isinstance(value[0], int):
        return [value]
    return list(value)


BY_KIND = Discriminator(json_kind)
Body = TypeVar("Body", bound=WireModel)
MessageT = TypeVar("MessageT", bound=Message)


def validate(model: type[Body], fields: Mapping[str, Any], at: str = "") -> Body:
    """Validate a body, or the part of a body at path `at`. Nulls mean "not given".

    Applies the model's policy. Raises the DomainError of the first problem, with the field's path
    in the body, or that the body is meant for another route.
    """
    try:
        return model.model_validate(apply_policy(model, fields, at))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        problem = _domain_error(first | {"loc": (at, *first["loc"]) if at else first["loc"]})
    except DomainError as error:
        problem = error
    if model.route:
        check_route(fields, model.route)
    raise problem


def message_of(message: type[MessageT], body: WireModel, **others: Any) -> MessageT:
    """Convert a body to a message, whose fields are those of the body with the same name, but for
    `others`, which are None if they are unset. Raises TypeError for a field of the message that is
    in neither, so that none is forgotten."""
    names = _shared_names(message.DESCRIPTOR, type(body), frozenset(others))
    return message(**{name: getattr(body, name) for name in names}, **others)


@cache
def _shared_names(message: Descriptor, body: type[WireModel], others: Set[str]) -> Set[str]:
    names = {*message.fields_by_name} - others
    if missing := names - body.model_fields.keys():
        fields = ", ".join(sorted(missing))
        raise TypeError(f"{body.__module__}.{body.__name__} lacks {fields} of {message.name}")
    return names


def check_type(fields: Mapping[str, Any], path: str, supported: Container[str]) -> str:
    """The `type` of the object at `path`. Raises MissingField, InvalidType or UnsupportedValue."""
    kind = fields.get("type")
    if kind is None:
        raise MissingField(field=f"{path}.type")
    if not isinstance(kind, str):
        raise InvalidType(field=f"{path}.type", expected="a string")
    if kind not in supported:
        raise UnsupportedValue(field=f"{path}.type", value=kind)
    return kind


def resolve_alias(body: WireModel, *names: str) -> Any:
    """The value of a field with several names, None if no name is given. Raises InvalidField if two
    names have different values."""
    return agreed_value({name: getattr(body, name) for name in names})


def agreed_value(fields: Mapping[str, Any]) -> Any:
    """The value that all fields agree on; fields that are None do not count. Raises InvalidField if
    two disagree."""
    values = {name: value for name, value in fields.items() if value is not None}
    first = next(iter(values), "")
    for name, value in values.items():
        if value != values[first]:
            raise InvalidField(field=name, problem=f"it disagrees with '{first}'")
    return values.get(first)


def update_mask(fields: Mapping[str, Any], *names: str) -> FieldMask:
    """The mask of an update: those of `names` that the body contains, null included."""
    return FieldMask(paths=[name for name in names if name in fields])


def _domain_error(problem: ErrorDetails) -> DomainError:
    field = format_path(problem["loc"])
    kind = problem["type"]
    if (convert := _CONVERTERS.get(kind)) is not None:
        return convert(field, problem)
    if (expected := _EXPECTED.get(kind)) is not None:
        return InvalidType(field=field, expected=expected)
    return InvalidField(field=field, problem=problem["msg"])


def _out_of_range(field: str, problem: ErrorDetails) -> DomainError:
    limits = problem.get("ctx", {})
    return OutOfRange(
        field=field,
        value=problem["input"],
        minimum=limits.get("ge", limits.get("gt")),
        maximum=limits.get("le", limits.get("lt")),
    )


def _invalid_integer(field: str, problem: ErrorDetails) -> DomainError:
    """The JSON parser returns integers of more than 64 bits as floats."""
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


def _invalid_kind(field: str, problem: ErrorDetails) -> DomainError:
    kinds = problem["ctx"]["expected_tags"].replace("'", "").replace(TAG_PREFIX, "").split(", ")
    return InvalidType(field=field, expected=" or ".join(kinds))


def _invalid_literal(field: str, problem: ErrorDetails) -> DomainError:
    if not isinstance(problem["input"], str):
        return InvalidType(field=field, expected="a string")
    return InvalidField(field=field, problem=f"supported values are {problem['ctx']['expected']}")


_EXPECTED = {
    "string_type": "a string",
    "int_from_float": "an integer",
    "int_parsing_size": "an integer of at most 64 bits",
    "float_type": "a number",
    "bool_type": "a boolean",
    "list_type": "an array",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
}
_CONVERTERS: dict[str, Callable[[str, ErrorDetails], DomainError]] = {
    "int_type": _invalid_integer,
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
    TOO_MANY_BYTES: lambda field, problem: TooLong(field=field, unit="bytes", **problem["ctx"]),
    "string_too_long": _too_long,
    "union_tag_invalid": _invalid_kind,
    "literal_error": _invalid_literal,
}


def parse_integer(text: str) -> int | str:
    """Parse an integer of a query or form. Other text is returned unchanged; its model rejects
    it."""
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdigit() and len(digits) < 19 else text


def parse_event_number(text: str) -> int:
    """Parse the number after which to continue a stream. Raises InvalidField."""
    number = parse_integer(text)
    if isinstance(number, str):
        raise InvalidField(field="starting_after", problem="it must be the number of an event")
    return number
