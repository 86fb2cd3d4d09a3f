"""Limits of fields, as the protos declare them with the option `corral.options.v1.limit`.

`check_limits` checks the requests of all services, with functions that are made once a type of
message. `limit` puts the same limit on a field of a Pydantic model, so that bodies of HTTP requests
and their schemas have it. What depends on a model or on stored objects is checked by the services.
"""

import math
import re
import struct
from collections.abc import Callable, Sized
from functools import cache, partial
from typing import Any, Final

from corral.options.v1 import limit_pb2
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from svc_kit.errors import InvalidField, MissingField, OutOfRange, TooLong

TOO_MANY_BYTES: Final = "too_many_bytes"
"""The type of Pydantic's error for `max_bytes`; its context has `length` and `limit`."""
_INT32_MAX: Final = 2**31 - 1
_DURATION: Final = "google.protobuf.Duration"
CONTROL_CHARACTERS: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_Limit = limit_pb2.Limit
_Check = Callable[[Any, str, str], None]
"""Checks a value. Its name in errors is the path of its message with its own name."""


def check_limits(message: Message, path: str = "") -> None:
    """Raise MissingField, OutOfRange, TooLong or InvalidField for a field of a message, or of the
    messages in it, that is beyond its limit. `path` is written before its name."""
    if (check := _check_message(message.DESCRIPTOR)) is not None:
        check(message, path, "")


def limit(message: type[Message], path: str) -> Any:
    """The limit of a field for `Annotated` types of Pydantic; of the items of a repeated field if
    the path ends in "[]". Raises TypeError if the field has none."""
    field = _find(message, path)
    found = _limit_of(field).items if path.endswith("[]") else _limit_of(field)
    if not _is_checked(found):
        raise TypeError(f"{field.full_name} has no limit")
    if found.max_bytes:
        return AfterValidator(partial(_check_bytes, found.max_bytes))
    is_int32 = field.type == FieldDescriptor.TYPE_INT32 and not field.is_repeated
    highest = _number(found, "lte")
    return Field(
        gt=_number(found, "gt"),
        ge=_number(found, "gte"),
        le=_INT32_MAX if highest is None and is_int32 else highest,
        min_length=1 if found.required else None,
        max_length=found.max_len or found.max_items or None,
    )


def limit_of(message: type[Message], path: str) -> limit_pb2.Limit:
    """The limit of a field, for what `limit` does not say."""
    return _limit_of(_find(message, path))


def _find(message: type[Message], path: str) -> FieldDescriptor:
    *outer, name = path.removesuffix("[]").split(".")
    descriptor: Any = message.DESCRIPTOR
    for step in outer:
        descriptor = descriptor.fields_by_name[step].message_type
    field: FieldDescriptor = descriptor.fields_by_name[name]
    return field


def _check_bytes(most: int, text: str) -> str:
    if (size := len(text.encode())) > most:
        context = {"length": size, "limit": most}
        raise PydanticCustomError(TOO_MANY_BYTES, "it has more than {limit} bytes", context)
    return text


def _limit_of(field: FieldDescriptor) -> _Limit:
    options: Any = field.GetOptions()  # the stubs do not know the type of an extension
    own: _Limit = options.Extensions[limit_pb2.limit]
    if not own.rule:
        return own
    rule: Any = limit_pb2.Rule.DESCRIPTOR.values_by_number[own.rule].GetOptions()
    found = _Limit()
    found.CopyFrom(rule.Extensions[limit_pb2.rule_limit])
    found.MergeFrom(own)
    return found


def _is_checked(found: _Limit) -> bool:
    return any(field.name != "name" for field, _ in found.ListFields())


def _number(found: _Limit, name: str) -> float | None:
    """A bound, as an integer if it is one."""
    if not found.HasField(name):
        return None
    bound: float = getattr(found, name)
    return int(bound) if bound.is_integer() else bound


@cache
def _check_message(descriptor: Descriptor) -> _Check | None:
    """The check of messages of a type; None if no field in them has a limit."""
    if not any(_has_limits(field, set()) for field in descriptor.fields):
        return None
    checks: dict[int, tuple[_Check, str]] = {}
    required: dict[int, str] = {}

    def check(message: Any, path: str, name: str) -> None:
        inner, fields = f"{path}{name}." if name else path, message.ListFields()
        if required:
            given = {field.number for field, _ in fields}  # those that are set and not empty
            if missing := [shown for number, shown in required.items() if number not in given]:
                raise MissingField(field=_join(inner, missing[0]))
        for field, value in fields:
            if (found := checks.get(field.number)) is not None:
                found[0](value, inner, found[1])

    for field in descriptor.fields:
        found, shown = _limit_of(field), _name_of(field)
        if (missing_name := _name_if_missing(field)) is not None:
            required[field.number] = missing_name
        if (check_field := _check_field(field, found)) is not None:
            checks[field.number] = check_field, shown
    return check


