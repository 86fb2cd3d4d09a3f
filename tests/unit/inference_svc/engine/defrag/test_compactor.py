"""Defragmentation of the slots of running sequences."""

from typing import Any

import pytest

from inference_svc.engine.batch import NativeLimits
from inference_svc.engine.cost_model.step_time import TRIAL_INTERVAL
from inference_svc.engine.defrag.compactor import PATIENCE_STEPS
from inference_svc.engine.events import CacheSource, Moved, Started
from inference_svc.engine.kv_cache.copies import CopyCosts
from tests.support.fake_backend import VOCABULARY_SIZE, FakeBackend
from tests.support.sequences import EngineBench, expected_tokens, make_request

SLOTS = 8
# Every further row takes a little longer, every further run of rows much.
TIMES = {1: 10.0, SLOTS: 17.0}
LONG = 200
NEVER = 10**6


def make_bench(*, can_trim: bool = True, **options: Any) -> EngineBench:
    """An engine with eight slots in which each filler costs a second."""
    limits = NativeLimits(256, SLOTS, SLOTS, 512, VOCABULARY_SIZE)
    return EngineBench(
        FakeBackend(limits, end_after=NEVER, can_trim=can_trim),
        step_times=TIMES,
        chunk_cap=256,
        **options,
    )


def _prompt(i: int, tokens: int = 20) -> list[int]:
    return [65 + i] * tokens


def _leave_holes(bench: EngineBench, *, tokens: int = 20, **changes: Any) -> None:
    """Start a sequence in each slot, and end those in odd slots once all are decoding."""
    for i in range(SLOTS):
        options = {"max_tokens": LONG, "ignore_eos": True, "cache_key": b"%d" % i, **changes}
        bench.submit(make_request(i, _prompt(i, tokens), **options))
    while not all(bench.tokens(i) for i in range(SLOTS)):
        bench.step()
    for i in range(1, SLOTS, 2):
        bench.engine.cancel(i, arrived_in_step=0, step=0)


def _slots(bench: EngineBench) -> list[int]:
    return sorted(item.slot.index for item in bench.engine.running if item.slot is not None)


def _moves(bench: EngineBench) -> list[Moved]:
    return [event for event in bench.events if isinstance(event, Moved)]


@pytest.mark.parametrize("can_trim", [True, False], ids=["attention", "recurrent"])
def test_holes_that_stay_are_closed(*, can_trim: bool) -> None:
    """Sequences in the highest slots move to the lowest free ones; their output is unchanged."""
    bench = make_bench(can_trim=can_trim)
    _leave_holes(bench)
    for _ in range(PATIENCE_STEPS - 1):
        bench.step()
    assert _slots(bench) == [0, 2, 4, 6]
    bench.step()
    assert _slots(bench) == [0, 1, 2, 3]
    bench.run()

    assert _moves(bench) == [Moved(6, 1), Moved(4, 3)]
    for i in range(0, SLOTS, 2):
        assert bench.tokens(i) == expected_tokens(_prompt(i), LONG, end_after=NEVER)


def test_a_new_request_fills_a_hole_first() -> None:
    """Nothing moves if requests arrive within the patience."""
    bench = make_bench()
    _leave_holes(bench)
    bench.step()
    for i in range(1, SLOTS, 2):
        bench.submit(make_request(10 + i, [97], max_tokens=LONG, ignore_eos=True))
    bench.run()

    started = [event.slot for event in bench.events if isinstance(event, Started)]
    assert started == [*range(SLOTS), 1, 3, 5, 7]
    assert _moves(bench) == []


@pytest.mark.parametrize(
    ("stream_s", "moves"), [(1.0, 2), (30.0, 0)], ids=["cheap copies", "dear copies"]
)
def test_a_move_must_save_time(stream_s: float, moves: int) -> None:
    """Three seconds per step for 16 steps are worth two short copies, but not two long ones."""
    bench = make_bench(copy_costs=CopyCosts(stream_s, state_s=1e9))
    _leave_holes(bench)
    for _ in range(2 * PATIENCE_STEPS):
        bench.step()

    assert len(_moves(bench)) == moves


def test_a_trial_step_without_fillers_moves_nothing() -> None:
    """The benefit of moves is computed from steps with fillers."""
    bench = make_bench(copy_costs=CopyCosts(300.0, state_s=1e9))
    _leave_holes(bench)
    decoded = len(bench.backend.batches)
    bench.run()

    rows = [len(batch.slots) for batch in bench.backend.batches[decoded:]]
    assert rows.count(4) == len(rows) // TRIAL_INTERVAL > 0
    assert _moves(bench) == []


def test_long_outputs_justify_longer_moves() -> None:
    """A move that was not worth it at first is made later."""
    bench = make_bench(copy_costs=CopyCosts(30.0, state_s=1e9))
    _leave_holes(bench)
    bench.run()

    assert bench.finished(6).num_output_tokens == LONG
    assert len(_moves(bench)) == 2


def test_nothing_moves_shortly_before_the_end() -> None:
    """The remaining steps limit what a move can save."""
    bench = make_bench(copy_costs=CopyCosts(3.0, state_s=1e9))
    _leave_holes(bench, max_tokens=7)
    bench.run()

    assert _moves(bench) == []


def test_the_moves_before_a_step_are_limited() -> None:
    """Slow copies are distributed over several steps."""
    bench = make_bench(copy_costs=CopyCosts(5.0, state_s=1e9))
    _leave_holes(bench)
    for _ in range(PATIENCE_STEPS):
        bench.step()
    assert _moves(bench) == [Moved(6, 1)]
    bench.run()

    assert _moves(bench) == [Moved(6, 1), Moved(4, 3)]


def test_the_cached_prefix_of_the_target_slot_is_swapped() -> None:
    """The next turn of the ended conversation reuses it from the source slot."""
    bench = make_bench(copy_costs=CopyCosts(0.1, 0.0, 0.001))
    _leave_holes(bench, tokens=70)
    while not _moves(bench):
        bench.step()
    said = bench.tokens(1)
    bench.submit(make_request(21, [*_prompt(1, 70), *said, 97], cache_key=b"1", max_tokens=4))
    bench.run()

    (event,) = [e for e in bench.events if isinstance(e, Started) and e.sequence_id == 21]
    assert event == Started(21, 6, len(_prompt(1, 70)) + len(said) - 1, CacheSource.SLOT)
    assert bench.tokens(21) == expected_tokens([*_prompt(1, 70), *said, 97], 4, end_after=NEVER)


def test_a_failed_restore_leaves_the_sequence_in_its_slot() -> None:
    """Its output is unchanged."""
    bench = make_bench(can_trim=False)
    _leave_holes(bench)
    bench.backend.refuses_states = True
    for _ in range(3 * PATIENCE_STEPS):
        bench.step()
    assert _slots(bench) == [0, 2, 4, 6]
    bench.backend.refuses_states = False
    bench.run()

    assert bench.tokens(6) == expected_tokens(_prompt(6), LONG, end_after=NEVER)


def test_a_deterministic_sequence_does_not_move() -> None:
    """It is computed alone, so holes do not matter."""
    bench = make_bench()
    for i in (0, 1, 2):
        alone = {"deterministic": True, "reuse": False} if i == 1 else {}
        bench.submit(
            make_request(i, _prompt(i), max_tokens=30, ignore_eos=True, max_draft=0, **alone)
        )
    bench.run()

    assert _moves(bench) == []


def test_the_load_counts_moves() -> None:
    """`num_moves` counts since the start of the engine."""
    bench = make_bench()
    _leave_holes(bench)
    bench.run()

    assert bench.engine._load().num_moves == 2
