"""Shared prefixes, saved states and preemption under random arrivals, cancellations, pauses and
failed decodes."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from inference_svc.engine.batch import NativeLimits
from inference_svc.engine.events import Started
from inference_svc.engine.kv_cache.copies import CopyCosts
from inference_svc.engine.scheduler.policy import Policy
from tests.support.engine_plans import check_tokens, fail_joint_batches, run_plans
from tests.support.examples import examples
from tests.support.fake_backend import VOCABULARY_SIZE, FakeBackend
from tests.support.sequences import EngineBench, expected_tokens, make_request

BASES = [[100 + (i * step) % 7 for i in range(120)] for step in (1, 2, 3)]
SLOTS = 3
NEVER = 10**6  # no end-of-generation token

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


def _submit(bench: EngineBench, i: int, plan: dict[str, Any]) -> None:
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


@settings(max_examples=examples(100), deadline=None)
@given(
    plans=st.lists(_arrivals, min_size=4, max_size=14),
    failing=st.sets(st.integers(0, 60), max_size=6),
    code=st.sampled_from([1, -1, -2]),
    can_trim=st.booleans(),
    window=st.sampled_from([None, None, 8, 40]),
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
    window: int | None,
    saved_bytes: int,
    stream_s: float,
    step_s: float,
    cells: int | None,
) -> None:
    """Every sequence emits the same tokens as alone; no prefix is shared between cache keys."""
    fails = fail_joint_batches(failing if can_trim else (), code)
    limits = NativeLimits(48, SLOTS, SLOTS, 160, VOCABULARY_SIZE, cells=cells)
    bench = EngineBench(
        FakeBackend(limits, end_after=NEVER, can_trim=can_trim, fails=fails, window=window),
        chunk_cap=32,
        copy_costs=CopyCosts(stream_s, 0.0, 1.0),
        saved_bytes=saved_bytes,
        measured={1: 0.1, SLOTS: 0.3},
    )
    run_plans(bench, plans, _submit, step_s=step_s)
    check_tokens(
        bench,
        plans,
        lambda _, plan: expected_tokens(_prompt(plan), plan["max_tokens"], end_after=NEVER),
    )
    _check_keys(bench, plans)


_conversations = st.fixed_dictionaries(
    {
        "base": st.just(0),
        "cut": st.sampled_from([20, 50, 70, 90, 110, 120]),
        "own": st.lists(st.integers(97, 99), min_size=1, max_size=4),
        "max_tokens": st.integers(1, 30),
        "priority": st.sampled_from([1, 1, 3]),
        "key": st.just(b"a"),
        "reuse": st.just(True),
        "at": st.integers(0, 12),
        "cancel_after": st.none(),
        "pause_after": st.none(),
    }
)


@settings(max_examples=examples(60), deadline=None)
@given(
    plans=st.lists(_conversations, min_size=4, max_size=10),
    window=st.sampled_from([8, 40]),
    saved_bytes=st.sampled_from([0, 1200, 10**6]),
    stream_s=st.sampled_from([0.0, 1e9]),
    cells=st.sampled_from([None, None, 480]),
)
def test_no_prefix_is_reused_without_its_window(
    plans: list[dict[str, Any]], window: int, saved_bytes: int, stream_s: float, cells: int | None
) -> None:
    """From no slot and no state, whole or in part: a decode that lacks cells fails here."""
    limits = NativeLimits(128, SLOTS, SLOTS, 160, VOCABULARY_SIZE, cells=cells)
    bench = EngineBench(
        FakeBackend(limits, end_after=NEVER, window=window),
        chunk_cap=128,
        copy_costs=CopyCosts(stream_s, 0.0, 1.0),
        saved_bytes=saved_bytes,
        measured={1: 0.1, SLOTS: 0.3},
    )
    run_plans(bench, plans, _submit)
    check_tokens(
        bench,
        plans,
        lambda _, plan: expected_tokens(_prompt(plan), plan["max_tokens"], end_after=NEVER),
    )


def _check_keys(bench: EngineBench, plans: list[dict[str, Any]]) -> None:
    """Check that the first request of a key, and requests without reuse, have no cached tokens."""
    known_keys: set[bytes] = set()
    for event in bench.events:
        if isinstance(event, Started):
            plan = plans[event.sequence_id]
            if plan["key"] not in known_keys or not plan["reuse"]:
                assert event.cached_tokens == 0
            if plan["reuse"]:
                known_keys.add(plan["key"])


# Further apart than the minimum length of a saved prefix.
_CUTS = (0, 100, 250, 400, 600)
_BASE_PROMPTS = [[100 + (i * step) % 7 for i in range(600)] for step in (1, 2)]

_prompts = st.fixed_dictionaries(
    {
        "base": st.integers(0, len(_BASE_PROMPTS) - 1),
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
def test_every_computed_prefix_stays_reusable_while_memory_is_free(
    plans: list[dict[str, Any]], stream_s: float
) -> None:
    """Each prefix that a request computed is found by the next request."""
    limits = NativeLimits(3000, SLOTS, SLOTS, 700, VOCABULARY_SIZE)
    bench = EngineBench(
        FakeBackend(limits, end_after=NEVER),
        chunk_cap=3000,
        copy_costs=CopyCosts(stream_s, 0.0, 1.0),
        saved_bytes=10**7,
        policy=Policy.THROUGHPUT_FIRST,
    )
    prefixes = [_BASE_PROMPTS[plan["base"]][: plan["cut"]] for plan in plans]
    for step in range(41):
        for i, plan in enumerate(plans):
            if plan["at"] == step:
                prompt = [*prefixes[i], *plan["own"]]
                bench.submit(make_request(i, prompt=prompt, max_tokens=plan["max_tokens"]))
        bench.step()
    bench.run()

    for prefix in prefixes:
        assert bench.engine.num_reusable_tokens(make_request(prompt=[*prefix, 1])) == len(prefix)