def _name_if_missing(field: FieldDescriptor) -> str | None:
    """The name of what is missing if a field is unset: its own, or that of a required field in a
    message that errors do not name; None if nothing is."""
    found = _limit_of(field)
    if found.required:
        return _name_of(field)
    is_named = found.name or not found.HasField("name")
    if field.message_type is None or field.is_repeated or field.containing_oneof or is_named:
        return None
    return next(filter(None, map(_name_if_missing, field.message_type.fields)), None)


def _name_of(field: FieldDescriptor) -> str:
    """Its name in errors."""
    found = _limit_of(field)
    return found.name if found.HasField("name") else field.name


def _has_limits(field: FieldDescriptor, seen: set[Descriptor]) -> bool:
    """Whether a field, or one of the messages in it, has a limit. `seen` are types without."""
    if _is_checked(_limit_of(field)):
        return True
    inner = field.message_type
    if inner is None or inner in seen:
        return False
    seen.add(inner)
    return any(_has_limits(each, seen) for each in inner.fields)


def _check_field(field: FieldDescriptor, found: _Limit) -> _Check | None:
    inner = field.message_type
    if inner is not None and inner.GetOptions().map_entry:
        return _check_map(inner, found)
    if not field.is_repeated:
        return _check_value(field, found)
    most, check_item = found.max_items, _check_value(field, found.items)

    def check(values: Any, path: str, name: str) -> None:
        _check_count(values, most, path, name)
        if check_item is not None:
            for index, value in enumerate(values):
                check_item(value, path, f"{name}[{index}]")

    return check if most or check_item is not None else None


def _check_map(entry: Descriptor, found: _Limit) -> _Check | None:
    check_key = _check_value(entry.fields_by_name["key"], found.keys)
    check_item = _check_value(entry.fields_by_name["value"], found.items)
    if check_key is None and check_item is None and not found.max_items:
        return None

    def check(values: Any, path: str, name: str) -> None:
        _check_count(values, found.max_items, path, name)
        for key, value in values.items():
            if check_key is not None:
                check_key(key, path, name)
            if check_item is not None:
                check_item(value, path, f"{name}.{key}" if name else key)

    return check


def _check_count(values: Sized, most: int, path: str, name: str) -> None:
    if most and len(values) > most:
        raise TooLong(field=_join(path, name), length=len(values), limit=most)


def _check_value(field: FieldDescriptor, found: _Limit) -> _Check | None:
    inner = field.message_type
    if inner is not None and inner.full_name != _DURATION:
        # Made when the first one is checked: a message may contain others of its type.
        is_limited = any(_has_limits(each, {inner}) for each in inner.fields)
        return partial(_check_inner, inner) if is_limited else None
    if not _is_checked(found):
        return None
    is_number = field.cpp_type != FieldDescriptor.CPPTYPE_STRING
    return _check_number(field, found) if is_number else _check_text(found)


def _check_inner(descriptor: Descriptor, message: Any, path: str, name: str) -> None:
    if (check := _check_message(descriptor)) is not None:
        check(message, path, name)


def _check_number(field: FieldDescriptor, found: _Limit) -> _Check:
    least, most = _number(found, "gte"), _number(found, "lte")
    above = _number(found, "gt")
    shown = {"minimum": above if least is None else least, "maximum": most}
    low, high = -math.inf if least is None else least, math.inf if most is None else most
    if field.type == FieldDescriptor.TYPE_FLOAT:  # as a 32-bit float, 0.99 is slightly larger
        low, high = struct.unpack("ff", struct.pack("ff", low, high))
    is_duration = field.message_type is not None

    def check(value: Any, path: str, name: str) -> None:
        number = value
        if is_duration:
            number = value.seconds + (value.nanos / 1e9 if value.nanos else 0)
        if not low <= number <= high or (above is not None and number <= above):
            raise OutOfRange(field=_join(path, name), value=number, **shown)

    return check


def _check_text(found: _Limit) -> _Check:
    most, most_bytes, is_required = found.max_len or math.inf, found.max_bytes, found.required
    pattern = CONTROL_CHARACTERS if found.line else None

    def check(text: str, path: str, name: str) -> None:
        if is_required and not text:
            raise MissingField(field=_join(path, name))
        if len(text) > most:
            field, length = _join(path, name), len(text)
            raise TooLong(field=field, length=length, limit=found.max_len, unit="characters")
        if most_bytes and (size := len(text.encode())) > most_bytes:
            field = _join(path, name)
            raise TooLong(field=field, length=size, limit=most_bytes, unit="bytes")
        if pattern is not None and pattern.search(text):
            problem = "it contains control characters"
            raise InvalidField(field=_join(path, name), problem=problem)

    return check


def _join(path: str, name: str) -> str:
    return path + name if name else path.removesuffix(".")
