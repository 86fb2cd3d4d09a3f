"""Adapters in the step loop: stacks, turns, and what is computed with which."""

from itertools import pairwise
from pathlib import Path

import pytest

from inference_svc.engine.batch import NativeLimits
from inference_svc.engine.events import AdapterFailed, AdapterLoaded
from inference_svc.engine.fake import FAILING_ADAPTER, FakeBackend
from inference_svc.engine.kv_cache.origin import prefix_origin
from inference_svc.engine.request import NO_ADAPTERS, AdapterStack, AppliedAdapter, adapter_stack
from svc_kit.auth.principal import Priority
from svc_kit.errors import AdapterNotFound
from tests.support.sequences import EngineBench, make_request

FILE = Path("a.gguf")
A, B = ((AppliedAdapter(digest, 1.0),) for digest in "ab")


def a_bench(max_wait_s: float, *, slots: int = 4) -> EngineBench:
    """An engine with the adapters "a" and "b"; every decode takes a second."""
    bench = EngineBench(
        FakeBackend(NativeLimits(64, slots, slots, 128, 257), end_after=10**6),
        adapter_wait_s=max_wait_s,
    )
    for digest in "ab":
        assert bench.engine.adapters.load(digest, FILE) == AdapterLoaded("m", digest)
    return bench


def steps(bench: EngineBench, count: int) -> list[AdapterStack]:
    """The stacks of the next decodes, a second each."""
    before = len(bench.backend.stacks)
    for _ in range(count):
        bench.clock.now += 1
        bench.step()
    return bench.backend.stacks[before:]


# --- stacks ---------------------------------------------------------------------------------------


def test_a_stack_has_one_form() -> None:
    """Order says nothing, twice the same adapter is the sum, and nothing is left at scale 0."""
    a, b = AppliedAdapter("a", 0.5), AppliedAdapter("b", 1.0)

    assert adapter_stack([b, a]) == adapter_stack([a, b]) == (a, b)
    assert adapter_stack([a, a]) == (AppliedAdapter("a", 1.0),)
    assert adapter_stack([a, AppliedAdapter("a", -0.5)]) == adapter_stack([]) == NO_ADAPTERS


# --- turns ----------------------------------------------------------------------------------------


def test_one_stack_alone_is_never_interrupted() -> None:
    """All its sequences are in every decode."""
    bench = a_bench(2.0)
    bench.submit(*(make_request(i, adapters=A) for i in range(3)))

    assert steps(bench, 5) == [A] * 5
    assert all(len(set(batch.slots)) == 3 for batch in bench.backend.batches)


def test_two_stacks_take_turns_of_the_maximum_wait() -> None:
    """Each keeps the engine for two steps of a second."""
    bench = a_bench(2.0)
    bench.submit(make_request(0, max_tokens=50), make_request(1, adapters=A, max_tokens=50))

    assert steps(bench, 8) == [NO_ADAPTERS, NO_ADAPTERS, A, A, NO_ADAPTERS, NO_ADAPTERS, A, A]


def test_who_was_overtaken_goes_on_first_though_less_urgent_now() -> None:
    """The most urgent of its sequences is paused just then; two overdue stacks wait."""
    bench = a_bench(1.0)
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
    bench = a_bench(4.0)
    for i, stack in enumerate((NO_ADAPTERS, A, B)):
        bench.submit(make_request(i, adapters=stack, max_tokens=50))

    assert steps(bench, 9) == [NO_ADAPTERS, NO_ADAPTERS, A, A, B, B, NO_ADAPTERS, NO_ADAPTERS, A]


def test_without_a_wait_every_step_is_anothers() -> None:
    """A maximum wait of 0 is the fairest and the dearest."""
    bench = a_bench(0.0)
    bench.submit(make_request(0, max_tokens=50), make_request(1, adapters=A, max_tokens=50))

    assert steps(bench, 4) == [NO_ADAPTERS, A, NO_ADAPTERS, A]


def test_a_turn_ends_when_its_stack_has_nothing_to_compute() -> None:
    """Paused or finished, it lets the next one go ahead at once."""
    bench = a_bench(100.0)
    bench.submit(make_request(0, max_tokens=50), make_request(1, adapters=A, max_tokens=50))
    first = steps(bench, 2)
    bench.engine.pause(0, paused=True)
    second = steps(bench, 2)
    bench.engine.pause(0, paused=False)
    bench.engine.cancel(1, arrived_in_step=0, step=0)

    assert (first, second, steps(bench, 2)) == ([NO_ADAPTERS] * 2, [A] * 2, [NO_ADAPTERS] * 2)


def test_urgent_work_does_not_wait_for_the_turns_of_batch_work() -> None:
    """It is next at once, and stays, but for a step of those that waited for the maximum."""
    bench = a_bench(3.0)
    for i, stack in enumerate((NO_ADAPTERS, B)):
        bench.submit(make_request(i, adapters=stack, max_tokens=50, priority=Priority.BATCH))
    before = steps(bench, 2)
    bench.submit(make_request(2, adapters=A, max_tokens=50, priority=Priority.INTERACTIVE))

    assert before == [NO_ADAPTERS, NO_ADAPTERS]
    assert steps(bench, 8) == [A, B, A, NO_ADAPTERS, A, B, A, NO_ADAPTERS]


