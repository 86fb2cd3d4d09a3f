"""Usage reports with faults between the inference service and the control service."""

import asyncio
from collections import Counter
from enum import Enum, auto

from corral.control.v1 import usage_service_pb2 as pb
from hypothesis import given
from hypothesis import strategies as st

from inference_svc.usage import Counts, UsageCounter, UsageKey, UsageReporter
from svc_kit.errors import UpstreamUnavailable


class Fault(Enum):
    """What happens to a report in transit."""

    NONE = auto()
    LOST = auto()
    """The report does not arrive."""
    UNANSWERED = auto()
    """The report arrives, its response does not."""
    DUPLICATED = auto()
    """The report arrives twice."""


class FakeControl:
    """Adds reports like the control service, each id once, with the given faults."""

    def __init__(self, faults: list[Fault]) -> None:
        self._faults = faults
        self._report_ids: set[str] = set()
        self.sums: Counter[str] = Counter()

    async def send(self, report: pb.ReportUsageRequest) -> None:
        """Receive a report, with the next fault."""
        fault = self._faults.pop(0) if self._faults else Fault.NONE
        if fault is Fault.LOST:
            raise UpstreamUnavailable(service="control")
        self._add(report)
        if fault is Fault.DUPLICATED:
            self._add(report)
        if fault is Fault.UNANSWERED:
            raise UpstreamUnavailable(service="control")

    def _add(self, report: pb.ReportUsageRequest) -> None:
        if report.report_id not in self._report_ids:
            self._report_ids.add(report.report_id)
            for delta in report.deltas:
                self.sums[delta.project] += delta.counts.completion_tokens


PROJECTS = st.sampled_from(["red", "blue"])
ROUNDS = st.lists(st.lists(st.tuples(PROJECTS, st.integers(0, 9)), max_size=4), max_size=6)
"""Usage between one attempt to report and the next."""


@given(rounds=ROUNDS, faults=st.lists(st.sampled_from(Fault), max_size=8), crashes=st.booleans())
def test_usage_is_never_counted_twice_and_is_complete_without_a_crash(
    rounds: list[list[tuple[str, int]]], faults: list[Fault], crashes: bool
) -> None:
    """The sums never exceed the usage, and equal it once all faults are over."""
    control, counter = FakeControl(list(faults)), UsageCounter()
    reporter = UsageReporter(counter, control.send)
    usage: Counter[str] = Counter()
    for requests in rounds:
        for project, tokens in requests:
            counter.add(UsageKey(project, "", "demo"), Counts(1, 0, 0, tokens))
            usage[project] += tokens
        asyncio.run(reporter.report())
        assert control.sums <= usage
    if not crashes:
        for _ in faults:
            asyncio.run(reporter.report())
        asyncio.run(reporter.report())
        assert control.sums == usage
