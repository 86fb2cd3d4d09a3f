"""The events of runs as server-sent events."""

from collections.abc import Iterable

from corral.control.v1 import run_service_pb2 as pb

from gateway.sse import EventStream
from openai_wire.assistants.run_events import DONE, error_frame, event_frame
from openai_wire.errors import ASSISTANT_PARAMS, with_openai_names
from svc_kit.errors import DomainError


class RunFrames:
    """Turns the messages of WatchRun into frames."""

    def __init__(self, *, with_results: bool) -> None:
        """`with_results`: with the passages that searches found."""
        self._with_results = with_results

    def payloads(self, message: pb.WatchRunResponse, _call: int = 0) -> Iterable[bytes]:
        """The frame of one event, where OpenAI has one."""
        frame = event_frame(message, with_results=self._with_results)
        return () if frame is None else (frame,)

    def closing(self) -> Iterable[bytes]:
        """What ends the stream."""
        return (DONE,)


class RunStream(EventStream):
    """Server-sent events that bring their own names and numbers."""

    def __init__(self, ping_interval_s: float, *, with_results: bool) -> None:
        super().__init__(RunFrames(with_results=with_results), ASSISTANT_PARAMS, ping_interval_s)

    def _framed(self, payload: bytes) -> bytes:
        return payload

    def _failure(self, error: DomainError) -> bytes:
        return error_frame(with_openai_names(error, ASSISTANT_PARAMS))
