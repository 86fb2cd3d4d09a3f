"""What warm-up measures within its time budget."""

from collections.abc import Callable
from typing import Any

import pytest

from inference_svc.engine.batch import NativeLimits, TokenBatch
from inference_svc.engine.fake import VOCABULARY_SIZE, FakeBackend
from inference_svc.llama.warmup import WarmUp, warm_up
from tests.support.sequences import ManualClock


class _TimedBackend(FakeBackend):
    """A decode advances the clock by `seconds(tokens, threads, now)`."""

    def __init__(self, limits: NativeLimits, seconds: Callable[[int, int, float], float]) -> None:
        super().__init__(limits)
        self.copies_by_state = True
        self.clock = ManualClock()
        self._seconds = seconds
        self._threads = 1

    def decode(self, batch: TokenBatch) -> None:
        """Advance the clock."""
        super().decode(batch)
        self.clock.now += self._seconds(len(batch.tokens), self._threads, self.clock.now)

    def set_threads(self, threads: int) -> None:
        """Set the number of threads."""
        self._threads = threads


def _warm_up(monkeypatch: pytest.MonkeyPatch, backend: Any, **options: Any) -> WarmUp:
    monkeypatch.setattr("time.monotonic", backend.clock)
    monkeypatch.setattr("time.perf_counter", backend.clock)
    return warm_up(backend, **options)


def _warm_up_slow(
    monkeypatch: pytest.MonkeyPatch, slots: int, budget_s: float, idle_at: float = 0.0
) -> WarmUp:
    """A decode takes 1 s and 0.5 s per token, and 10 s more until `idle_at`."""

    def seconds(tokens: int, _: int, now: float) -> float:
        return 1.0 + tokens / 2 + (10.0 if now < idle_at else 0.0)

    backend = _TimedBackend(NativeLimits(64, slots + 16, slots, 128, VOCABULARY_SIZE), seconds)
    return _warm_up(monkeypatch, backend, cores=1, threads=1, budget_s=budget_s)


def test_a_slow_model_measures_row_times_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """One row and all rows, and the shortest draft."""
    measured = _warm_up_slow(monkeypatch, 8, budget_s=1.0)

    assert measured.step_times == {1: 1.5, 8: 5.0}
    assert measured.token_times == {1: 1.5}


def test_whole_blocks_are_measured_before_other_row_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Times between blocks are interpolated; filling a block needs the block's own time."""
    measured = _warm_up_slow(monkeypatch, 16, budget_s=100.0)

    assert measured.step_times.keys() == {1, 2, 4, 8, 12, 16}


def test_row_times_leave_budget_for_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many row counts there are."""
    measured = _warm_up_slow(monkeypatch, 32, budget_s=300.0)

    assert 2 < len(measured.step_times) < 32
    assert measured.token_times is not None
    assert len(measured.token_times) > 2


def test_a_busy_moment_does_not_affect_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts that were measured while the machine was busy are measured again."""
    busy = _warm_up_slow(monkeypatch, 4, budget_s=300.0, idle_at=60.0)

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
    monkeypatch: pytest.MonkeyPatch, seconds: dict[int, float], threads: int, reason: str
) -> None:
    """Otherwise one core is left to the frontends."""
    limits = NativeLimits(64, 4, 4, 128, VOCABULARY_SIZE)
    backend = _TimedBackend(limits, lambda _, threads, __: seconds.get(threads, 0.0))
    measured = _warm_up(monkeypatch, backend, cores=max(seconds), threads=None, budget_s=0.1)

    assert measured.threads == threads
    assert measured.reason.startswith(reason)
