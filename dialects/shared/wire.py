"""Response objects as TypedDicts, whose keys name the fields of the message they are written from.

A writer is made of both when its module is imported, so that a key without a field, or a misspelt
one, stops the program at its start. TypedDicts that are made by hand are literals of their type.
"""

from collections.abc import Callable, Mapping
from types import NoneType
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    NamedTuple,
    TypeVar,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

MessageT = TypeVar("MessageT", bound=Message)
ShapeT = TypeVar("ShapeT")
_Read = Callable[[Any], Any]


class From(NamedTuple):
    """Where the value of a key comes from, in an `Annotated` type. Keys without it are the field of
    their name, or the only value of their `Literal`."""

    path: str = ""
    """A field, as in "options.sampling.top_p"; "": the one named as the key; ".": the message."""
    write: Callable[[Any], Any] | None = None
    """Converts the value. None: enums become names as in "in_progress", maps dicts, repeated
    fields lists, and 32-bit floats numbers of 7 digits."""


class Written(NamedTuple):
    """How objects of a shape are written."""

    message: type[Message]
    write: Callable[[Any], Mapping[str, Any]]


WRITTEN: Final[dict[type, Written]] = {}
"""The TypedDicts that writers were made of."""


def seconds(path: str) -> From:
    """A timestamp in unix seconds."""
    return From(path, lambda time: time.seconds)


def each(write: _Read) -> _Read:
    """A conversion of repeated fields: `write` converts each message."""
    return lambda values: [write(value) for value in values]


def writer(message: type[MessageT], shape: type[ShapeT]) -> Callable[[MessageT], ShapeT]:
    """The function that makes a TypedDict of a message. In a key whose type includes None, a field
    that is unset or empty is None. Raises TypeError for a key without a field."""
    hints = get_type_hints(shape, include_extras=True).items()
    readers = [(key, _reader(message.DESCRIPTOR, key, hint)) for key, hint in hints]

    def write(value: MessageT) -> ShapeT:
        return cast(ShapeT, {key: read(value) for key, read in readers})

    WRITTEN[shape] = Written(message, cast(Callable[[Any], Mapping[str, Any]], write))
    return write


def _reader(descriptor: Any, key: str, hint: Any) -> _Read:
    kind, *notes = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    note = next((found for found in notes if isinstance(found, From)), None)
    constants = get_args(kind) if get_origin(kind) is Literal else ()
    if note is None and len(constants) == 1:
        return lambda _: constants[0]
    path, write = note or From()
    if path == "." and write is not None:
        return write
    *outer, name = (path or key).split(".")
    for step in outer:
        descriptor = _field(descriptor, step).message_type
    field = _field(descriptor, name)
    convert, has_presence = write or _conversion(field), field.has_presence
    is_optional = NoneType in get_args(kind)

    def read(message: Any) -> Any:
        for step in outer:
            message = getattr(message, step)
        if is_optional and not (message.HasField(name) if has_presence else getattr(message, name)):
            return None
        value = getattr(message, name)
        return value if convert is None else convert(value)

    return read


def _field(descriptor: Any, name: str) -> Any:
    if descriptor is None or name not in descriptor.fields_by_name:
        owner = "a value" if descriptor is None else descriptor.full_name
        raise TypeError(f"{owner} has no field {name!r}")
    return descriptor.fields_by_name[name]


def _conversion(field: Any) -> _Read | None:
    if field.enum_type is not None:
        values = field.enum_type.values
        prefix = values[0].name.removesuffix("UNSPECIFIED")
        return {
            value.number: value.name.removeprefix(prefix).lower() for value in values
        }.__getitem__
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return dict
    if field.is_repeated:
        return list
    return round_float32 if field.type == FieldDescriptor.TYPE_FLOAT else None


def round_float32(number: float) -> float:
    """Round a proto's 32-bit float to its 7 significant digits: 0.1, not 0.10000000149011612."""
    return float(f"{number:.7g}")
