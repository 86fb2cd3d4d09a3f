"""Options of generations that clients set: stored with objects and passed on with each turn.

`corral.inference.v1.GenerationOptions` documents them. The inference service validates their
values; here only what another release could not read is refused, and what this service sets.
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

    stored: bytes = b""

    @classmethod
    def from_bytes(cls, stored: bytes) -> "GenerationOptions":
        """Read stored options. Bytes that are no proto are kept as they are."""
        try:
            return OPTIONS.from_message(pb.GenerationOptions.FromString(stored))
        except DecodeError:
            return cls(stored)

    def __bytes__(self) -> bytes:
        return self.stored

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> core_schema.CoreSchema:
        stored = core_schema.bytes_schema()
        return core_schema.no_info_after_validator_function(
            cls.from_bytes,
            stored,
            serialization=core_schema.plain_serializer_function_ser_schema(
                bytes, return_schema=stored
            ),
        )

    def merge(self, changes: "GenerationOptions") -> "GenerationOptions":
        """Override fields by those that are set in `changes`; lists are appended."""
        return self.from_bytes(self.stored + changes.stored)  # protobuf merges what it reads twice


NO_OPTIONS: Final = GenerationOptions()
_INTERNAL: Final = {"num_choices", "resume", "label", "cache.keep_for"} | {
    f"output.{name}" for name in ("token_ids", "prompt_logprobs", "prompt_token_ids")
}
"""Options that clients may not set."""


class _OptionsMapper(MessageMapper[GenerationOptions, pb.GenerationOptions]):
    """Refuses options of clients that only this service sets."""

    def to_message(self, value: GenerationOptions, **extra: Any) -> pb.GenerationOptions:
        return pb.GenerationOptions.FromString(value.stored)

    def from_message(
        self, message: pb.GenerationOptions, path: str = "", **extra: Any
    ) -> GenerationOptions:
        kept = pb.GenerationOptions()
        kept.CopyFrom(message)
        for parent, _, name in (path.rpartition(".") for path in _INTERNAL):
            if not parent or kept.HasField(parent):
                (getattr(kept, parent) if parent else kept).ClearField(name)
        return GenerationOptions(kept.SerializeToString(deterministic=True))

    def decode(self, message: pb.GenerationOptions, path: str) -> GenerationOptions:
        known = pb.GenerationOptions()
        known.CopyFrom(message)
        known.DiscardUnknownFields()
        for name, at_enum, value in _fields(known):
            if name.removesuffix("[0]") in _INTERNAL:
                raise UnsupportedField(field=f"{path}.{name.removesuffix('[0]')}")
            if isinstance(value, Duration):
                decode_duration(value, f"{path}.{name}")
            elif at_enum is not None and value not in at_enum.values_by_number:
                problem = f"{value} is not a value of {at_enum.name}"
                raise InvalidField(field=f"{path}.{name}", problem=problem)
            elif at_enum is not None and not value:
                raise MissingField(field=f"{path}.{name}")
        return self.from_message(known, path)


def _fields(message: Message, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The set fields with their paths, the enum of their type or None, and their values."""
    for field, value in message.ListFields():
        for index, item in enumerate(value if field.is_repeated else [value]):
            name = f"{prefix}{field.name}[{index}]" if field.is_repeated else prefix + field.name
            yield name, field.enum_type, item
            if isinstance(item, Message) and not isinstance(item, Duration):
                yield from _fields(item, f"{name}.")


OPTIONS: Final = _OptionsMapper(
    GenerationOptions,
    pb.GenerationOptions,
    only_domain=["stored"],
    only_message=pb.GenerationOptions.DESCRIPTOR.fields_by_name.keys(),
    omits_default=True,
)
