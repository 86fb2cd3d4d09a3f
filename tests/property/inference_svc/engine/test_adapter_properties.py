"""Adapters under random arrivals, cancellations and pauses: no stack starves, and sharing changes
no output."""

from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from inference_svc.engine.batch import NativeLimits
from inference_svc.engine.kv_cache.copies import CopyCosts
from inference_svc.engine.request import NO_ADAPTERS, AdapterStack, AppliedAdapter
from inference_svc.engine.scheduler.queue import aged_priority
from tests.support.engine_plans import apply_plan
from tests.support.examples import examples
from tests.support.fake_backend import FakeBackend
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


def make_bench(**options: Any) -> EngineBench:
    """An engine with two adapters, without end-of-generation tokens."""
    bench = EngineBench(
        FakeBackend(NativeLimits(64, SLOTS, SLOTS, 128, 257), end_after=10**6), **options
    )
    for digest in "ab":
        bench.engine.adapters.load(digest, Path("a.gguf"))
    return bench


def submit(bench: EngineBench, i: int, plan: dict[str, Any]) -> None:
    """Submit the sequence of a plan; its cache key is that of its stack."""
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


def pending_priorities(bench: EngineBench) -> dict[AdapterStack, int]:
    """Highest priority of each stack that has tokens to compute."""
    priorities: dict[AdapterStack, int] = {}
    for sequence in bench.engine.running:
        if not sequence.paused:
            stack = sequence.request.adapters
            priorities[stack] = max(priorities.get(stack, 0), sequence.effective_priority)
    return priorities


def highest_priorities(bench: EngineBench) -> dict[AdapterStack, int]:
    """Highest priority that a sequence of each stack could have in the next step."""
    priorities: dict[AdapterStack, int] = {}
    for sequence in bench.engine._sequences.by_id.values():
        stack = sequence.request.adapters
        highest = max(sequence.effective_priority, aged_priority(sequence, bench.clock.now))
        priorities[stack] = max(priorities.get(stack, 0), highest)
    return priorities


@settings(max_examples=examples(60))
@given(
    plans=st.lists(_arrivals, min_size=2, max_size=12),
    max_wait_s=st.sampled_from([0.0, 1.0, 3.0, 10.0]),
    step_s=st.sampled_from([0.1, 1.0, 5.0]),
    stream_s=st.sampled_from([0.0, 1e9]),
)
def test_no_stack_starves_and_output_is_as_alone(
    plans: list[dict[str, Any]], max_wait_s: float, step_s: float, stream_s: float
) -> None:
    """A pending stack waits for at most the maximum and two steps of each stack, and for one step
    of a less urgent stack at a time, not counting a step during which it became pending."""
    costs = CopyCosts(stream_s, 1.0, 0.0)
    bench = make_bench(adapter_wait_s=max_wait_s, saved_bytes=10**6, copy_costs=costs)
    since: dict[AdapterStack, float] = {}
    overtaken: set[AdapterStack] = set()
    for step in range(400):
        apply_plan(bench, plans, submit, step)
        decoded = len(bench.backend.stacks)
        priorities, ready = highest_priorities(bench), pending_priorities(bench)
        bench.step()
        computed = bench.backend.stacks[decoded:]
        bench.clock.now += step_s
        pending = pending_priorities(bench)
        skipped = {stack: pending[stack] for stack in pending if stack not in computed}
        since = {stack: since.get(stack, bench.clock.now) for stack in skipped}
        longest_wait = bench.clock.now - min(since.values(), default=bench.clock.now)
        assert longest_wait <= max_wait_s + 2 * len(STACKS) * step_s
        before, overtaken = overtaken, set()
        for stack in computed:
            overtaken |= {
                other
                for other in skipped.keys() & ready.keys()
                if skipped[other] > priorities[stack]
            }
        assert not before & overtaken
    assert not bench.engine.has_sequences

    for i, plan in enumerate(plans):
        reference = make_bench()
        submit(reference, i, plan)
        reference.run()
        tokens = bench.tokens(i)
        assert tokens == reference.tokens(i)[: len(tokens)]
        if plan["cancel_after"] is None:
            assert len(tokens) == plan["max_tokens"]
