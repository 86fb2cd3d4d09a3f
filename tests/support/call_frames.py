"""How calls are answered: by a stream of events, or by the object that collects them."""

from collections.abc import Callable, Iterator
from typing import Any, Final

import orjson
from google.protobuf.message import Message

from svc_kit.errors import ERROR_CLASSES, DomainError
from svc_kit.errors.status import OPENAI_CODES
from tests.support.message_examples import TEXT, examples
from tools.surface_api import CODE_CASES

_ORDER: Final = ("accepted", "started", "prompt_tokens", "delta", "finished", "done")
"""Events of a call, in the order in which they are sent."""


def read_frames(stream: bytes) -> list[Any]:
    """The server-sent events of a stream: their data, and for data without a type of its own an
    object of the event's name and its data. The end of a stream without names has none."""
    found: list[Any] = []
    for frame in stream.replace(b"\r\n", b"\n").split(b"\n\n"):
        fields = dict(line.partition(b": ")[::2] for line in frame.splitlines())
        if (data := fields.get(b"data")) is None:
            continue
        name, is_end = fields.get(b"event"), data == b"[DONE]"
        value: Any = "[DONE]" if is_end else orjson.loads(data)
        if name is not None and (is_end or value.get("type") != name.decode()):
            found.append({"event": name.decode(), "data": value})
        elif not is_end:
            found.append(value)
    return found


def read_lines(stream: bytes) -> list[Any]:
    return [orjson.loads(line) for line in stream.splitlines()]


def _calls(message: type[Message]) -> Iterator[list[Any]]:
    """The events of calls, each with one of the possible deltas, and one of the possible ends."""
    events: dict[str, list[Any]] = {name: [] for name in _ORDER}
    every: list[Any] = examples(message)
    for each in every:
        name = each.WhichOneof("event")
        if name in ("delta", "finished"):
            getattr(each, name).index = 0
        for index, call in enumerate(getattr(each.delta, "tool_calls", ())):
            call.index = index
        if name != "finished" or each.finished.reason:
            events[name].append(each)
    for row in range(max(map(len, events.values()))):
        yield [each[row % len(each)] for each in events.values()]


def collected(message: type[Message], *makers: Callable[[], Any]) -> Callable[[], Iterator[Any]]:
    def collect() -> Iterator[Any]:
        for events in _calls(message):
            for make in makers:
                collector = make()
                for event in events:
                    collector.add(event, 0)
                yield collector.as_object()

    return collect


def streamed(
    message: type[Message],
    *makers: Callable[[], Any],
    read: Callable[[bytes], list[Any]] = read_frames,
) -> Callable[[], Iterator[Any]]:
    def stream() -> Iterator[Any]:
        for events in _calls(message):
            for make in makers:
                writer = make()
                frames = [frame for event in events for frame in writer.frames(event, 0)]
                yield from read(b"".join([*frames, *writer.final_frames()]))
        for error in example_errors():
            yield from read(makers[0]().failure(error))

    return stream


def example_errors() -> Iterator[DomainError]:
    """Errors of each class, with each code that it can have."""
    for cls in ERROR_CLASSES:
        yield cls.from_metadata(dict.fromkeys(cls.metadata_keys(), "1"), 1.0)
        if callable(OPENAI_CODES.get(cls.reason)):
            for metadata in CODE_CASES:
                yield cls.with_reason(reason=cls.reason, message=TEXT, metadata=metadata)
