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

SERVICE: Final = "control"
REPORT_TIMEOUT_S: Final = 10.0
FETCHING: Final = "STATE_FETCHING"
LOADING: Final = "STATE_LOADING"
READY: Final = "STATE_READY"
FAILED: Final = "STATE_FAILED"


@dataclass(frozen=True, slots=True)
class Report:
    """How a wanted adapter is here; `state` is one of the proto's, `model` whose engine it is."""

    wanted: DesiredAdapter
    state: str
    model: str = ""
    reason: str = ""
    problem: str = ""


class Control(Protocol):
    """What a follower needs. Every method raises `DomainError`s, `UpstreamUnavailable` while the
    service is away."""

    def watch(self, known: DesiredState) -> AsyncIterator[DesiredState]:
        """The state that is wanted, from the one that is known on, whenever it changes."""

    def download(self, digest: str) -> AsyncIterator[bytes]:
        """The bytes of a digest."""

    async def report(self, frontend: str, address: str, reports: Sequence[Report]) -> None:
        """Report the state of all adapters."""


class GrpcControl:
    """`Control` over a channel that carries the service token."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = AdapterServiceStub(channel)

    async def watch(self, known: DesiredState) -> AsyncIterator[DesiredState]:
        """The wanted states."""
        request = pb.WatchDesiredRequest(revision=known.revision)
        with translate_errors(SERVICE):
            async for event in self._stub.WatchDesired(request):
                known = _next_state(known, event)
                yield known

    async def download(self, digest: str) -> AsyncIterator[bytes]:
        """The bytes of a digest."""
        request = pb.DownloadAdapterRequest(sha256=digest)
        with translate_errors(SERVICE):
            async for message in self._stub.DownloadAdapter(request):
                yield message.chunk

    async def report(self, frontend: str, address: str, reports: Sequence[Report]) -> None:
        """Report the state of all adapters."""
        request = pb.ReportAdaptersRequest(
            frontend=frontend, address=address, reports=map(_report, reports)
        )
        with translate_errors(SERVICE):
            await self._stub.ReportAdapters(request, timeout=REPORT_TIMEOUT_S)


def _next_state(known: DesiredState, event: pb.WatchDesiredResponse) -> DesiredState:
    if event.HasField("state"):
        adapters = map(_desired_adapter, event.state.adapters)
        return DesiredState(event.revision, {wanted.id: wanted for wanted in adapters})
    changed = {each.id: _desired_adapter(each) for each in event.change.adapters}
    kept = {k: v for k, v in known.adapters.items() if k not in event.change.removed_ids}
    return DesiredState(event.revision, kept | changed)


def _desired_adapter(desired: adapter_pb2.DesiredAdapter) -> DesiredAdapter:
    return DesiredAdapter(
        id=desired.id,
        project=desired.project,
        name=desired.name,
        model=desired.model,
        digest=desired.sha256,
        file_bytes=desired.file_bytes,
        default_scale=desired.default_scale,
        standing_scale=desired.standing_scale,
        attempt=desired.attempt,
    )


def _report(report: Report) -> adapter_pb2.AdapterReport:
    return adapter_pb2.AdapterReport(
        adapter_id=report.wanted.id,
        project=report.wanted.project,
        sha256=report.wanted.digest,
        model=report.model,
        state=report.state,
        reason=report.reason,
        problem=report.problem,
    )
