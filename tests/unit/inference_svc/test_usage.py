"""Tests of counting and reporting usage."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

from corral.control.v1 import usage_service_pb2 as pb

from inference_svc.usage import MAX_DELTAS, Counts, UsageCounter, UsageKey, UsageReporter
from svc_kit.errors import DomainError, InvalidField, UpstreamUnavailable

NOON = datetime(2026, 11, 20, 12, 30, tzinfo=UTC)


class Control:
    """Records reports; raises `failures` first."""

    def __init__(self) -> None:
        self.sent: list[pb.ReportUsageRequest] = []
        self.failures: list[DomainError] = []
        self.received = asyncio.Event()

    async def send(self, report: pb.ReportUsageRequest) -> None:
        self.sent.append(report)
        self.received.set()
        if self.failures:
            raise self.failures.pop(0)


class UsageHarness:
    """A counter with a manual clock, and its reporter."""

    def __init__(self, folder: Path | None = None) -> None:
        self.now = NOON
        self.reported: list[tuple[UsageKey, Counts]] = []
        self.control = Control()
        self.counter = UsageCounter(folder, lambda: self.now)
        self.reporter = UsageReporter(
            self.counter, self.control.send, lambda *each: self.reported.append(each)
        )


def totals(report: pb.ReportUsageRequest) -> dict[tuple[str, str], tuple[int, ...]]:
    return {
        (delta.project, delta.model): (
            delta.counts.requests,
            delta.counts.prompt_tokens,
            delta.counts.cached_tokens,
            delta.counts.completion_tokens,
        )
        for delta in report.deltas
    }


async def test_requests_are_summed_by_project_and_model() -> None:
    """In one report; without new usage none is sent."""
    harness = UsageHarness()
    harness.counter.add(UsageKey("red", "key_1", "demo"), Counts(1, 10, 4, 7))
    harness.counter.add(UsageKey("red", "key_1", "demo"), Counts(1, 5, 0, 1))
    harness.counter.add(UsageKey("blue", "key_1", "demo"), Counts(1, 1))
    await harness.reporter.report()
    await harness.reporter.report()

    (report,) = harness.control.sent
    assert totals(report) == {("red", "demo"): (2, 15, 4, 8), ("blue", "demo"): (1, 1, 0, 0)}
    assert report.deltas[0].hour.ToDatetime(UTC) == datetime(2026, 11, 20, 12, tzinfo=UTC)


async def test_an_unacknowledged_report_is_resent_unchanged() -> None:
    """With its id, so that it is counted once; later usage is a new report."""
    harness = UsageHarness()
    harness.control.failures = [UpstreamUnavailable(service="control")] * 2
    harness.counter.add(UsageKey("red", "key_1", "demo"), Counts(1, 10))
    await harness.reporter.report()
    harness.counter.add(UsageKey("red", "key_1", "demo"), Counts(1, 3))
    await harness.reporter.report()
    await harness.reporter.report()

    first, second, third, new = harness.control.sent
    assert first == second == third
    assert new.report_id != first.report_id
    assert totals(new) == {("red", "demo"): (1, 3, 0, 0)}


async def test_a_rejected_report_does_not_block_later_ones() -> None:
    """Its usage is lost, which is logged."""
    harness = UsageHarness()
    harness.control.failures = [InvalidField(field="deltas[0].hour", problem="it is too old")]
    harness.counter.add(UsageKey("red", "key_1", "demo"), Counts(1, 10))
    harness.now += timedelta(days=3)
    harness.counter.add(UsageKey("red", "key_1", "demo"), Counts(1, 3))
    await harness.reporter.report()

    assert [totals(report) for report in harness.control.sent] == [
        {("red", "demo"): (1, 10, 0, 0)},
        {("red", "demo"): (1, 3, 0, 0)},
    ]


async def test_usage_of_many_projects_is_split_into_several_reports() -> None:
    """All of it is reported once."""
    harness = UsageHarness()
    for number in range(MAX_DELTAS + 5):
        harness.counter.add(UsageKey(f"p{number}", "key_1", "demo"), Counts(1, 1))
    await harness.reporter.report()

    assert [len(report.deltas) for report in harness.control.sent] == [MAX_DELTAS, 5]
    assert len({key for report in harness.control.sent for key in totals(report)}) == 1005


async def test_usage_is_reported_at_an_interval_and_at_the_end() -> None:
    """The last report has the remaining usage."""
    harness = UsageHarness()
    reporting = asyncio.create_task(harness.reporter.run(0.001))
    harness.counter.add(UsageKey("red", "key_1", "demo"), Counts(1, 1))
    await harness.control.received.wait()
    reporting.cancel()
    harness.counter.add(UsageKey("red", "key_1", "demo"), Counts(1, 2))
    await harness.reporter.report_last()

    assert [totals(report) for report in harness.control.sent] == [
        {("red", "demo"): (1, 1, 0, 0)},
        {("red", "demo"): (1, 2, 0, 0)},
    ]


def test_usage_survives_the_process(tmp_path: Path) -> None:
    """The next process sends the same reports, also one that was sent and not acknowledged; a
    process that lives keeps its own."""
    killed = UsageHarness(tmp_path)
    killed.counter.add(UsageKey("red", "key_1", "demo"), Counts(1, 10, 4, 7))
    killed.counter.add(UsageKey("red", "key_1", "demo"), Counts(1, 1))
    killed.control.failures = [UpstreamUnavailable(service="control")]
    asyncio.run(killed.reporter.report())
    killed.counter.add(UsageKey("red", "key_2", "demo"), Counts(1, 5))
    beside = UsageHarness(tmp_path)
    asyncio.run(beside.reporter.report())
    killed.counter.close()
    for path in tmp_path.iterdir():
        path.write_bytes(path.read_bytes() + b"[17")  # killed while it wrote
    harness = UsageHarness(tmp_path)
    asyncio.run(harness.reporter.report())

    assert beside.control.sent == []
    assert killed.control.sent[0] in harness.control.sent
    assert sorted(map(totals, harness.control.sent), key=str) == [
        {("red", "demo"): (1, 5, 0, 0)},
        {("red", "demo"): (2, 11, 4, 7)},
    ]
    assert sorted(harness.reported)[0] == (UsageKey("red", "key_1", "demo"), Counts(2, 11, 4, 7))
    assert list(tmp_path.iterdir()) == []


async def test_usage_is_synced_to_the_disk_while_it_cannot_be_reported(tmp_path: Path) -> None:
    """All of it, whenever a report fails; what is reported is not synced."""
    synced: list[set[str]] = []
    harness = UsageHarness()
    counter = UsageCounter(tmp_path, fsync=lambda file: synced.append({Path(file.name).name}))
    reporter = UsageReporter(counter, harness.control.send)
    counter.add(UsageKey("red", "key_1", "demo"), Counts(1, 10, 4, 7))
    await reporter.report()
    assert synced == []
    harness.control.failures = [UpstreamUnavailable(service="control")] * 2
    for _ in range(2):
        counter.add(UsageKey("red", "key_1", "demo"), Counts(1, 10, 4, 7))
        await reporter.report()
    counter.close()

    assert [len(names) for names in synced] == [1, 1, 1]
    assert len(set.union(*synced)) == 2
