"""Shared prefixes, leaders, saved states and preemption under random arrivals, cancels, pauses and
failing decodes: nobody may ever read another's cells."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from inference_svc.engine.batch import NativeLimits, TokenBatch
from inference_svc.engine.events import Started
from inference_svc.engine.fake import VOCABULARY_SIZE, FakeBackend
from inference_svc.engine.kv_cache.copies import CopyCosts
from inference_svc.engine.scheduler.policy import Policy
from tests.support.examples import examples
from tests.support.sequences import EngineBench, expected_tokens, make_request

BASES = [[100 + (i * step) % 7 for i in range(120)] for step in (1, 2, 3)]
SLOTS = 3
NEVER = 10**6  # no text ends by itself

_arrivals = st.fixed_dictionaries(
    {
        "base": st.integers(0, len(BASES) - 1),
        "cut": st.sampled_from([0, 20, 70, 110, 120]),
        "own": st.lists(st.integers(97, 99), min_size=1, max_size=4),
        "max_tokens": st.integers(1, 8),
        "priority": st.sampled_from([1, 1, 2, 3]),
        "key": st.sampled_from([b"a", b"a", b"a", b"b"]),
        "reuse": st.sampled_from([True, True, True, False]),
        "at": st.integers(0, 25),
        "cancel_after": st.one_of(st.none(), st.none(), st.integers(0, 12)),
        "pause_after": st.one_of(st.none(), st.none(), st.integers(0, 5)),
    }
)


def _prompt(plan: dict[str, Any]) -> list[int]:
    return [*BASES[plan["base"]][: plan["cut"]], *plan["own"]]


def _act(bench: EngineBench, i: int, plan: dict[str, Any], since: int) -> None:
    if since == 0:
        bench.submit(
            make_request(
                i,
                prompt=_prompt(plan),
                max_tokens=plan["max_tokens"],
                priority=plan["priority"],
                cache_key=plan["key"],
                project=plan["key"].decode(),
                reuse=plan["reuse"],
                ignore_eos=True,
            )
        )
    if since == plan["cancel_after"]:
        bench.engine.cancel(i, arrived_in_step=since, step=since)
    if plan["pause_after"] is not None:
        bench.engine.pause(i, paused=0 <= since - plan["pause_after"] < 4)


@settings(max_examples=examples(100), deadline=None)
@given(
    plans=st.lists(_arrivals, min_size=4, max_size=14),
    failing=st.sets(st.integers(0, 60), max_size=6),
    code=st.sampled_from([1, -1, -2]),
    can_trim=st.booleans(),
    saved_bytes=st.sampled_from([0, 1200, 10**6]),
    stream_s=st.sampled_from([0.0, 50.0, 1e9]),
    step_s=st.sampled_from([0.0, 0.1, 10.0]),
    cells=st.sampled_from([None, None, 160, 200, 480]),
)
def test_sharing_never_mixes_sequences(
    plans: list[dict[str, Any]],
    failing: set[int],
    code: int,
    can_trim: bool,
    saved_bytes: int,
    stream_s: float,
    step_s: float,
    cells: int | None,
) -> None:
    """Everybody says what it says alone and ends once; no prefix crosses keys."""
    calls = iter(range(10**6))

    def fails(batch: TokenBatch) -> int:
        joint = len(set(batch.slots.tolist())) > 1
        return code if next(calls) in failing and joint and can_trim else 0

    limits = NativeLimits(48, SLOTS, SLOTS, 160, VOCABULARY_SIZE, cells=cells)
    bench = EngineBench(
        FakeBackend(limits, end_after=NEVER, can_trim=can_trim, fails=fails),
        chunk_cap=32,
        copy_costs=CopyCosts(stream_s, 0.0, 1.0),
        saved_bytes=saved_bytes,
        measured={1: 0.1, SLOTS: 0.3},
    )
    for step in range(3000):
        for i, plan in enumerate(plans):
            _act(bench, i, plan, step - plan["at"])
        bench.call()
        bench.clock.now += step_s
        if step > 30 and not bench.engine.has_sequences:
            break

    assert not bench.engine.has_sequences
    assert bench.failures() == {}
    for i, plan in enumerate(plans):
        whole = expected_tokens(_prompt(plan), plan["max_tokens"], end_after=NEVER)
        if plan["cancel_after"] is None:
            assert bench.tokens(i) == whole
            bench.finished(i)
        else:
            assert bench.tokens(i) == whole[: len(bench.tokens(i))]
    _check_keys(bench, plans)


def _check_keys(bench: EngineBench, plans: list[dict[str, Any]]) -> None:
    """The first of a key, and whoever declined reuse, find nothing."""
    seen: set[bytes] = set()
    for event in bench.events:
        if isinstance(event, Started):
            plan = plans[event.sequence_id]
            if plan["key"] not in seen or not plan["reuse"]:
                assert event.cached_tokens == 0
            if plan["reuse"]:
                seen.add(plan["key"])


# Further apart than what is too little to be saved.
_CUTS = (0, 100, 250, 400, 600)
_LONG = [[100 + (i * step) % 7 for i in range(600)] for step in (1, 2)]

_prompts = st.fixed_dictionaries(
    {
        "base": st.integers(0, len(_LONG) - 1),
        "cut": st.sampled_from(_CUTS),
        "own": st.lists(st.integers(97, 99), min_size=1, max_size=4),
        "max_tokens": st.integers(1, 8),
        "at": st.integers(0, 40),
    }
)


@settings(max_examples=examples(60), deadline=None)
@given(
    plans=st.lists(_prompts, min_size=4, max_size=14),
    stream_s=st.sampled_from([0.0, 1e9]),
)
def test_no_beginning_is_lost_while_memory_has_room(
    plans: list[dict[str, Any]], stream_s: float
) -> None:
    """Whoever counted on whom: what some request computed, the next one finds."""
    limits = NativeLimits(3000, SLOTS, SLOTS, 700, VOCABULARY_SIZE)
    bench = EngineBench(
        FakeBackend(limits, end_after=NEVER),
        chunk_cap=3000,
        copy_costs=CopyCosts(stream_s, 0.0, 1.0),
        saved_bytes=10**7,
        policy=Policy.THROUGHPUT_FIRST,
    )
    beginnings = [_LONG[plan["base"]][: plan["cut"]] for plan in plans]
    for step in range(41):
        for i, plan in enumerate(plans):
            if plan["at"] == step:
                prompt = [*beginnings[i], *plan["own"]]
                bench.submit(make_request(i, prompt=prompt, max_tokens=plan["max_tokens"]))
        bench.step()
    bench.run()

    for beginning in beginnings:
        assert bench.engine.num_reusable_tokens(make_request(prompt=[*beginning, 1])) == len(
            beginning
        )
