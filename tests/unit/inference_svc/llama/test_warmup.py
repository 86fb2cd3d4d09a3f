"""What warm-up measures within its time budget."""

from collections.abc import Callable
from typing import Any

import pytest

from inference_svc.engine.batch import NativeLimits, TokenBatch
from inference_svc.llama.warmup import WarmUp, warm_up
from tests.support.fake_backend import VOCABULARY_SIZE, FakeBackend
from tests.support.sequences import ManualClock


class _TimedBackend(FakeBackend):
    """A decode advances the clock by `seconds(tokens, threads)`."""

    def __init__(
        self, limits: NativeLimits, clock: ManualClock, seconds: Callable[[int, int], float]
    ) -> None:
        super().__init__(limits)
        self._clock = clock
        self._seconds = seconds
        self._threads = 1

    def decode(self, batch: TokenBatch) -> None:
        super().decode(batch)
        self._clock.now += self._seconds(len(batch.tokens), self._threads)

    def set_threads(self, threads: int) -> None:
        self._threads = threads


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    """The clock that warm-up reads."""
    clock = ManualClock()
    monkeypatch.setattr("time.monotonic", clock)
    monkeypatch.setattr("time.perf_counter", clock)
    return clock


def _warm_up_slow(clock: ManualClock, slots: int, budget_s: float, idle_at: float = 0.0) -> WarmUp:
    """A decode takes 1 s and 0.5 s per token, and 10 s more until `idle_at`."""

    def seconds(tokens: int, _: int) -> float:
        return 1.0 + tokens / 2 + (10.0 if clock.now < idle_at else 0.0)

    limits = NativeLimits(64, slots + 16, slots, 128, VOCABULARY_SIZE)
    backend: Any = _TimedBackend(limits, clock, seconds)
    return warm_up(backend, cores=1, threads=1, budget_s=budget_s)


def test_a_slow_model_measures_row_times_first(clock: ManualClock) -> None:
    """One row and all rows, and the shortest draft."""
    measured = _warm_up_slow(clock, 8, budget_s=1.0)

    assert measured.step_times == {1: 1.5, 8: 5.0}
    assert measured.token_times == {1: 1.5}


def test_whole_blocks_are_measured_before_other_row_counts(clock: ManualClock) -> None:
    """Times between blocks are interpolated; filling a block needs the block's own time."""
    measured = _warm_up_slow(clock, 16, budget_s=100.0)

    assert measured.step_times.keys() == {1, 2, 4, 8, 12, 16}


def test_row_times_leave_budget_for_drafts(clock: ManualClock) -> None:
    """However many row counts there are."""
    measured = _warm_up_slow(clock, 32, budget_s=300.0)

    assert 2 < len(measured.step_times) < 32
    assert measured.token_times is not None
    assert len(measured.token_times) > 2


def test_a_busy_moment_does_not_affect_the_result(clock: ManualClock) -> None:
    """Counts that were measured while the machine was busy are measured again."""
    busy = _warm_up_slow(clock, 4, budget_s=300.0, idle_at=60.0)

    assert busy.step_times == {1: 1.5, 2: 2.0, 3: 2.5, 4: 3.0}


@pytest.mark.parametrize(
    ("seconds", "threads", "reason"),
    [
        ({1: 0.2, 2: 0.1}, 2, "2.00x faster than 1"),
        ({1: 0.2, 2: 0.19}, 1, "2 are only 1.05x as fast, and the frontends need a core"),
        ({15: 0.06, 16: 0.056}, 15, "16 are only 1.07x as fast"),
        ({15: 0.002, 16: 0.001}, 15, "a step takes 2.0 ms"),
    ],
    ids=["two cores", "no gain", "many cores", "short steps"],
)
def test_the_last_core_is_used_if_steps_become_clearly_faster(
    clock: ManualClock, seconds: dict[int, float], threads: int, reason: str
) -> None:
    """Otherwise one core is left to the frontends."""
    limits = NativeLimits(64, 4, 4, 128, VOCABULARY_SIZE)
    backend: Any = _TimedBackend(limits, clock, lambda _, threads: seconds.get(threads, 0.0))
    measured = warm_up(backend, cores=max(seconds), threads=None, budget_s=0.1)

    assert measured.threads == threads
    assert measured.reason.startswith(reason)
