"""Filler rows of an engine whose steps correct wrong measurements."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from inference_svc.engine.batch import NativeLimits, TokenBatch
from inference_svc.engine.cost_model.step_time import TRIAL_INTERVAL
from inference_svc.engine.request import NO_ADAPTERS, AdapterStack, AppliedAdapter
from tests.support.fake_backend import VOCABULARY_SIZE, FakeBackend
from tests.support.sequences import EngineBench, ManualClock, make_request

STACK: AdapterStack = (AppliedAdapter("a", 1.0),)


class _Timed(FakeBackend):
    """A backend whose step takes `seconds` by rows, three times as long with adapters."""

    def __init__(self, slots: int, seconds: Mapping[int, float]) -> None:
        super().__init__(NativeLimits(64, slots, slots, 4096, VOCABULARY_SIZE), end_after=10**6)
        self.clock = ManualClock()
        self._seconds = seconds

    def decode(self, batch: TokenBatch) -> None:
        super().decode(batch)
        rows = len(set(batch.slots.tolist()))
        self.clock.now += self._seconds[rows] * (3 if self.stacks[-1] else 1)


def _bench(backend: _Timed, measured: dict[int, float]) -> EngineBench:
    bench = EngineBench(backend, step_times=measured, adapter_wait_s=1.0)
    backend.clock = bench.clock
    bench.engine.adapters.load("a", Path("a.gguf"))
    return bench


def _decode(bench: EngineBench, steps: int) -> Counter[tuple[AdapterStack, int]]:
    before = len(bench.backend.batches)
    for _ in range(steps):
        bench.step()
    decoded = zip(bench.backend.stacks[before:], bench.backend.batches[before:], strict=True)
    return Counter((stack, len(batch.slots)) for stack, batch in decoded)


def test_fillers_that_turn_out_to_be_faster_are_used() -> None:
    """Three rows were measured as faster."""
    true = {1: 10.0, 2: 20.0, 3: 26.0, 4: 20.0}
    bench = _bench(_Timed(4, true), true | {4: 27.0})
    bench.submit(*(make_request(i, max_tokens=4000) for i in range(3)))
    first = _decode(bench, TRIAL_INTERVAL)
    _decode(bench, 4 * TRIAL_INTERVAL)
    last = _decode(bench, TRIAL_INTERVAL)

    assert first[NO_ADAPTERS, 3] > TRIAL_INTERVAL / 2
    assert last[NO_ADAPTERS, 4] == TRIAL_INTERVAL - 1


def test_the_cost_of_adapters_is_not_attributed_to_rows() -> None:
    """Three rows with an adapter take longer than four without, but are not filled."""
    times = {1: 10.0, 2: 20.0, 3: 30.0, 4: 47.0, 7: 80.0, 8: 81.0}
    bench = _bench(_Timed(8, times), times)
    bench.submit(*(make_request(i, max_tokens=4000) for i in range(4)))
    bench.submit(*(make_request(i, max_tokens=4000, adapters=STACK) for i in range(4, 7)))
    _decode(bench, 20)

    assert _decode(bench, 200).keys() == {(NO_ADAPTERS, 4), (STACK, 3)}
