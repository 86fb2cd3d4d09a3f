"""Converts dataclasses to protobuf messages and back.

A mapping pairs the fields of a dataclass and of a message when it is declared. It raises TypeError
then for a field without a partner and for types that do not fit. Fields are paired by name, but
`created_at` also with `create_time` and `arguments` with `arguments_json`. Properties with a
partner are written only. A field `kind` with one literal value is the name of a field of a oneof.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Set
from datetime import UTC, datetime, timedelta
from enum import Enum, EnumType
from inspect import Parameter, getmembers_static, signature
from types import NoneType, UnionType
from typing import (
    Any,
    Final,
    Generic,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.timestamp_pb2 import Timestamp

from svc_kit.errors import InvalidField, MissingField

DomainT = TypeVar("DomainT")
MessageT = TypeVar("MessageT", bound=Message)
_MAX_DURATION_S: Final = 10**9  # about 31 years, well within the range of timedelta
_SCALARS: Final = {
    FieldDescriptor.TYPE_STRING: str,
    FieldDescriptor.TYPE_BYTES: bytes,
    FieldDescriptor.TYPE_BOOL: bool,
    FieldDescriptor.TYPE_DOUBLE: float,
    FieldDescriptor.TYPE_FLOAT: float,
}
"""Types of scalar fields; all others are integers."""


class Converter(NamedTuple):
    """How values are converted. `decode` gets the path of the value too, for errors."""

    encode: Callable[[Any], Any]
    decode: Callable[[Any, str], Any]


def encode_timestamp(time: datetime) -> Timestamp:
    stamp = Timestamp()
    stamp.FromDatetime(time)
    return stamp


def decode_timestamp(stamp: Timestamp, path: str) -> datetime:
    """Convert a time. Raises InvalidField."""
    try:
        return stamp.ToDatetime(UTC)
    except (ValueError, OverflowError):
        raise InvalidField(field=path, problem="it is not a valid time") from None


def encode_duration(span: timedelta) -> Duration:
    duration = Duration()
    duration.FromTimedelta(span)
    return duration


def decode_duration(duration: Duration, path: str) -> timedelta:
    """Convert a duration.

    Raises InvalidField if it is longer than `_MAX_DURATION_S`, or its nanoseconds are not a part of
    a second with the sign of the seconds.
    """
    if abs(duration.nanos) >= 10**9 or duration.seconds * duration.nanos < 0:
        raise InvalidField(field=path, problem="it is not a valid duration")
    if abs(duration.seconds) > _MAX_DURATION_S:
        problem = f"duration must be at most {_MAX_DURATION_S} seconds"
        raise InvalidField(field=path, problem=problem)
    return timedelta(seconds=duration.seconds, microseconds=duration.nanos // 1000)


_SAME: Final = Converter(lambda value: value, lambda value, path: value)
_WELL_KNOWN: Final[Mapping[Any, Converter]] = {
    (datetime, "google.protobuf.Timestamp"): Converter(encode_timestamp, decode_timestamp),
    (timedelta, "google.protobuf.Duration"): Converter(encode_duration, decode_duration),
}


class EnumMapper(Generic[DomainT]):
    """Converts an enum, or a literal type, by the names of its members."""

    def __init__(
        self,
        domain: Any,
        enum: Any,
        *,
        only_domain: Collection[DomainT] = (),
        only_message: Collection[str] = (),
        zero: DomainT | None = None,
    ) -> None:
        """`enum` is a protobuf enum or its descriptor. `only_domain` are members that it does not
        have, `only_message` its further values, without the prefix of their names. `zero` is the
        member that its value 0 means.
        """
        self.domain, self.descriptor = domain, getattr(enum, "DESCRIPTOR", enum)
        members = {
            each.name if isinstance(each, Enum) else each.upper(): each
            for each in get_args(domain) or domain
            if each not in (*only_domain, zero)
        }
        prefix = self.descriptor.values_by_number[0].name.removesuffix("UNSPECIFIED")
        numbers = {
            each.name.removeprefix(prefix): each.number
            for each in self.descriptor.values
            if each.number and each.name.removeprefix(prefix) not in only_message
        }
        _check_none(self, numbers.keys() ^ members.keys())
        self._numbers: dict[DomainT, int] = {members[name]: numbers[name] for name in numbers}
        if zero is not None:
            self._numbers[zero] = 0
        self._members = {number: member for member, number in self._numbers.items()}

    def encode(self, member: DomainT) -> Any:
        return self._numbers[member]

    def decode(self, number: int, path: str) -> DomainT:
        """Return the member of a number. Raises MissingField for 0 and InvalidField."""
        if number in self._members:
            return self._members[number]
        if not number:
            raise MissingField(field=path)
        problem = f"{number} is not a value of {self.descriptor.name}"
        raise InvalidField(field=path, problem=problem)

    def decode_optional(self, number: int, path: str) -> DomainT | None:
        """Return the member of a number; None for 0. Raises InvalidField."""
        return self.decode(number, path) if number else None


class _Field(NamedTuple):
    """A field of a dataclass and its partner."""

    name: str
    target: str
    """The name in the message."""
    decode: Callable[[Any, str], Any]
    has_presence: bool
    can_be_absent: bool
    has_default: bool


class MessageMapper(Generic[DomainT, MessageT]):
    """Converts a dataclass or named tuple to a message and back."""

    def __init__(
        self,
        domain: type[DomainT],
        message: type[MessageT],
        *,
        renamed: Mapping[str, str] | None = None,
        flat: Mapping[str, "MessageMapper[Any, Any]"] | None = None,
        uses: Collection["AnyMapper"] = (),
        only_domain: Collection[str] = (),
        only_message: Collection[str] = (),
        omits_default: bool = False,
        is_part: bool = False,
    ) -> None:
        """`renamed` are names in the message by those in the dataclass. Fields of objects in `flat`
        are fields of the message itself. Nested types are converted by `uses`, or else without
        exceptions. Fields in `only_domain` and `only_message` are left out, unless a caller passes
        them. With `omits_default`, a nested object equal to `domain()` is unset. With `is_part`,
        the other fields of the message belong to other objects.
        """
        self.domain, self.descriptor, self._message = domain, message.DESCRIPTOR, message
        self.only_domain = frozenset(only_domain)
        self._default = domain() if omits_default else None
        self._renamed, self.uses = renamed or {}, (self, *uses)
        self._spread: dict[str, MessageMapper[Any, Any] | OneofMapper] = {**(flat or {})}
        self._reads: list[_Field] = []
        self._writes: list[tuple[str, str, Callable[[Any], Any]]] = []
        left_out = {*only_domain, *self._spread}
        rest = {
            name
            for name, kind, has_default in _attributes(domain)
            if name not in left_out and not self._pair(name, kind, has_default=has_default)
        }
        for name, member in getmembers_static(domain, lambda each: isinstance(each, property)):
            if target := self._partner(name):
                kind = get_type_hints(member.fget)["return"]
                converter = _converter(kind, self.descriptor.fields_by_name[target], self.uses)
                self._writes.append((name, target, converter.encode))
        if not is_part:
            rest |= self._free() - set(only_message)
        unknown = set(only_domain) - {name for name, *_ in _attributes(domain)}
        unknown |= set(only_message) - set(self.descriptor.fields_by_name)
        _check_none(self, rest | unknown)

    @property
    def parts(self) -> Collection["AnyMapper"]:
        """The mappings of objects whose fields are fields of the message itself."""
        return self._spread.values()

    @property
    def targets(self) -> set[str]:
        spread = (mapping.targets for mapping in self._spread.values())
        return {target for _, target, _ in self._writes}.union(*spread)

    def to_message(self, value: DomainT, **extra: Any) -> MessageT:
        """Convert an object; `extra` are further fields of the message."""
        return self._message(**self.arguments(value), **extra)

    def from_message(self, message: MessageT, path: str = "", **extra: Any) -> DomainT:
        """Convert the message at `path` of a request; `extra` are further fields of the object.

        Raises MissingField for an enum or a oneof that has no default, and InvalidField.
        """
        for name, target, decode, has_presence, can_be_absent, has_default in self._reads:
            if can_be_absent and not (
                message.HasField(target) if has_presence else getattr(message, target)
            ):
                if not has_default:
                    extra[name] = None
            elif decode is _SAME.decode:
                extra[name] = getattr(message, target)
            else:
                extra[name] = decode(getattr(message, target), _join(path, target))
        for name, mapping in self._spread.items():
            extra[name] = mapping.decode(message, path)
        return self.domain(**extra)

    def encode(self, value: DomainT) -> MessageT | None:
        """Convert a nested object."""
        return None if value == self._default else self.to_message(value)

    def decode(self, message: MessageT, path: str) -> DomainT:
        """Convert a nested message."""
        return self.from_message(message, path)

    def arguments(self, value: DomainT) -> dict[str, Any]:
        found = {}
        for name, target, encode in self._writes:
            part = getattr(value, name)
            if part is not None:
                found[target] = encode(part)
        for name, mapping in self._spread.items():
            found |= mapping.arguments(getattr(value, name))
        return found

    def _free(self) -> set[str]:
        return {*self.descriptor.fields_by_name} - self.targets

    def _partner(self, name: str) -> str | None:
        """The field of the message that is paired with a field or property."""
        name = self._renamed.get(name, name)
        stem = name.removesuffix("_at")
        times = [stem, stem[:-1], stem[:-2]] if stem != name else []
        names = (name, f"{name}_json", *(f"{each}_time" for each in times))
        return next((each for each in names if each in self._free()), None)

    def _pair(self, name: str, kind: Any, *, has_default: bool) -> bool:
        """Pair a field of the dataclass; False if the message has no partner."""
        if name in self.descriptor.oneofs_by_name:
            known = _find(kind, self.descriptor, self.uses)
            oneof = known or OneofMapper(kind, self._message, oneof=name, uses=self.uses)
            self._spread[name] = oneof
            return True
        if (target := self._partner(name)) is None:
            return False
        field = self.descriptor.fields_by_name[target]
        converter = _converter(kind, field, self.uses)
        self._writes.append((name, target, converter.encode))
        is_optional = NoneType in get_args(kind)
        can_be_absent = is_optional or (has_default and _is_unset_if_empty(field))
        self._reads.append(
            _Field(name, target, converter.decode, field.has_presence, can_be_absent, has_default)
        )
        return True


class OneofMapper:
    """Converts values of several types, each to a field of a oneof."""

    def __init__(
        self,
        domain: Any,
        message: type[Message],
        *,
        oneof: str = "",
        fields: Mapping[type, str] | None = None,
        uses: Collection["AnyMapper"] = (),
    ) -> None:
        """`domain` is a union of types. `fields` are the fields of those that have no `kind`.

        `oneof` is needed if the message has several. `uses` are as in `MessageMapper`.
        """
        self.domain, self.descriptor, self._message = domain, message.DESCRIPTOR, message
        self.uses, self.parts = uses, ()
        names = [each.name for each in self.descriptor.oneofs if not each.name.startswith("_")]
        (self._oneof,) = [oneof] if oneof else names
        self._members: dict[type, tuple[str, Converter]] = {}
        for kind in fields or _alternatives(domain):
            name = fields[kind] if fields else get_args(get_type_hints(kind)["kind"])[0]
            converter = _member_converter(kind, self.descriptor.fields_by_name[name], uses)
            self._members[kind] = name, converter
        self._decoders = {name: converter.decode for name, converter in self._members.values()}
        members = self.descriptor.oneofs_by_name[self._oneof].fields
        _check_none(self, self.targets ^ {each.name for each in members})

    @property
    def targets(self) -> set[str]:
        return set(self._decoders)

    def arguments(self, value: Any) -> dict[str, Any]:
        name, converter = self._members[type(value)]
        return {name: converter.encode(value)}

    def encode(self, value: Any) -> Any:
        return self._message(**self.arguments(value))

    def decode(self, message: Any, path: str) -> Any:
        """Convert a message. Raises MissingField if no field is set, and InvalidField."""
        name = message.WhichOneof(self._oneof)
        if name is None:
            raise MissingField(field=path or self._oneof)
        return self._decoders[name](getattr(message, name), _join(path, name))


AnyMapper = EnumMapper[Any] | MessageMapper[Any, Any] | OneofMapper
_Uses = Collection[AnyMapper]


def _converter(kind: Any, field: Any, uses: _Uses) -> Converter:
    (first, *_), nested = _alternatives(kind), field.message_type
    if nested is not None and nested.GetOptions().map_entry:
        each = _single_converter(get_args(first)[1], nested.fields_by_name["value"], uses)
        return Converter(
            lambda pairs: {key: each.encode(value) for key, value in pairs.items()},
            lambda pairs, path: {
                key: each.decode(pairs[key], f"{path}.{key}") for key in sorted(pairs)
            },
        )
    if field.is_repeated:
        each = _single_converter(get_args(first)[0], field, uses)
        return Converter(
            lambda values: [each.encode(value) for value in values],
            lambda values, path: tuple(
                each.decode(value, f"{path}[{index}]") for index, value in enumerate(values)
            ),
        )
    if nested is not None and get_origin(first) is tuple:  # a message around a list
        (inner,), around = nested.fields, GetMessageClass(nested)
        each = _converter(first, inner, uses)
        return Converter(
            lambda values: around(**{inner.name: each.encode(values)}),
            lambda message, path: each.decode(getattr(message, inner.name), path),
        )
    return _single_converter(kind, field, uses)


def _single_converter(kind: Any, field: Any, uses: _Uses) -> Converter:
    kinds, nested = _alternatives(kind), field.message_type or field.enum_type
    if nested is None and isinstance(kinds[0], EnumType):
        return Converter(lambda member: member.value, lambda value, path: kinds[0](value))
    if nested is None and kinds != (_SCALARS.get(field.type, int),):
        raise TypeError(f"{field.full_name} cannot hold {kind}")
    if nested is None:
        return _SAME
    if (kinds[0], nested.full_name) in _WELL_KNOWN:
        return _WELL_KNOWN[kinds[0], nested.full_name]
    mapping = _find(kind, nested, uses)
    if mapping is None and field.enum_type is not None:
        mapping = EnumMapper(kinds[0], nested)
    elif mapping is None and len(kinds) > 1:
        mapping = OneofMapper(kind, GetMessageClass(nested), uses=uses)
    elif mapping is None:
        mapping = MessageMapper(kinds[0], GetMessageClass(nested), uses=uses)
    return Converter(mapping.encode, mapping.decode)


def _member_converter(kind: type, field: Any, uses: _Uses) -> Converter:
    """How a member of a oneof is converted. A scalar is the only field of its class, or itself."""
    if field.message_type is not None or not hasattr(kind, "__annotations__"):
        return _single_converter(kind, field, uses) if field.message_type else _SAME
    ((name, _, _),) = _attributes(kind)
    return Converter(lambda value: getattr(value, name), lambda value, path: kind(**{name: value}))


def _find(kind: Any, descriptor: Any, uses: _Uses) -> Any:
    """The mapping of these types, if there is one."""
    key = {*_alternatives(kind)}, descriptor.full_name
    matching = (u for u in uses if ({*_alternatives(u.domain)}, u.descriptor.full_name) == key)
    return next(matching, None)


def _is_unset_if_empty(field: Any) -> bool:
    """Whether an empty value means that the field is unset. A number without presence can be 0."""
    is_text = field.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)
    return field.has_presence or field.is_repeated or field.enum_type is not None or is_text


def _attributes(domain: type) -> Iterator[tuple[str, Any, bool]]:
    """The fields of a class but `kind`: name, type, and whether there is a default."""
    hints = get_type_hints(domain)
    for name, parameter in signature(domain).parameters.items():
        if get_origin(hints[name]) is not Literal or len(get_args(hints[name])) > 1:
            yield name, hints[name], parameter.default is not Parameter.empty


def _alternatives(kind: Any) -> tuple[Any, ...]:
    """The alternatives of a type, without None."""
    parts = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    return tuple(part for part in parts if part is not NoneType)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _check_none(mapping: AnyMapper, names: Set[str]) -> None:
    if names:
        rest = ", ".join(sorted(names))
        raise TypeError(f"{mapping.domain} and {mapping.descriptor.full_name} differ in: {rest}")
