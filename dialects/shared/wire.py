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
    NotRequired,
    TypeVar,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from typing_extensions import is_typeddict

MessageT = TypeVar("MessageT", bound=Message)
ShapeT = TypeVar("ShapeT")
WriteT = TypeVar("WriteT", bound=Callable[..., Any])
_Read = Callable[[Any], Any]


class From(NamedTuple):
    """Where the value of a key comes from, in an `Annotated` type. Keys without it are the field of
    their name, or the only value of their `Literal`."""

    path: str = ""
    """A field, as in "options.sampling.top_p"; "": the one named as the key; ".": the message."""
    write: Callable[[Any], Any] | None = None
    """Converts the value. None: messages become the TypedDict of the key, enums names as in
    "in_progress", maps dicts, repeated fields lists, and 32-bit floats numbers of 7 digits."""


class Written(NamedTuple):
    """How objects of a shape are written."""

    message: type[Message]
    write: Callable[[Any], Mapping[str, Any]]


WRITTEN: Final[dict[Any, Written]] = {}
"""The types of what is written of a message."""


def seconds(path: str) -> From:
    """A timestamp in unix seconds."""
    return From(path, lambda time: time.seconds)


def each(write: _Read) -> _Read:
    """A conversion of repeated fields: `write` converts each message."""
    return lambda values: [write(value) for value in values]


def writer(message: type[MessageT], shape: type[ShapeT]) -> Callable[[MessageT], ShapeT]:
    """The function that makes a TypedDict of a message. A field that is unset or empty is None in a
    key whose type includes None, and left out in one that is not required. Raises TypeError for a
    key without a field, and for a message that is not written as a TypedDict."""
    write = nested_writer(message.DESCRIPTOR, shape)
    WRITTEN[shape] = Written(message, write)
    return cast(Callable[[MessageT], ShapeT], write)


def declared(write: WriteT) -> WriteT:
    """Decorate a function of a message that returns what it writes in a type of its own."""
    message, *_, shape = get_type_hints(write).values()
    WRITTEN[shape] = Written(message, write)
    return write


def writers(message: type[Message], union: Any) -> Mapping[str, Callable[[Any], Any]]:
    """What makes each of the TypedDicts in a TypeAliasType of an annotated union, by its `type`."""
    shapes = get_args(get_args(union.__value__)[0])
    kinds = [get_args(get_type_hints(shape)["type"])[0] for shape in shapes]
    return {
        kind: nested_writer(message.DESCRIPTOR, shape)
        for kind, shape in zip(kinds, shapes, strict=True)
    }


def nested_writer(descriptor: Any, shape: Any) -> Callable[[Any], Mapping[str, Any]]:
    """The function that makes a part of an object; its type is not among those `WRITTEN`."""
    hints = get_type_hints(shape, include_extras=True).items()
    readers = [(key, _reader(descriptor, key, hint)) for key, hint in hints]
    required = shape.__required_keys__

    def write(message: Any) -> Mapping[str, Any]:
        return {
            key: value
            for key, read in readers
            if (value := read(message)) is not None or key in required
        }

    return write


def _reader(descriptor: Any, key: str, hint: Any) -> _Read:
    is_left_out = get_origin(hint) is NotRequired
    hint = get_args(hint)[0] if is_left_out else hint
    kind, *notes = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    note = next((found for found in notes if isinstance(found, From)), None)
    constants = get_args(kind) if get_origin(kind) is Literal else ()
    if note is None and len(constants) == 1:
        return lambda _: constants[0]
    path, write = note or From()
    if path == ".":
        return write or nested_writer(descriptor, kind)
    *outer, name = (path or key).split(".")
    for step in outer:
        descriptor = _field(descriptor, step).message_type
    field = _field(descriptor, name)
    convert, has_presence = write or _conversion(field, kind), field.has_presence
    is_optional = is_left_out or NoneType in get_args(kind)

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


def _conversion(field: Any, kind: Any) -> _Read | None:
    if (shape := _only_shape(kind)) is not None:
        write = nested_writer(field.message_type, shape)
        return each(write) if field.is_repeated else write
    if field.enum_type is not None:
        values = field.enum_type.values
        prefix = values[0].name.removesuffix("UNSPECIFIED")
        return {
            value.number: value.name.removeprefix(prefix).lower() for value in values
        }.__getitem__
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return dict
    if field.message_type is not None:
        raise TypeError(f"{field.full_name} is a message, and {kind} is no TypedDict")
    if field.is_repeated:
        return list
    return round_float32 if field.type == FieldDescriptor.TYPE_FLOAT else None


def _only_shape(kind: Any) -> Any:
    """The TypedDict in a type such as `list[Shape] | None`; None if there is none, or several."""
    found = [kind] if is_typeddict(kind) else [_only_shape(part) for part in get_args(kind)]
    shapes = [shape for shape in found if shape is not None]
    return shapes[0] if len(shapes) == 1 else None


def round_float32(number: float) -> float:
    """Round a proto's 32-bit float to its 7 significant digits: 0.1, not 0.10000000149011612."""
    return float(f"{number:.7g}")
