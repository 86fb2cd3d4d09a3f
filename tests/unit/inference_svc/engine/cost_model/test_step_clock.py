"""Histograms of step time."""

import pytest

from inference_svc.engine.cost_model.step_clock import BOUNDS_S, StepTimes
from inference_svc.engine.events import ModelLoad
from tests.support.sequences import EngineBench, make_request


def test_steps_are_counted_by_rows_and_kind() -> None:
    """Row counts share a histogram up to a power of two; a step at a bound is below it."""
    times = StepTimes()
    for rows in (1, 3, 4):
        times.observe(rows=rows, has_prompt=False, seconds=0.1)
    times.observe(rows=1, has_prompt=True, seconds=99.0)

    one, prompt, four = times.histograms()

    assert (one.max_rows, one.has_prompt, sum(one.counts)) == (1, False, 1)
    assert (prompt.max_rows, prompt.has_prompt, prompt.counts[-1]) == (1, True, 1)
    assert (four.max_rows, four.counts[BOUNDS_S.index(0.1)]) == (4, 2)
    assert four.sum_s == pytest.approx(0.2)


def test_the_engine_reports_every_step() -> None:
    """One prompt step and the decoding ones, each in its histogram."""
    bench = EngineBench()
    bench.submit(make_request(0, max_tokens=4))
    bench.run()

    last = [event for event in bench.events if isinstance(event, ModelLoad)][-1]
    assert [(steps.has_prompt, sum(steps.counts)) for steps in last.step_times] == [
        (False, 3),
        (True, 1),
    ]
