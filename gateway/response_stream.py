"""The events of responses as server-sent events, and whole responses."""

from collections.abc import Iterable
from typing import Any

from corral.control.v1 import response_service_pb2 as pb

from gateway.sse import EventStream
from openai_wire.errors import RESPONSE_PARAMS, with_openai_names
from openai_wire.responses.events import DONE, error_event, event_frame, event_object
from openai_wire.responses.objects import compaction_object, response_object
from svc_kit.errors import DomainError


class ResponseFrames:
    """Turns the messages of StreamResponse or WatchResponse into frames."""

    def __init__(self) -> None:
        self._next = 0

    def payloads(
        self, message: pb.StreamResponseResponse | pb.WatchResponseResponse, _call: int = 0
    ) -> Iterable[bytes]:
        """The frame of one event."""
        self._next = message.event.sequence_number + 1
        return (event_frame(event_object(message.event)),)

    def closing(self) -> Iterable[bytes]:
        """What ends the stream."""
        return (DONE,)

    def failure(self, error: DomainError) -> bytes:
        """The frame of an error after which nothing comes."""
        return event_frame(error_event(error, self._next))


class ResponseStream(EventStream):
    """Server-sent events that bring their own names and numbers."""

    def __init__(self, frames: ResponseFrames, ping_interval_s: float) -> None:
        super().__init__(frames, RESPONSE_PARAMS, ping_interval_s)
        self._frames = frames

    def _framed(self, payload: bytes) -> bytes:
        return payload

    def _failure(self, error: DomainError) -> bytes:
        return self._frames.failure(with_openai_names(error, RESPONSE_PARAMS))


class WholeResponse:
    """The answer of CreateResponse or CompactResponse as an object."""

    def __init__(self) -> None:
        self._object: dict[str, Any] = {}

    def add(
        self, message: pb.CreateResponseResponse | pb.CompactResponseResponse, _call: int = 0
    ) -> None:
        """Takes the answer."""
        if isinstance(message, pb.CreateResponseResponse):
            self._object = response_object(message.response)
        else:
            self._object = compaction_object(message)

    def as_object(self) -> dict[str, object]:
        """The object."""
        return self._object
