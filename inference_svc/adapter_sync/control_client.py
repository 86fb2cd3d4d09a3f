"""Watches, downloads and reports adapters over the control service's gRPC API."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

import grpc.aio
from corral.control.v1 import adapter_pb2
from corral.control.v1 import adapter_service_pb2 as pb
from corral.control.v1.adapter_service_pb2_grpc import AdapterServiceStub

from inference_svc.adapter_sync.state import DesiredAdapter, DesiredState
from svc_kit.errors import UpstreamUnavailable
from svc_kit.rpc.client import translate_errors
from svc_kit.rpc.message_mapper import MessageMapper

SERVICE: Final = "control"
REPORT_TIMEOUT_S: Final = 10.0
SILENCE_S: Final = 12.0
"""The control service sends an event every four seconds; one of an earlier release does not, and is
asked again after this time."""
FETCHING: Final = "STATE_FETCHING"
LOADING: Final = "STATE_LOADING"
READY: Final = "STATE_READY"
FAILED: Final = "STATE_FAILED"
_DESIRED: Final = MessageMapper(
    DesiredAdapter, adapter_pb2.DesiredAdapter, renamed={"digest": "sha256"}
)


@dataclass(frozen=True, slots=True)
class Report:
    """The state of a desired adapter: `state` is a name of the proto's enum, `model` its base model
    if it is loaded."""

    desired: DesiredAdapter
    state: str
    model: str = ""
    reason: str = ""
    problem: str = ""


class Control(Protocol):
    """The control service's API for adapters. Methods raise `DomainError`s, `UpstreamUnavailable`
    if the service cannot be reached."""

    def watch(self, state: DesiredState) -> AsyncGenerator[DesiredState, None]:
        """Yield the desired state at once, and whenever it differs from the last one yielded."""

    def download(self, digest: str) -> AsyncIterator[bytes]:
        """Yield the bytes of an adapter file."""

    async def report(
        self, frontend: str, address: str, reports: Sequence[Report], revision: str
    ) -> None:
        """Report the state of all adapters, and the revision of the last desired state whose
        removed adapters are unloaded."""


class GrpcControl:
    """`Control` over channels that carry the service token."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        connect: Callable[[], grpc.aio.Channel] | None = None,
        silence_s: float = SILENCE_S,
    ) -> None:
        """`connect` opens a channel with a connection of its own for each `watch`, which may reach
        another process than one that has stopped; `channel` by default."""
        self._stub = AdapterServiceStub(channel)
        self._connect = connect
        self._silence_s = silence_s

    async def watch(self, state: DesiredState) -> AsyncGenerator[DesiredState, None]:
        """Yield the desired state when it is first read, and whenever it changes.

        Raises UpstreamUnavailable after `silence_s` without an event: the process has stopped
        without closing its connections.
        """
        async with AsyncExitStack() as stack:
            stub = self._stub
            if self._connect is not None:
                stub = AdapterServiceStub(await stack.enter_async_context(self._connect()))
            call = stub.WatchDesired(pb.WatchDesiredRequest(revision=state.revision))
            stack.callback(call.cancel)
            is_first = True
            while (event := await _read(call, self._silence_s)) is not None:
                if is_first or event.revision != state.revision:
                    is_first, state = False, _next_state(state, event)
                    yield state

    async def download(self, digest: str) -> AsyncIterator[bytes]:
        """Yield the bytes of an adapter file."""
        request = pb.DownloadAdapterRequest(sha256=digest)
        with translate_errors(SERVICE):
            async for message in self._stub.DownloadAdapter(request):
                yield message.chunk

    async def report(
        self, frontend: str, address: str, reports: Sequence[Report], revision: str
    ) -> None:
        """Report the state of all adapters, and the revision whose removed ones are unloaded."""
        request = pb.ReportAdaptersRequest(
            frontend=frontend, address=address, reports=map(_report, reports), revision=revision
        )
        with translate_errors(SERVICE):
            await self._stub.ReportAdapters(request, timeout=REPORT_TIMEOUT_S)


async def _read(call: Any, silence_s: float) -> pb.WatchDesiredResponse | None:
    """The next event; None after the last one."""
    try:
        with translate_errors(SERVICE):
            async with asyncio.timeout(silence_s):
                event = await call.read()
    except TimeoutError:
        raise UpstreamUnavailable(service=SERVICE) from None
    return None if event is grpc.aio.EOF else cast(pb.WatchDesiredResponse, event)


def _next_state(state: DesiredState, event: pb.WatchDesiredResponse) -> DesiredState:
    if event.HasField("state"):
        adapters = map(_DESIRED.from_message, event.state.adapters)
        return DesiredState(event.revision, {desired.id: desired for desired in adapters})
    changed = {each.id: _DESIRED.from_message(each) for each in event.change.adapters}
    kept = {k: v for k, v in state.adapters.items() if k not in event.change.removed_ids}
    return DesiredState(event.revision, kept | changed)


def _report(report: Report) -> adapter_pb2.AdapterReport:
    return adapter_pb2.AdapterReport(
        adapter_id=report.desired.id,
        project=report.desired.project,
        sha256=report.desired.digest,
        model=report.model,
        state=report.state,
        reason=report.reason,
        problem=report.problem,
    )
