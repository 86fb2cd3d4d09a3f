"""Counts tokens and requests by project and model, and reports them to the control service.

A report has an id and is resent unchanged until it is acknowledged.
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

from svc_kit.errors import DomainError, InvalidArgument
from svc_kit.rpc.client import translate_errors
from svc_kit.rpc.message_mapper import encode_timestamp

_log = logging.getLogger(__name__)

MAX_DELTAS: Final = 1000
"""Maximum per report, set by the control service."""
_TIMEOUT_S: Final = 5.0
_LAST_TIMEOUT_S: Final = 2.0


class Counts(NamedTuple):
    """Usage of one or more requests."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0

    def plus(self, other: "Counts") -> "Counts":
        """Return the sum."""
        return Counts(*map(sum, zip(self, other, strict=True)))


RecordUsage = Callable[[str, str, Counts], None]
"""Records the usage of a request, by project and model."""


def discard_usage(project: str, model: str, counts: Counts) -> None:
    """Do nothing. Used without a control service."""


class UsageCounter:
    """Sums of the usage that is not reported yet, by hour, project and model."""

    def __init__(self, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._clock = clock
        self._hours: dict[datetime, dict[tuple[str, str], Counts]] = {}

    def add(self, project: str, model: str, counts: Counts) -> None:
        """Count the usage of a request that has just ended."""
        hour = self._clock().replace(minute=0, second=0, microsecond=0)
        sums = self._hours.setdefault(hour, {})
        sums[project, model] = sums.get((project, model), Counts()).plus(counts)

    def pop_report(self) -> pb.ReportUsageRequest | None:
        """Remove sums of the oldest hour and return them as a new report; None if empty."""
        if not self._hours:
            return None
        hour, sums = next(iter(self._hours.items()))
        reported = {key: sums.pop(key) for key in list(sums)[:MAX_DELTAS]}
        if not sums:
            del self._hours[hour]
        return _report(hour, reported)


def _report(hour: datetime, sums: Mapping[tuple[str, str], Counts]) -> pb.ReportUsageRequest:
    deltas = [
        pb.UsageDelta(
            project=project,
            model=model,
            hour=encode_timestamp(hour),
            counts=pb.UsageCounts(**counts._asdict()),
        )
        for (project, model), counts in sums.items()
    ]
    return pb.ReportUsageRequest(report_id=str(uuid.uuid4()), deltas=deltas)


Send = Callable[[pb.ReportUsageRequest], Awaitable[None]]
"""Sends a report to the control service. Raises a `DomainError` unless it is acknowledged."""


def make_sender(channel: grpc.aio.Channel) -> Send:
    """Return a function that sends reports over a channel with the service token."""
    stub = UsageServiceStub(channel)

    async def send(report: pb.ReportUsageRequest) -> None:
        with translate_errors("control"):
            await stub.ReportUsage(report, timeout=_TIMEOUT_S)

    return send


class UsageReporter:
    """Sends the reports of a counter, one at a time."""

    def __init__(self, counter: UsageCounter, send: Send) -> None:
        self._counter = counter
        self._send = send
        self._pending: pb.ReportUsageRequest | None = None

    async def run(self, interval_s: float) -> None:
        """Report at an interval until cancelled."""
        while True:
            await asyncio.sleep(interval_s)
            await self.report()

    async def report(self) -> None:
        """Report all usage. A report that is not acknowledged is resent the next time."""
        while (report := self._pending or self._counter.pop_report()) is not None:
            self._pending = report
            try:
                await self._send(report)
            except InvalidArgument as error:
                # It will never be accepted (for example because it is days late): do not resend it.
                _log.error("a usage report was dropped: %s", error)
            except DomainError as error:
                _log.warning("usage cannot be reported now: %s", error)
                return
            self._pending = None

    async def report_last(self) -> None:
        """Report the remaining usage before the process ends, with a short timeout."""
        try:
            async with asyncio.timeout(_LAST_TIMEOUT_S):
                await self.report()
        except TimeoutError:
            _log.warning("the last usage was not reported: the control service does not answer")
