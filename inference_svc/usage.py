"""Counts tokens and requests by project and model, and reports them to the control service.

A report has an id and is sent again, unchanged, until it is acknowledged.
"""

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Final, NamedTuple

import grpc
from corral.control.v1 import usage_service_pb2 as pb
from corral.control.v1.usage_service_pb2_grpc import UsageServiceStub
from google.protobuf.timestamp_pb2 import Timestamp

from svc_kit.errors import DomainError, InvalidArgument
from svc_kit.rpc.client import translate_errors

_log = logging.getLogger(__name__)

MOST_DELTAS: Final = 1000
"""Of one report; control takes no more."""
_PATIENCE_S: Final = 5.0
_LAST_PATIENCE_S: Final = 2.0


class Counts(NamedTuple):
    """What one request used, or several."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0

    def plus(self, other: "Counts") -> "Counts":
        """The sum."""
        return Counts(*map(sum, zip(self, other, strict=True)))


RecordUsage = Callable[[str, str, Counts], None]
"""Takes what a request of a project used of a model."""


def discard_usage(project: str, model: str, counts: Counts) -> None:
    """For a service without a control service to report to."""


class UsageCounter:
    """Sums since the last report, by hour, project and model."""

    def __init__(self, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._clock = clock
        self._hours: dict[datetime, dict[tuple[str, str], Counts]] = {}

    def add(self, project: str, model: str, counts: Counts) -> None:
        """Count what a request used that ends now."""
        hour = self._clock().replace(minute=0, second=0, microsecond=0)
        sums = self._hours.setdefault(hour, {})
        sums[project, model] = sums.get((project, model), Counts()).plus(counts)

    def take(self) -> pb.ReportUsageRequest | None:
        """A new report about the first hour, which is no longer counted here; None: nothing was
        used."""
        if not self._hours:
            return None
        hour, sums = next(iter(self._hours.items()))
        taken = {place: sums.pop(place) for place in list(sums)[:MOST_DELTAS]}
        if not sums:
            del self._hours[hour]
        return _report(hour, taken)


def _report(hour: datetime, sums: Mapping[tuple[str, str], Counts]) -> pb.ReportUsageRequest:
    stamp = Timestamp()
    stamp.FromDatetime(hour)
    deltas = [
        pb.UsageDelta(
            project=project, model=model, hour=stamp, counts=pb.UsageCounts(**counts._asdict())
        )
        for (project, model), counts in sums.items()
    ]
    return pb.ReportUsageRequest(report_id=str(uuid.uuid4()), deltas=deltas)


Send = Callable[[pb.ReportUsageRequest], Awaitable[None]]
"""Sends a report to control. Raises a DomainError where control has not answered for it."""


def sender(channel: grpc.aio.Channel) -> Send:
    """Sends over a channel that shows the service token."""
    stub = UsageServiceStub(channel)

    async def send(report: pb.ReportUsageRequest) -> None:
        with translate_errors("control"):
            await stub.ReportUsage(report, timeout=_PATIENCE_S)

    return send


class UsageReporter:
    """Sends what a counter counts, one report after the other."""

    def __init__(self, counter: UsageCounter, send: Send) -> None:
        self._counter = counter
        self._send = send
        self._unanswered: pb.ReportUsageRequest | None = None

    async def run(self, interval_s: float) -> None:
        """Report now and then until cancelled."""
        while True:
            await asyncio.sleep(interval_s)
            await self.report()

    async def report(self) -> None:
        """Report everything; what control does not answer for is kept for the next time."""
        while (report := self._unanswered or self._counter.take()) is not None:
            self._unanswered = report
            try:
                await self._send(report)
            except InvalidArgument as error:
                # It will never be taken (it is days late, say), and must not hold up the others.
                _log.error("a usage report was dropped: %s", error)
            except DomainError as error:
                _log.warning("usage is not reported yet: %s", error)
                return
            self._unanswered = None

    async def report_last(self) -> None:
        """Report what is left before the process ends, if control is quick to answer."""
        try:
            async with asyncio.timeout(_LAST_PATIENCE_S):
                await self.report()
        except TimeoutError:
            _log.warning("the last usage is not reported: control does not answer")
