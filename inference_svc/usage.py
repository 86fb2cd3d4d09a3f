"""Counts tokens and requests by project, key and model, and reports them to the control service.

What a request has used is counted, and appended to a journal, before its caller is told. A report
is one file of the journal, which is deleted when the report is acknowledged. A report has the id of
its file and never changes, so a process that was killed is followed by one that sends the same
reports, and each is added once. The journal is synced to the disk if a report cannot be sent.
"""

import asyncio
import fcntl
import json
import logging
import os
import re
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Final, NamedTuple

from corral.control.v1 import usage_service_pb2 as pb

from inference_svc.delivery import Reporter
from svc_kit.local_files import UUID, own_files
from svc_kit.logs import OutageLevel
from svc_kit.rpc.message_mapper import encode_timestamp

_log = logging.getLogger(__name__)

MAX_DELTAS: Final = 1000
"""Maximum per report, set by the control service."""
_SUFFIX: Final = ".jsonl"
_FILE: Final = re.compile(rf"{UUID}\{_SUFFIX}")
"""What has another name is not ours: it is neither reported nor deleted."""


class Counts(NamedTuple):
    """Usage of one or more requests."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0

    def plus(self, other: "Counts") -> "Counts":
        return Counts(*map(sum, zip(self, other, strict=True)))


class UsageKey(NamedTuple):
    """Whose usage of which model or adapter; `key` is the id of an API key."""

    project: str
    key: str
    model: str


RecordUsage = Callable[[UsageKey, Counts], None]
"""Records the usage of a request."""


def discard_usage(key: UsageKey, counts: Counts) -> None:
    """Do nothing. Used without a control service."""


class UsageReport:
    """The usage of some time: sums by hour and key, and the file of the journal with them."""

    def __init__(self, report_id: str, path: Path | None = None, file: IO[bytes] | None = None):
        """Without a file the sums are in memory alone."""
        self.id = report_id
        self.sums: dict[tuple[datetime, UsageKey], Counts] = {}
        self._path = path
        self.file = file

    @classmethod
    def create(cls, folder: Path | None) -> "UsageReport":
        """Begin a report, and its file in `folder`, which stays locked while the process lives."""
        report_id = str(uuid.uuid4())
        if folder is None:
            return cls(report_id)
        path = folder / f"{report_id}{_SUFFIX}"
        try:
            file = path.open("xb", buffering=0)
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            _log.error("usage is not protected against a crash: %s", error)
            return cls(report_id)
        return cls(report_id, path, file)

    @classmethod
    def read(cls, path: Path) -> "UsageReport | None":
        """Read the file of a process that is gone; None if the process lives."""
        file = path.open("rb")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return None
        report = cls(path.stem, path, file)
        for line in file:
            if line.endswith(b"\n"):  # else the process was killed in between
                hour, key, counts = json.loads(line)
                report._sum(datetime.fromtimestamp(hour, UTC), UsageKey(*key), Counts(*counts))
        return report

    def add(self, hour: datetime, key: UsageKey, counts: Counts) -> None:
        """Add the usage of a request, and append it to the file."""
        self._sum(hour, key, counts)
        if self.file is None:
            return
        line = json.dumps([int(hour.timestamp()), key, counts], separators=(",", ":"))
        try:
            self.file.write(f"{line}\n".encode())
        except OSError as error:
            _log.error("usage is not protected against a crash: %s", error)

    def delete(self) -> None:
        if self._path is not None:
            with suppress(OSError):
                self._path.unlink()
        self.close()

    def close(self) -> None:
        if self.file is not None:
            self.file.close()

    def to_message(self) -> pb.ReportUsageRequest:
        deltas = [
            pb.UsageDelta(
                **key._asdict(),
                hour=encode_timestamp(hour),
                counts=pb.UsageCounts(**counts._asdict()),
            )
            for (hour, key), counts in self.sums.items()
        ]
        return pb.ReportUsageRequest(report_id=self.id, deltas=deltas)

    def _sum(self, hour: datetime, key: UsageKey, counts: Counts) -> None:
        self.sums[hour, key] = self.sums.get((hour, key), Counts()).plus(counts)


class UsageCounter:
    """The usage that is not reported yet."""

    def __init__(
        self,
        folder: Path | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        fsync: Callable[[IO[bytes]], None] = os.fsync,
    ) -> None:
        """`folder` has the journal; what earlier processes left there is reported first. Raises
        OSError. Without a folder, usage is lost with the process.
        """
        self._folder = folder
        self._clock = clock
        self._fsync = fsync
        self._closed: list[UsageReport] = []
        self._open: UsageReport | None = None
        self._hour: datetime | None = None
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            left = map(UsageReport.read, own_files(folder, _FILE))
            self._closed = [report for report in left if report is not None]

    def add(self, key: UsageKey, counts: Counts) -> None:
        """Count the usage of a request that has just ended."""
        hour = self._clock().replace(minute=0, second=0, microsecond=0)
        if hour != self._hour:  # a report that is refused loses one hour
            self._close()
            self._hour = hour
        if self._open is None:
            self._open = UsageReport.create(self._folder)
        self._open.add(hour, key, counts)
        if len(self._open.sums) >= MAX_DELTAS:
            self._close()

    def oldest_report(self) -> UsageReport | None:
        """Return the oldest report, which does not change any more; None if there is no usage."""
        if not self._closed:
            self._close()
        return self._closed[0] if self._closed else None

    def remove(self, report: UsageReport) -> None:
        """Forget a report, and delete its file."""
        self._closed.remove(report)
        report.delete()

    def sync(self) -> None:
        """Write the journal to the disk."""
        for report in (*self._closed, self._open):
            if report is not None and report.file is not None:
                self._fsync(report.file)

    def close(self) -> None:
        """Close the files; the next process reports what is in them."""
        self._close()
        for report in self._closed:
            report.close()

    def _close(self) -> None:
        if self._open is not None:
            self._closed.append(self._open)
            self._open = None


Send = Callable[[pb.ReportUsageRequest], Awaitable[object]]
"""Sends a report to the control service. Raises a `DomainError` unless it is acknowledged."""


class UsageReporter(Reporter[pb.ReportUsageRequest]):
    """Sends the reports of a counter."""

    content = "usage"

    def __init__(
        self,
        counter: UsageCounter,
        send: Send,
        on_reported: Callable[[UsageKey, Counts], None] = discard_usage,
        outage_level: OutageLevel | None = None,
    ) -> None:
        """`on_reported` is called with each sum of a report that the control service has added."""
        super().__init__(send, outage_level)
        self._counter = counter
        self._on_reported = on_reported

    async def _requests(self) -> AsyncGenerator[pb.ReportUsageRequest, None]:
        while (report := self._counter.oldest_report()) is not None:
            if report.sums:  # else of a process that was killed before its first request
                yield report.to_message()
            self._counter.remove(report)
            for (_, key), counts in report.sums.items():
                self._on_reported(key, counts)

    async def _on_outage(self) -> None:
        await asyncio.to_thread(self._counter.sync)
