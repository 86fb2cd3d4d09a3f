"""Usage, from where requests end to what control is told."""

import asyncio
from datetime import UTC, datetime, timedelta

from corral.control.v1 import usage_service_pb2 as pb

from inference_svc.usage import MAX_DELTAS, Counts, UsageCounter, UsageReporter
from svc_kit.errors import DomainError, InvalidField, UpstreamUnavailable

NOON = datetime(2026, 11, 20, 12, 30, tzinfo=UTC)


class Control:
    """Keeps reports; `failures` are raised first, after the report has come or before."""

    def __init__(self) -> None:
        self.sent: list[pb.ReportUsageRequest] = []
        self.failures: list[DomainError] = []
        self.came = asyncio.Event()

    async def send(self, report: pb.ReportUsageRequest) -> None:
        """One attempt."""
        self.sent.append(report)
        self.came.set()
        if self.failures:
            raise self.failures.pop(0)


class EngineBench:
    """A counter with a clock that is set, and its reporter."""

    def __init__(self) -> None:
        self.now = NOON
        self.control = Control()
        self.counter = UsageCounter(lambda: self.now)
        self.reporter = UsageReporter(self.counter, self.control.send)


def told(report: pb.ReportUsageRequest) -> dict[tuple[str, str], tuple[int, ...]]:
    """What a report says, by project and model."""
    return {
        (delta.project, delta.model): (
            delta.counts.requests,
            delta.counts.prompt_tokens,
            delta.counts.cached_tokens,
            delta.counts.completion_tokens,
        )
        for delta in report.deltas
    }


async def test_requests_are_added_up_by_project_and_model() -> None:
    """One report holds them; with nothing new there is none."""
    bench = EngineBench()
    bench.counter.add("red", "demo", Counts(1, 10, 4, 7))
    bench.counter.add("red", "demo", Counts(1, 5, 0, 1))
    bench.counter.add("blue", "demo", Counts(1, 1))
    await bench.reporter.report()
    await bench.reporter.report()

    (report,) = bench.control.sent
    assert told(report) == {("red", "demo"): (2, 15, 4, 8), ("blue", "demo"): (1, 1, 0, 0)}
    assert report.deltas[0].hour.ToDatetime(UTC) == datetime(2026, 11, 20, 12, tzinfo=UTC)


async def test_a_report_without_an_answer_is_sent_again_as_it_was() -> None:
    """Under its own id, so that control adds it once; what came since is a report of its own."""
    bench = EngineBench()
    bench.control.failures = [UpstreamUnavailable(service="control")] * 2
    bench.counter.add("red", "demo", Counts(1, 10))
    await bench.reporter.report()
    bench.counter.add("red", "demo", Counts(1, 3))
    await bench.reporter.report()
    await bench.reporter.report()

    first, second, third, new = bench.control.sent
    assert first == second == third
    assert new.report_id != first.report_id
    assert told(new) == {("red", "demo"): (1, 3, 0, 0)}


async def test_a_report_that_will_never_be_taken_holds_up_no_other() -> None:
    """Days late, say: its hour is lost, those after it are not."""
    bench = EngineBench()
    bench.control.failures = [InvalidField(field="deltas[0].hour", problem="it is too old")]
    bench.counter.add("red", "demo", Counts(1, 10))
    bench.now += timedelta(days=3)
    bench.counter.add("red", "demo", Counts(1, 3))
    await bench.reporter.report()

    assert [told(report) for report in bench.control.sent] == [
        {("red", "demo"): (1, 10, 0, 0)},
        {("red", "demo"): (1, 3, 0, 0)},
    ]


async def test_many_projects_take_several_reports() -> None:
    """Control bounds one; nothing is left over and nothing is told twice."""
    bench = EngineBench()
    for number in range(MAX_DELTAS + 5):
        bench.counter.add(f"p{number}", "demo", Counts(1, 1))
    await bench.reporter.report()

    assert [len(report.deltas) for report in bench.control.sent] == [MAX_DELTAS, 5]
    assert len({place for report in bench.control.sent for place in told(report)}) == 1005


async def test_reports_go_out_by_themselves_until_the_end() -> None:
    """And what is left goes out at the end."""
    bench = EngineBench()
    reporting = asyncio.create_task(bench.reporter.run(0.001))
    bench.counter.add("red", "demo", Counts(1, 1))
    await bench.control.came.wait()
    reporting.cancel()
    bench.counter.add("red", "demo", Counts(1, 2))
    await bench.reporter.report_last()

    assert [told(report) for report in bench.control.sent] == [
        {("red", "demo"): (1, 1, 0, 0)},
        {("red", "demo"): (1, 2, 0, 0)},
    ]
