"""Adapters in the step loop: stacks, turns, snapshots, fillers."""

from itertools import pairwise
from pathlib import Path

import pytest

from inference_svc.engine.batch import NativeLimits
from inference_svc.engine.events import AdapterLoadDone
from inference_svc.engine.kv_cache.origin import prefix_origin
from inference_svc.engine.request import NO_ADAPTERS, AdapterStack, AppliedAdapter, adapter_stack
from svc_kit.auth.principal import Priority
from svc_kit.errors import AdapterNotFound
from tests.support.fake_backend import FAILING_ADAPTER, FakeBackend
from tests.support.sequences import EngineBench, make_request

FILE = Path("a.gguf")
A, B = ((AppliedAdapter(digest, 1.0),) for digest in "ab")


def make_bench(max_wait_s: float, *, slots: int = 4) -> EngineBench:
    """An engine with the adapters "a" and "b"; every decode takes a second."""
    bench = EngineBench(
        FakeBackend(NativeLimits(64, slots, slots, 128, 257), end_after=10**6),
        adapter_wait_s=max_wait_s,
    )
    for digest in "ab":
        assert bench.engine.adapters.load(digest, FILE) == AdapterLoadDone(digest)
    return bench


def steps(bench: EngineBench, count: int) -> list[AdapterStack]:
    """Run `count` steps of one second each; return the stacks of their decodes."""
    before = len(bench.backend.stacks)
    for _ in range(count):
        bench.clock.now += 1
        bench.step()
    return bench.backend.stacks[before:]


# --- stacks ---------------------------------------------------------------------------------------


def test_a_stack_is_normalized() -> None:
    """Adapters are sorted, scales of the same adapter are added, and scale 0 is dropped."""
    a, b = AppliedAdapter("a", 0.5), AppliedAdapter("b", 1.0)

    assert adapter_stack([b, a]) == adapter_stack([a, b]) == (a, b)
    assert adapter_stack([a, a]) == (AppliedAdapter("a", 1.0),)
    assert adapter_stack([a, AppliedAdapter("a", -0.5)]) == adapter_stack([]) == NO_ADAPTERS


# --- turns ----------------------------------------------------------------------------------------


def test_one_stack_alone_is_never_interrupted() -> None:
    """All its sequences are in every decode."""
    bench = make_bench(2.0)
    bench.submit(*(make_request(i, adapters=A) for i in range(3)))

    assert steps(bench, 5) == [A] * 5
    assert all(len(set(batch.slots)) == 3 for batch in bench.backend.batches)


def test_two_stacks_take_turns_of_the_maximum_wait() -> None:
    """Each turn is two steps of one second."""
    bench = make_bench(2.0)
    bench.submit(make_request(0, max_tokens=50), make_request(1, adapters=A, max_tokens=50))

    assert steps(bench, 8) == [NO_ADAPTERS, NO_ADAPTERS, A, A, NO_ADAPTERS, NO_ADAPTERS, A, A]


def test_an_overtaken_stack_is_next_even_if_its_priority_has_fallen() -> None:
    """Its sequence of the highest priority is paused while two overdue stacks wait."""
    bench = make_bench(1.0)
    bench.submit(make_request(0, adapters=A, max_tokens=50, priority=Priority.INTERACTIVE))
    bench.submit(make_request(1, adapters=A, max_tokens=50, priority=Priority.NORMAL))
    bench.submit(make_request(2, adapters=B, max_tokens=50, priority=Priority.NORMAL))
    bench.submit(make_request(3, max_tokens=50, priority=Priority.BATCH))
    while bench.backend.stacks[-1:] != [B]:
        steps(bench, 1)
    bench.engine.pause(0, paused=True)

    assert steps(bench, 1) == [A]


def test_the_more_stacks_wait_the_shorter_the_turns() -> None:
    """Three stacks share the same maximum wait."""
    bench = make_bench(4.0)
    for i, stack in enumerate((NO_ADAPTERS, A, B)):
        bench.submit(make_request(i, adapters=stack, max_tokens=50))

    assert steps(bench, 9) == [NO_ADAPTERS, NO_ADAPTERS, A, A, B, B, NO_ADAPTERS, NO_ADAPTERS, A]


def test_with_a_maximum_wait_of_0_the_stack_changes_every_step() -> None:
    """The fairest and slowest setting."""
    bench = make_bench(0.0)
    bench.submit(make_request(0, max_tokens=50), make_request(1, adapters=A, max_tokens=50))

    assert steps(bench, 4) == [NO_ADAPTERS, A, NO_ADAPTERS, A]


def test_a_turn_ends_when_its_stack_has_nothing_to_compute() -> None:
    """If its sequences are paused or have ended, the next stack starts at once."""
    bench = make_bench(100.0)
    bench.submit(make_request(0, max_tokens=50), make_request(1, adapters=A, max_tokens=50))
    first = steps(bench, 2)
    bench.engine.pause(0, paused=True)
    second = steps(bench, 2)
    bench.engine.pause(0, paused=False)
    bench.engine.cancel(1, arrived_in_step=0, step=0)

    assert (first, second, steps(bench, 2)) == ([NO_ADAPTERS] * 2, [A] * 2, [NO_ADAPTERS] * 2)


def test_a_higher_priority_does_not_wait_for_turns_of_batch_work() -> None:
    """It is next at once and continues, except for single steps of overdue stacks."""
    bench = make_bench(3.0)
    for i, stack in enumerate((NO_ADAPTERS, B)):
        bench.submit(make_request(i, adapters=stack, max_tokens=50, priority=Priority.BATCH))
    before = steps(bench, 2)
    bench.submit(make_request(2, adapters=A, max_tokens=50, priority=Priority.INTERACTIVE))

    assert before == [NO_ADAPTERS, NO_ADAPTERS]
    assert steps(bench, 8) == [A, B, A, NO_ADAPTERS, A, B, A, NO_ADAPTERS]