def test_stacks_of_one_class_take_turns_beside_a_lower_one() -> None:
    """The lower one has a step between two turns, not two in a row, and each of them goes on."""
    bench = a_bench(2.0)
    for i, stack in enumerate((A, B)):
        bench.submit(make_request(i, adapters=stack, max_tokens=50, priority=Priority.INTERACTIVE))
    bench.submit(make_request(2, max_tokens=50, priority=Priority.BATCH))

    assert steps(bench, 8) == [A, A, NO_ADAPTERS, B, A, NO_ADAPTERS, B, A]


def test_less_urgent_steps_never_follow_each_other() -> None:
    """With three classes neither: after a step of normal work the turn is not batch work's."""
    bench = a_bench(1.0)
    for i, stack in enumerate((NO_ADAPTERS, A, B)):
        bench.submit(make_request(i, adapters=stack, max_tokens=50, priority=1 + i))
    made = steps(bench, 12)

    assert {NO_ADAPTERS, A, B} == set(made)
    assert all(B in pair for pair in pairwise(made))


def test_a_stack_is_as_urgent_as_its_most_urgent_sequence() -> None:
    """Batch work that has the same adapters is computed with it: the decode is the same."""
    bench = a_bench(100.0)
    bench.submit(make_request(0, max_tokens=50, priority=Priority.NORMAL))
    bench.submit(make_request(1, adapters=A, max_tokens=50, priority=Priority.BATCH))
    before = steps(bench, 2)
    bench.submit(make_request(2, adapters=A, max_tokens=50, priority=Priority.INTERACTIVE))

    assert (set(before), set(steps(bench, 3))) == ({NO_ADAPTERS}, {A})
    assert len(set(bench.backend.batches[-1].slots.tolist())) == 2


# --- what is computed with what -------------------------------------------------------------------


def test_stacks_in_one_engine_say_what_each_says_alone() -> None:
    """Side by side over shared slots, and not all the same."""
    stacks = [NO_ADAPTERS, A, B, (*A, *B), (AppliedAdapter("a", 0.5),)]
    alone = []
    for stack in stacks:
        bench = a_bench(1.0)
        bench.submit(make_request(0, adapters=stack))
        bench.run()
        alone.append(bench.tokens(0))
    together = a_bench(1.0)
    together.submit(*(make_request(i, adapters=stack) for i, stack in enumerate(stacks)))
    together.run()

    assert [together.tokens(i) for i in range(len(stacks))] == alone
    assert len({tuple(tokens) for tokens in alone}) == len(stacks)


def test_a_failed_decode_is_isolated_within_its_stack() -> None:
    """The halves are computed with the adapters of the whole."""
    bench = a_bench(0.0)
    bench.backend._fails = lambda batch: int(len(set(batch.slots.tolist())) > 1)
    bench.submit(
        *(
            make_request(i, adapters=stack)
            for i, stack in enumerate((A, NO_ADAPTERS, A, NO_ADAPTERS))
        )
    )
    bench.run()
    alone = a_bench(0.0)
    alone.submit(make_request(0, adapters=A))
    alone.run()

    assert bench.tokens(0) == bench.tokens(2) == alone.tokens(0)


# --- loading --------------------------------------------------------------------------------------


def test_a_loaded_adapter_is_not_read_again() -> None:
    """The answer is the same, whatever file is named."""
    bench = a_bench(1.0)

    assert bench.engine.adapters.load("a", FAILING_ADAPTER) == AdapterLoaded("m", "a")


def test_a_file_that_cannot_be_loaded_is_reported() -> None:
    """With the library's reason."""
    bench = a_bench(1.0)

    assert bench.engine.adapters.load("c", FAILING_ADAPTER) == AdapterFailed("m", "c", "asked to")


def test_a_snapshot_says_which_adapters_its_cells_are_of() -> None:
    """Where they are not loaded it cannot be used."""
    bench = a_bench(1.0)
    bench.submit(make_request(0, adapters=A, request_id="r"))
    bench.step()
    (sequence,) = bench.engine.running

    assert prefix_origin(sequence).adapters == (("a", 1.0),)
    assert ["a" in bench.engine.adapters, "c" in bench.engine.adapters] == [True, False]


def test_a_request_for_an_adapter_that_is_gone_fails_alone() -> None:
    """It never reaches a decode."""
    bench = a_bench(1.0)
    bench.engine.adapters.unload("a")
    bench.engine.adapters.unload("never there")
    bench.submit(make_request(0, adapters=A), make_request(1))
    bench.run()

    assert isinstance(bench.failures()[0].error, AdapterNotFound)
    assert bench.backend.stacks
    assert set(bench.backend.stacks) == {NO_ADAPTERS}


@pytest.mark.parametrize("slots", [1, 4])
def test_fillers_of_another_stack_leave_its_slots_as_they_were(slots: int) -> None:
    """A step of one stack may fill the slots between its own that wait for their turn."""
    costs = {1: 1.0, 2: 1.0, 3: 1.0, 4: 1.0}
    limits = NativeLimits(64, slots, slots, 128, 257)
    bench = EngineBench(FakeBackend(limits, end_after=10**6), step_times=costs, adapter_wait_s=0.0)
    bench.engine.adapters.load("a", FILE)
    bench.submit(*(make_request(i, adapters=A if i % 2 else NO_ADAPTERS) for i in range(4)))
    bench.run()

    assert bench.tokens(0) == bench.tokens(2)
    assert bench.tokens(1) == bench.tokens(3)
    assert bench.tokens(0) != bench.tokens(1)
