"""Options of generations that clients set: stored with objects and passed on with each turn.

They are those of `corral.inference.v1.GenerationOptions`, which documents them, without the ones
that only this service sets. The inference service validates them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from corral.inference.v1 import generation_pb2 as pb
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError, Message
from pydantic_core import core_schema

from svc_kit.errors import InvalidField, MissingField, UnsupportedField
from svc_kit.rpc.message_mapper import MessageMapper, decode_duration


@dataclass(frozen=True)
class GenerationOptions:
    """All options, as the bytes of their proto, also in JSON and fingerprints."""

    serialized: bytes = b""

    def __bytes__(self) -> bytes:
        return self.serialized

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> core_schema.CoreSchema:
        stored = core_schema.bytes_schema()
        return core_schema.no_info_after_validator_function(
            cls,
            stored,
            serialization=core_schema.plain_serializer_function_ser_schema(
                bytes, return_schema=stored
            ),
        )

    def merge(self, changes: "GenerationOptions") -> "GenerationOptions":
        """Override fields by those that are set in `changes`; lists are appended."""
        merged = self.serialized + changes.serialized  # protobuf merges what it reads twice
        try:
            return OPTIONS.from_message(pb.GenerationOptions.FromString(merged))
        except DecodeError:
            return GenerationOptions(merged)


NO_OPTIONS: Final = GenerationOptions()
_INTERNAL: Final = {
    "": ("num_choices", "resume", "label"),
    "output.": ("token_ids", "prompt_logprobs"),
    "cache.": ("keep_for",),
}
"""Options that clients may not set, by path prefix."""


def _internal_fields(message: pb.GenerationOptions) -> Iterator[tuple[Message, str, str]]:
    """The set fields of `_INTERNAL`: the message that contains the field, its prefix and name."""
    for prefix, part in (("", message), ("output.", message.output), ("cache.", message.cache)):
        for field, _ in part.ListFields():
            if field.name in _INTERNAL[prefix]:
                yield part, prefix, field.name


class _OptionsMapper(MessageMapper[GenerationOptions, pb.GenerationOptions]):
    """Keeps the message, without the options that only this service sets."""

    def to_message(self, value: GenerationOptions, **extra: Any) -> pb.GenerationOptions:
        message = pb.GenerationOptions.FromString(value.serialized)
        for part, _, name in _internal_fields(message):  # an older release may have stored them
            part.ClearField(name)
        return message

    def from_message(
        self, message: pb.GenerationOptions, path: str = "", **extra: Any
    ) -> GenerationOptions:
        known = pb.GenerationOptions()
        known.CopyFrom(message)
        known.DiscardUnknownFields()
        return GenerationOptions(known.SerializeToString(deterministic=True))

    def decode(self, message: pb.GenerationOptions, path: str) -> GenerationOptions:
        """Raises UnsupportedField for an option that only this service sets, and the errors of
        `_check_values`."""
        for _, prefix, name in _internal_fields(message):
            raise UnsupportedField(field=f"{path}.{prefix}{name}")
        _check_values(message, path)
        return self.from_message(message)


def _check_values(message: Message, path: str) -> None:
    """Raise MissingField or InvalidField for an enum value or a duration that cannot be stored."""
    for field, value in message.ListFields():
        for index, each in enumerate(value if field.is_repeated else [value]):
            name = f"{path}.{field.name}[{index}]" if field.is_repeated else f"{path}.{field.name}"
            if isinstance(each, Duration):
                decode_duration(each, name)
            elif isinstance(each, Message):
                _check_values(each, name)
            elif field.enum_type is not None:
                _check_enum(field.enum_type, each, name)


def _check_enum(enum: Any, number: int, path: str) -> None:
    if not number:
        raise MissingField(field=path)
    if number not in enum.values_by_number:
        raise InvalidField(field=path, problem=f"{number} is not a value of {enum.name}")


OPTIONS: Final = _OptionsMapper(
    GenerationOptions,
    pb.GenerationOptions,
    only_domain=["serialized"],
    only_message=list(pb.GenerationOptions.DESCRIPTOR.fields_by_name),
    omits_default=True,
)
