"""What the warm-up measures in the time that it has."""

from typing import Any

import pytest

from inference_svc.engine.batch import NativeLimits, TokenBatch
from inference_svc.engine.fake import VOCABULARY_SIZE, FakeBackend
from inference_svc.llama import warmup
from tests.support.sequences import ManualClock


class _SlowBackend(FakeBackend):
    """Every decode takes a second, and half of one more for each token; until the machine is idle,
    ten seconds more."""

    def __init__(self, slots: int, idle_at: float = 0.0) -> None:
        super().__init__(NativeLimits(64, slots + 16, slots, 128, VOCABULARY_SIZE))
        self.copies_by_state = True
        self.clock = ManualClock()
        self._idle_at = idle_at

    def decode(self, batch: TokenBatch) -> None:
        """Let the time pass."""
        super().decode(batch)
        self.clock.now += 1.0 + len(batch.tokens) / 2
        self.clock.now += 10.0 if self.clock.now < self._idle_at else 0.0

    def set_threads(self, threads: int) -> None:
        """All the same."""


def _warm_up(
    monkeypatch: pytest.MonkeyPatch, slots: int, budget_s: float, idle_at: float = 0.0
) -> warmup.WarmUp:
    backend: Any = _SlowBackend(slots, idle_at)
    monkeypatch.setattr("time.monotonic", backend.clock)
    monkeypatch.setattr("time.perf_counter", backend.clock)
    return warmup.warm_up(backend, cores=1, threads=1, budget_s=budget_s)


def test_a_slow_model_has_row_times_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """One row, all of them, and of drafts the least."""
    measured = _warm_up(monkeypatch, 8, budget_s=1.0)

    assert measured.step_times == {1: 1.5, 8: 5.0}
    assert measured.token_times == {1: 1.5}


def test_whole_blocks_of_rows_come_before_what_is_left_of_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between blocks the rest can be estimated, and what fills a block must be known."""
    measured = _warm_up(monkeypatch, 16, budget_s=100.0)

    assert measured.step_times.keys() == {1, 2, 4, 8, 12, 16}


def test_rows_leave_time_for_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many row counts there are to measure."""
    measured = _warm_up(monkeypatch, 32, budget_s=300.0)

    assert 2 < len(measured.step_times) < 32
    assert measured.token_times is not None
    assert len(measured.token_times) > 2


def test_a_busy_moment_makes_no_count_look_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was measured while something else ran is measured again when it does not."""
    busy = _warm_up(monkeypatch, 4, budget_s=300.0, idle_at=60.0)

    assert busy.step_times == {1: 1.5, 2: 2.0, 3: 2.5, 4: 3.0}


class _Threads(FakeBackend):
    """A step takes as long as its number of threads says."""

    def __init__(self, seconds: dict[int, float]) -> None:
        super().__init__(NativeLimits(64, 4, 4, 128, VOCABULARY_SIZE))
        self.copies_by_state = True
        self.clock = ManualClock()
        self._seconds = seconds
        self._step_s = 0.0

    def decode(self, batch: TokenBatch) -> None:
        """Let the time pass."""
        super().decode(batch)
        self.clock.now += self._step_s

    def set_threads(self, threads: int) -> None:
        """Be as fast as these."""
        self._step_s = self._seconds[threads]


@pytest.mark.parametrize(
    ("seconds", "chosen", "reason"),
    [
        ({1: 0.2, 2: 0.1}, 2, "2.00x faster than 1"),
        ({1: 0.2, 2: 0.19}, 1, "2 are only 1.05x as fast, and the frontends need a core"),
        ({15: 0.06, 16: 0.056}, 15, "16 are only 1.07x as fast"),
        ({15: 0.002, 16: 0.001}, 15, "a step takes 2.0 ms"),
    ],
    ids=["two cores", "no gain", "many cores", "short steps"],
)
def test_threads_are_as_many_as_make_steps_faster(
    monkeypatch: pytest.MonkeyPatch, seconds: dict[int, float], chosen: int, reason: str
) -> None:
    """All but one, or all of them where that is clearly faster."""
    backend: Any = _Threads(seconds)
    monkeypatch.setattr("time.monotonic", backend.clock)
    monkeypatch.setattr("time.perf_counter", backend.clock)
    measured = warmup.warm_up(backend, cores=max(seconds), threads=None, budget_s=0.1)

    assert measured.threads == chosen
    assert measured.reason.startswith(reason)
