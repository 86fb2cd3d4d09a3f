"""Usage over every fault between the frontend and control."""

import asyncio
from collections import Counter
from enum import Enum, auto

from corral.control.v1 import usage_service_pb2 as pb
from hypothesis import given
from hypothesis import strategies as st

from inference_svc.usage import Counts, UsageCounter, UsageReporter
from svc_kit.errors import UpstreamUnavailable


class Fault(Enum):
    """What becomes of one sending."""

    NONE = auto()
    LOST = auto()
    """It never comes."""
    UNANSWERED = auto()
    """It comes, and its answer does not."""
    DOUBLED = auto()
    """It comes twice."""


class Control:
    """Adds reports as control does, each id once, over a bad line."""

    def __init__(self, faults: list[Fault]) -> None:
        self._faults = faults
        self._seen: set[str] = set()
        self.sums: Counter[str] = Counter()

    async def send(self, report: pb.ReportUsageRequest) -> None:
        """One sending."""
        fault = self._faults.pop(0) if self._faults else Fault.NONE
        if fault is Fault.LOST:
            raise UpstreamUnavailable(service="control")
        self._add(report)
        if fault is Fault.DOUBLED:
            self._add(report)
        if fault is Fault.UNANSWERED:
            raise UpstreamUnavailable(service="control")

    def _add(self, report: pb.ReportUsageRequest) -> None:
        if report.report_id not in self._seen:
            self._seen.add(report.report_id)
            for delta in report.deltas:
                self.sums[delta.project] += delta.counts.completion_tokens


PROJECTS = st.sampled_from(["red", "blue"])
ROUNDS = st.lists(st.lists(st.tuples(PROJECTS, st.integers(0, 9)), max_size=4), max_size=6)
"""What is used between one attempt to report and the next."""


@given(rounds=ROUNDS, faults=st.lists(st.sampled_from(Fault), max_size=8), crashes=st.booleans())
def test_nothing_is_counted_twice_and_nothing_is_lost_without_a_crash(
    rounds: list[list[tuple[str, int]]], faults: list[Fault], crashes: bool
) -> None:
    """A crash loses at most what control has not answered for."""
    control, counter = Control(list(faults)), UsageCounter()
    reporter = UsageReporter(counter, control.send)
    used: Counter[str] = Counter()
    for requests in rounds:
        for project, tokens in requests:
            counter.add(project, "demo", Counts(1, 0, 0, tokens))
            used[project] += tokens
        asyncio.run(reporter.report())
        assert control.sums <= used
    if not crashes:
        for _ in faults:
            asyncio.run(reporter.report())
        asyncio.run(reporter.report())
        assert control.sums == used
