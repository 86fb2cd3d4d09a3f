"""Examples of protobuf messages, from which writers are tried.

Each field has every alternative: a message each value of its enums and each field of its oneofs,
once with all optional fields and once without.
"""

from collections import ChainMap
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import product
from math import prod
from random import Random
from typing import Any, Final, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

MessageT = TypeVar("MessageT", bound=Message)

TEXT: Final = "~"
"""A text in an example. Other texts in an object are constants of its writer."""
WORDS: Final[Mapping[str, tuple[str, ...]]] = {
    "corral.control.v1.RunChanged.what": (
        *("created", "queued", "in_progress", "requires_action", "cancelling", "cancelled"),
        *("failed", "completed", "incomplete", "expired"),
    ),
    "corral.control.v1.StepChanged.what": (
        *("created", "in_progress", "completed", "failed", "cancelled", "expired"),
    ),
    "corral.control.v1.MessageChanged.what": ("created", "in_progress", "completed", "incomplete"),
    **dict.fromkeys(
        (
            "corral.control.v1.FunctionCallItem.name",
            "corral.control.v1.FunctionTool.name",
            "corral.control.v1.ResponseCallEvent.name",
        ),
        (TEXT, f"{TEXT}.{TEXT}"),  # the second is in a namespace
    ),
    "corral.inference.v1.ToolCallDelta.id": (TEXT,),
    "corral.inference.v1.ToolCallDelta.arguments_json": ("{}",),
    "corral.control.v1.FilePart.data_url": ("", TEXT, f"https://{TEXT}"),
}
"""The values of texts that are words, by the full names of the fields."""
_MAX_DEPTH: Final = 8
_MAX_ROWS: Final = 48
_TEXTS: Final = {FieldDescriptor.TYPE_STRING: TEXT, FieldDescriptor.TYPE_BYTES: b"~"}
_FLOATS: Final = (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE)


def examples(message: type[MessageT], opaque: Collection[type[Message]] = ()) -> list[MessageT]:
    """Examples of a message. Messages in it that are `opaque` are empty."""
    names = frozenset(each.DESCRIPTOR.full_name for each in opaque)
    return [
        message(**fields)
        for is_full in (True, False)
        for fields in _Examples(names, is_full=is_full).fillings(message.DESCRIPTOR, 0)
    ]


class _Examples:
    """Values of fields: all of them, or only what a message has at least."""

    def __init__(self, opaque: Collection[str], *, is_full: bool) -> None:
        self._opaque = opaque
        self._is_full = is_full

    def fillings(self, descriptor: Any, depth: int) -> list[dict[str, Any]]:
        columns = [
            [{field.name: value} for field in fields for value in self._values(field, depth)]
            for fields in _alternatives(descriptor)
        ]
        columns = sorted(filter(None, columns), key=len, reverse=True)
        if len(columns) < 2 or prod(map(len, columns)) <= _MAX_ROWS:
            return [dict(ChainMap(*row)) for row in product(*columns)]
        return _sampled(columns, Random(descriptor.full_name))

    def _values(self, field: Any, depth: int) -> list[Any]:
        is_optional = field.containing_oneof is not None and len(field.containing_oneof.fields) == 1
        if not self._is_full and (is_optional or field.is_repeated):
            return []
        if not field.is_repeated:
            return self._single_values(field, depth)
        if field.message_type and field.message_type.GetOptions().map_entry:
            value = field.message_type.fields_by_name["value"]
            return [{TEXT: each} for each in self._values(value, depth + 1)]
        values = self._single_values(field, depth)
        if field.message_type:
            values = values + _Examples(self._opaque, is_full=False)._single_values(field, depth)
        return [values, values[:1]]

    def _single_values(self, field: Any, depth: int) -> list[Any]:
        if field.message_type is not None:
            return self._messages(field, depth)
        if field.enum_type is not None:
            numbers = [each.number for each in field.enum_type.values]
            return numbers[1:] if self._is_full else numbers
        if field.full_name in WORDS:
            return list(WORDS[field.full_name])
        if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
            return [True, False]
        if field.type in _TEXTS:
            text = "{}" if field.name.endswith("_json") else _TEXTS[field.type]
            return [text, type(text)()] if self._is_full else [type(text)()]
        return [0.5 if field.cpp_type in _FLOATS else 1]

    def _messages(self, field: Any, depth: int) -> list[Any]:
        if field.message_type.full_name in self._opaque:
            return [{}]
        if depth > _MAX_DEPTH:
            return []
        fillings: list[Any] = list(self.fillings(field.message_type, depth + 1))
        is_single = field.containing_oneof is None and not field.is_repeated
        return [None, *fillings] if is_single and not self._is_full else fillings


def _sampled(columns: Sequence[list[dict[str, Any]]], random: Random) -> list[dict[str, Any]]:
    """Rows with a value of each column. Each value of the second column meets many of the first."""
    most = len(columns[0])
    rows: list[dict[str, Any]] = [{} for _ in range(max(most, _MAX_ROWS))]
    for number, column in enumerate(columns):
        for index, row in enumerate(rows):
            if number > 1 and index % len(column) == 0:
                random.shuffle(column)  # so that fields do not vary together
            shift = index // most if number == 1 else 0
            row |= column[(index + shift) % len(column)]
    return rows


def _alternatives(descriptor: Any) -> Iterator[list[Any]]:
    """The fields of each oneof, and each other field alone."""
    for oneof in descriptor.oneofs:
        yield list(oneof.fields)
    yield from ([field] for field in descriptor.fields if field.containing_oneof is None)
