"""Watches, downloads and reports adapters over the control service's gRPC API."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import grpc.aio
from corral.control.v1 import adapter_pb2
from corral.control.v1 import adapter_service_pb2 as pb
from corral.control.v1.adapter_service_pb2_grpc import AdapterServiceStub

from inference_svc.adapter_sync.state import DesiredAdapter, DesiredState
from svc_kit.rpc.client import translate_errors
from svc_kit.rpc.message_mapper import MessageMapper

SERVICE: Final = "control"
REPORT_TIMEOUT_S: Final = 10.0
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

    def watch(self, state: DesiredState) -> AsyncIterator[DesiredState]:
        """Yield the desired state whenever it differs from `state` or the last one yielded."""

    def download(self, digest: str) -> AsyncIterator[bytes]:
        """Yield the bytes of an adapter file."""

    async def report(
        self, frontend: str, address: str, reports: Sequence[Report], revision: str
    ) -> None:
        """Report the state of all adapters, and the revision of the last desired state whose
        removed adapters are unloaded."""


class GrpcControl:
    """`Control` over a channel that carries the service token."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = AdapterServiceStub(channel)

    async def watch(self, state: DesiredState) -> AsyncIterator[DesiredState]:
        """Yield the desired state whenever it changes."""
        request = pb.WatchDesiredRequest(revision=state.revision)
        with translate_errors(SERVICE):
            async for event in self._stub.WatchDesired(request):
                state = _next_state(state, event)
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