def test_stacks_of_equal_priority_take_turns_beside_a_lower_one() -> None:
    """The lower one has single steps between their turns."""
    bench = make_bench(2.0)
    for i, stack in enumerate((A, B)):
        bench.submit(make_request(i, adapters=stack, max_tokens=50, priority=Priority.INTERACTIVE))
    bench.submit(make_request(2, max_tokens=50, priority=Priority.BATCH))

    assert steps(bench, 8) == [A, A, NO_ADAPTERS, B, A, NO_ADAPTERS, B, A]


def test_steps_of_lower_priorities_are_never_consecutive() -> None:
    """With three classes, too: batch work does not follow a step of normal work."""
    bench = make_bench(1.0)
    for i, stack in enumerate((NO_ADAPTERS, A, B)):
        bench.submit(make_request(i, adapters=stack, max_tokens=50, priority=1 + i))
    made = steps(bench, 12)

    assert {NO_ADAPTERS, A, B} == set(made)
    assert all(B in pair for pair in pairwise(made))


def test_a_stack_has_the_highest_priority_of_its_sequences() -> None:
    """Batch work with the same adapters is part of the same decode calls."""
    bench = make_bench(100.0)
    bench.submit(make_request(0, max_tokens=50, priority=Priority.NORMAL))
    bench.submit(make_request(1, adapters=A, max_tokens=50, priority=Priority.BATCH))
    before = steps(bench, 2)
    bench.submit(make_request(2, adapters=A, max_tokens=50, priority=Priority.INTERACTIVE))

    assert (set(before), set(steps(bench, 3))) == ({NO_ADAPTERS}, {A})
    assert len(set(bench.backend.batches[-1].slots.tolist())) == 2


# --- what is computed with what -------------------------------------------------------------------


def test_stacks_in_one_engine_have_the_same_output_as_alone() -> None:
    """They share the slots, and their outputs differ."""
    stacks = [NO_ADAPTERS, A, B, (*A, *B), (AppliedAdapter("a", 0.5),)]
    alone = []
    for stack in stacks:
        bench = make_bench(1.0)
        bench.submit(make_request(0, adapters=stack))
        bench.run()
        alone.append(bench.tokens(0))
    together = make_bench(1.0)
    together.submit(*(make_request(i, adapters=stack) for i, stack in enumerate(stacks)))
    together.run()

    assert [together.tokens(i) for i in range(len(stacks))] == alone
    assert len({tuple(tokens) for tokens in alone}) == len(stacks)


def test_a_failed_decode_is_isolated_within_its_stack() -> None:
    """The halves of a failed batch are computed with the same adapters."""
    bench = make_bench(0.0)
    bench.backend._fails = lambda batch: int(len(set(batch.slots.tolist())) > 1)
    bench.submit(
        *(
            make_request(i, adapters=stack)
            for i, stack in enumerate((A, NO_ADAPTERS, A, NO_ADAPTERS))
        )
    )
    bench.run()
    alone = make_bench(0.0)
    alone.submit(make_request(0, adapters=A))
    alone.run()

    assert bench.tokens(0) == bench.tokens(2) == alone.tokens(0)


# --- loading --------------------------------------------------------------------------------------


def test_a_loaded_adapter_is_not_loaded_again() -> None:
    """The result is the same whatever the path."""
    bench = make_bench(1.0)

    assert bench.engine.adapters.load("a", FAILING_ADAPTER) == AdapterLoadDone("a")


def test_a_file_that_cannot_be_loaded_is_reported() -> None:
    """With the error of the backend."""
    bench = make_bench(1.0)

    assert bench.engine.adapters.load("c", FAILING_ADAPTER) == AdapterLoadDone("c", "asked to")


def test_a_snapshot_records_the_adapters_of_its_cells() -> None:
    """It cannot be used unless they are loaded."""
    bench = make_bench(1.0)
    bench.submit(make_request(0, adapters=A, request_id="r"))
    bench.step()
    (sequence,) = bench.engine.running

    assert prefix_origin(sequence).adapters == (("a", 1.0),)
    assert ["a" in bench.engine.adapters, "c" in bench.engine.adapters] == [True, False]


def test_a_request_for_an_unloaded_adapter_fails_alone() -> None:
    """It never reaches a decode."""
    bench = make_bench(1.0)
    bench.engine.adapters.unload("a")
    bench.engine.adapters.unload("never there")
    bench.submit(make_request(0, adapters=A), make_request(1))
    bench.run()

    assert isinstance(bench.failures()[0].error, AdapterNotFound)
    assert bench.backend.stacks
    assert set(bench.backend.stacks) == {NO_ADAPTERS}


@pytest.mark.parametrize("slots", [1, 4])
def test_fillers_do_not_change_slots_of_another_stack(slots: int) -> None:
    """A step of one stack may use slots of waiting stacks as fillers."""
    costs = {1: 1.0, 2: 1.0, 3: 1.0, 4: 1.0}
    limits = NativeLimits(64, slots, slots, 128, 257)
    bench = EngineBench(FakeBackend(limits, end_after=10**6), step_times=costs, adapter_wait_s=0.0)
    bench.engine.adapters.load("a", FILE)
    bench.submit(*(make_request(i, adapters=A if i % 2 else NO_ADAPTERS) for i in range(4)))
    bench.run()

    assert bench.tokens(0) == bench.tokens(2)
    assert bench.tokens(1) == bench.tokens(3)
    assert bench.tokens(0) != bench.tokens(1)
