"""Random messages for every RPC: valid ones by descriptor, with ids of objects that exist, and
bytes that are almost or not at all a message."""

import random
from collections import deque
from collections.abc import Iterator
from typing import Any, Final

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from grpc_channelz.v1 import channelz_pb2  # type: ignore[import-untyped]  # noqa: F401
from grpc_health.v1 import health_pb2  # type: ignore[import-untyped]  # noqa: F401
from grpc_reflection.v1alpha import reflection_pb2  # type: ignore[import-untyped]  # noqa: F401
from smg_grpc_proto.generated import vllm_engine_pb2  # noqa: F401

MAX_DEPTH: Final = 5
_TEXTS: Final = (
    *("", "\x00", "a", "../../etc/passwd", "'; DROP TABLE files; --", "\u202e\u2028", "{", "[]"),
    *('{"type": "object"}', "{{ messages }}", "data:image/png;base64,AAAA", "http://127.0.0.1:1/"),
    *("file-" + "0" * 32, "\U0010ffff" * 300, "x" * 20_000, "(a+)+$", "a{1,99999}", "%s%n", "-1"),
)
_SIGNED: Final = (0, 1, -1, 2, 100, -(2**31), 2**31 - 1)
_UNSIGNED: Final = (0, 1, 2, 100, 2**32 - 1)
_FLOATS: Final = (0.0, 1.0, -1.0, 0.5, 1e30, -1e30, float("nan"), float("inf"))
_NUMBERS: Final = {
    FieldDescriptor.CPPTYPE_INT32: _SIGNED,
    FieldDescriptor.CPPTYPE_INT64: (*_SIGNED, -(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: _UNSIGNED,
    FieldDescriptor.CPPTYPE_UINT64: (*_UNSIGNED, 2**64 - 1),
    FieldDescriptor.CPPTYPE_FLOAT: _FLOATS,
    FieldDescriptor.CPPTYPE_DOUBLE: (*_FLOATS, 1e308),
    FieldDescriptor.CPPTYPE_BOOL: (False, True),
}


class RandomRequests:
    """Makes requests; learns ids from responses."""

    def __init__(self, rng: random.Random, texts: tuple[str, ...] = ()) -> None:
        """`texts` are valid values of some fields, such as names of models."""
        self._rng = rng
        self._texts = texts
        self._ids: deque[str] = deque(maxlen=500)

    def make(self, method: MethodDescriptor) -> Iterator[bytes]:
        """The messages of a request: one, or up to four of a client stream."""
        for _ in range(self._rng.randint(1, 4) if method.client_streaming else 1):
            raw = self._message(method.input_type, MAX_DEPTH).SerializeToString()
            yield raw if self._rng.random() < 0.7 else self._damage(raw)

    def learn(self, message: Message) -> None:
        """Remember the ids and page tokens of a response."""
        for field, value in message.ListFields():
            if field.message_type is not None and not field.message_type.GetOptions().map_entry:
                for each in value if field.is_repeated else (value,):
                    self.learn(each)
            elif isinstance(value, str) and field.name.endswith(("id", "token", "name")):
                self._ids.append(value)

    def _message(self, kind: Descriptor, depth: int) -> Message:
        message = message_factory.GetMessageClass(kind)()
        share = self._rng.choice((0.2, 0.5, 0.9))
        for field in kind.fields:
            is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
            if self._rng.random() < share and not (field.message_type is not None and depth == 0):
                self._set(message, field, depth, is_map=is_map)
        return message

    def _set(self, message: Message, field: Any, depth: int, *, is_map: bool) -> None:
        target = getattr(message, field.name)
        if is_map:
            key, value = field.message_type.fields
            for _ in range(self._rng.randint(1, 3)):
                if value.message_type is not None:
                    target[self._value(key, 0)].CopyFrom(self._value(value, depth - 1))
                else:
                    target[self._value(key, 0)] = self._value(value, 0)
        elif field.is_repeated:
            target.extend(self._value(field, depth - 1) for _ in range(self._rng.randint(1, 3)))
        elif field.message_type is not None:
            target.CopyFrom(self._value(field, depth - 1))
        else:
            setattr(message, field.name, self._value(field, depth))

    def _value(self, field: Any, depth: int) -> Any:
        rng = self._rng
        if field.message_type is not None:
            return self._message(field.message_type, depth)
        if field.type == FieldDescriptor.TYPE_STRING:
            known = (*self._texts, *self._ids)
            return rng.choice(known if known and rng.random() < 0.6 else _TEXTS)
        if field.type == FieldDescriptor.TYPE_BYTES:
            return rng.randbytes(rng.choice((0, 1, 16, 70_000)))
        if field.enum_type is not None:
            return rng.choice((*field.enum_type.values_by_number, -1, 999))
        return rng.choice(_NUMBERS[field.cpp_type])

    def _damage(self, raw: bytes) -> bytes:
        """Random bytes, or a message that is cut, repeated or changed in some bytes."""
        rng = self._rng
        kind = rng.randrange(4)
        if kind == 0 or not raw:
            return rng.randbytes(rng.choice((1, 2, 10, 200)))
        cut = rng.randrange(len(raw))
        if kind == 1:
            return raw[:cut]
        if kind == 2:
            return raw + raw[cut:]
        changed = bytearray(raw)
        for _ in range(rng.randint(1, 8)):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        return bytes(changed)


def describe(name: str) -> MethodDescriptor:
    """The descriptor of a method by its path, "/package.Service/Method", once it is loaded."""
    service, _, method = name[1:].replace(".v1.ServerR", ".v1alpha.ServerR").rpartition("/")
    return descriptor_pool.Default().FindServiceByName(service).methods_by_name[method]
