"""Adapters under random arrivals, cancels and pauses: no stack starves, and every sequence says
what it says alone, whatever is shared."""

from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from inference_svc.engine.batch import NativeLimits
from inference_svc.engine.fake import FakeBackend
from inference_svc.engine.kv_cache.copies import CopyCosts
from inference_svc.engine.request import NO_ADAPTERS, AdapterStack, AppliedAdapter
from inference_svc.engine.scheduler.queue import aged_priority
from tests.support.examples import examples
from tests.support.sequences import EngineBench, make_request

SLOTS = 4
STACKS: list[AdapterStack] = [
    NO_ADAPTERS,
    (AppliedAdapter("a", 1.0),),
    (AppliedAdapter("a", 0.5),),
    (AppliedAdapter("a", 1.0), AppliedAdapter("b", 1.0)),
]
PREFIX = [100 + i % 7 for i in range(40)]

_arrivals = st.fixed_dictionaries(
    {
        "stack": st.integers(0, len(STACKS) - 1),
        "priority": st.integers(1, 3),
        "own": st.lists(st.integers(97, 99), min_size=1, max_size=3),
        "max_tokens": st.integers(1, 12),
        "at": st.integers(0, 20),
        "cancel_after": st.one_of(st.none(), st.none(), st.integers(0, 12)),
        "pause_after": st.one_of(st.none(), st.none(), st.integers(0, 5)),
    }
)


def a_bench(**options: Any) -> EngineBench:
    """An engine with two adapters, whose texts end by their length alone."""
    bench = EngineBench(
        FakeBackend(NativeLimits(64, SLOTS, SLOTS, 128, 257), end_after=10**6), **options
    )
    for digest in "ab":
        bench.engine.adapters.load(digest, Path("a.gguf"))
    return bench


def submit(bench: EngineBench, i: int, plan: dict[str, Any]) -> None:
    """A sequence of the plan; its key is that of its stack, as the frontend makes it."""
    bench.submit(
        make_request(
            i,
            prompt=[*PREFIX, *plan["own"]],
            max_tokens=plan["max_tokens"],
            priority=plan["priority"],
            adapters=STACKS[plan["stack"]],
            cache_key=b"stack %d" % plan["stack"],
        )
    )


def waiting(bench: EngineBench) -> dict[AdapterStack, int]:
    """The stacks that have something to compute, with the class of their most urgent sequence."""
    classes: dict[AdapterStack, int] = {}
    for sequence in bench.engine.running:
        if not sequence.paused:
            stack = sequence.request.adapters
            classes[stack] = max(classes.get(stack, 0), sequence.effective_priority)
    return classes


def most_urgent(bench: EngineBench) -> dict[AdapterStack, int]:
    """By stack, the highest class that one of its sequences could have in the next step."""
    classes: dict[AdapterStack, int] = {}
    for sequence in bench.engine._sequences.by_id.values():
        stack = sequence.request.adapters
        highest = max(sequence.effective_priority, aged_priority(sequence, bench.clock.now))
        classes[stack] = max(classes.get(stack, 0), highest)
    return classes


@settings(max_examples=examples(60))
@given(
    plans=st.lists(_arrivals, min_size=2, max_size=12),
    max_wait_s=st.sampled_from([0.0, 1.0, 3.0, 10.0]),
    step_s=st.sampled_from([0.1, 1.0, 5.0]),
    stream_s=st.sampled_from([0.0, 1e9]),
)
def test_no_stack_starves_and_none_reads_anothers_cells(
    plans: list[dict[str, Any]], max_wait_s: float, step_s: float, stream_s: float
) -> None:
    """A stack with work waits for the maximum and two steps of each other at most, and for one step
    of less urgent ones at a time; the order of computing changes no text."""
    costs = CopyCosts(stream_s, 1.0, 0.0)
    bench = a_bench(adapter_wait_s=max_wait_s, saved_bytes=10**6, copy_costs=costs)
    since: dict[AdapterStack, float] = {}
    overtaken: set[AdapterStack] = set()
    for now in range(400):
        for i, plan in enumerate(plans):
            if now == plan["at"]:
                submit(bench, i, plan)
            if plan["cancel_after"] is not None and now == plan["at"] + plan["cancel_after"]:
                bench.engine.cancel(i, arrived_in_step=now, step=now)
            if plan["pause_after"] is not None:
                behind = now - plan["at"] - plan["pause_after"]
                bench.engine.pause(i, paused=0 <= behind < 4)
        decoded = len(bench.backend.stacks)
        classes = most_urgent(bench)
        bench.step()
        computed = bench.backend.stacks[decoded:]
        bench.clock.now += step_s
        left = {one: its for one, its in waiting(bench).items() if one not in computed}
        since = {stack: since.get(stack, bench.clock.now) for stack in left}
        longest = bench.clock.now - min(since.values(), default=bench.clock.now)
        assert longest <= max_wait_s + 2 * len(STACKS) * step_s
        before, overtaken = overtaken, set()
        for stack in computed:
            overtaken |= {one for one, its in left.items() if its > classes[stack]}
        assert not before & overtaken
    assert not bench.engine.has_sequences

    for i, plan in enumerate(plans):
        alone = a_bench()
        submit(alone, i, plan)
        alone.run()
        tokens = bench.tokens(i)
        assert tokens == alone.tokens(i)[: len(tokens)]
        if plan["cancel_after"] is None:
            assert len(tokens) == plan["max_tokens"]
