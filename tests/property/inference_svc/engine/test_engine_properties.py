"""The engine under random arrivals, cancellations, pauses and failed decodes."""

import itertools
from array import array
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from inference_svc.engine.batch import NativeLimits
from inference_svc.engine.defrag.batch_layout import BatchLayout
from inference_svc.engine.detokenizer import Detokenizer
from inference_svc.engine.kv_cache.copies import CopyCosts
from inference_svc.engine.scheduler.policy import PendingPrompt, fair_chunks
from tests.support.engine_plans import (
    check_prompt_tokens,
    check_tokens,
    fail_joint_batches,
    run_plans,
)
from tests.support.examples import examples
from tests.support.fake_backend import VOCABULARY_SIZE, FakeBackend
from tests.support.sequences import EngineBench, expected_tokens, make_request

SYSTEM = [100 + i % 3 for i in range(40)]

_arrivals = st.fixed_dictionaries(
    {
        "prompt": st.builds(
            lambda shared, suffix: [*SYSTEM[:shared], *suffix],
            st.integers(0, 40),
            st.lists(st.integers(97, 99), min_size=1, max_size=20),
        ),
        "max_tokens": st.integers(0, 12),
        "priority": st.integers(1, 3),
        "key": st.sampled_from([b"a", b"b"]),
        "at": st.integers(0, 20),
        "cancel_after": st.one_of(st.none(), st.integers(0, 15)),
        "pause_after": st.one_of(st.none(), st.integers(0, 5)),
        "resume": st.integers(0, 3),
        "deterministic": st.booleans(),
        "scored": st.sampled_from([False, False, True]),
    }
)


def _submit(bench: EngineBench, i: int, plan: dict[str, Any]) -> None:
    prompt = plan["prompt"]
    resumed = expected_tokens(prompt, min(plan["resume"], plan["max_tokens"]), end_after=20)
    bench.submit(
        make_request(
            i,
            prompt=prompt,
            max_tokens=plan["max_tokens"],
            priority=plan["priority"],
            cache_key=plan["key"],
            resumed=array("i", resumed),
            reuse=not plan["deterministic"],
            deterministic=plan["deterministic"],
            prompt_logprobs=0 if plan["scored"] else None,
        )
    )


@settings(max_examples=examples(150), deadline=None)
@given(
    plans=st.lists(_arrivals, min_size=1, max_size=10),
    failing=st.sets(st.integers(0, 60), max_size=6),
    code=st.sampled_from([1, -1, -2]),
    can_trim=st.booleans(),
    window=st.sampled_from([None, None, 8, 40]),
    filling=st.booleans(),
    saved_bytes=st.sampled_from([0, 400, 10**6]),
    stream_s=st.sampled_from([0.0, 20.0, 1e9]),
    cells=st.sampled_from([None, None, 80, 130]),
)
def test_sequences_do_not_affect_each_other(
    plans: list[dict[str, Any]],
    failing: set[int],
    code: int,
    can_trim: bool,
    window: int | None,
    filling: bool,
    saved_bytes: int,
    stream_s: float,
    cells: int | None,
) -> None:
    """Every sequence emits the tokens that it emits alone, or a prefix if it was cancelled, and so
    are the log probabilities of prompt tokens."""
    fails = fail_joint_batches(failing if can_trim else (), code)
    limits = NativeLimits(24, 3, 3, 80, VOCABULARY_SIZE, cells=cells)
    backend = FakeBackend(limits, end_after=20, can_trim=can_trim, fails=fails, window=window)
    times = {1: 10.0, 2: 10.5, 3: 11.0} if filling and can_trim else {}
    bench = EngineBench(
        backend,
        step_times=times,
        chunk_cap=8,
        copy_costs=CopyCosts(stream_s, 0.0, 1.0),
        saved_bytes=saved_bytes,
    )
    run_plans(bench, plans, _submit)

    def expected(_: int, plan: dict[str, Any]) -> list[int]:
        tokens = expected_tokens(plan["prompt"], plan["max_tokens"], end_after=20)
        return tokens[plan["resume"] :]

    check_tokens(bench, plans, expected)
    check_prompt_tokens(bench, plans, lambda i: plans[i]["prompt"])


_PROMPTS = st.lists(
    st.builds(
        PendingPrompt,
        st.integers(0, 5000),
        st.just(1),
        st.integers(0, 9),
        st.integers(0, 9).map(float),
    ),
    min_size=1,
    max_size=20,
)


@given(_PROMPTS, st.integers(0, 2048))
@example([PendingPrompt(tokens, 1) for tokens in (86, 213, 211, 205, 205)], 409)
def test_chunks_use_the_budget_and_do_not_exceed_it(
    prompts: list[PendingPrompt], budget: int
) -> None:
    """At least one block is computed if there is work for it. A prompt that needs no more than an
    equal share is completed."""
    chunks = fair_chunks(prompts, budget)

    available = min(budget, sum(prompt.tokens for prompt in prompts))
    assert min(available, 64) <= sum(chunks) <= available
    for chunk, prompt in zip(chunks, prompts, strict=True):
        assert 0 <= chunk <= prompt.tokens
        assert chunk == prompt.tokens or prompt.tokens > budget // len(prompts)


@given(_PROMPTS, st.integers(1, 2048))
def test_only_short_prompts_overtake_the_highest_response_ratio(
    prompts: list[PendingPrompt], budget: int
) -> None:
    """A prompt with tokens has at least the response ratio of every prompt without, or needs no
    more than an equal share."""
    shares = list(zip(prompts, fair_chunks(prompts, budget), strict=True))

    highest = max(
        (prompt.ratio for prompt, chunk in shares if prompt.tokens and not chunk), default=0.0
    )
    for prompt, chunk in shares:
        num_not_shorter = sum(other.tokens >= prompt.tokens for other in prompts)
        assert not chunk or prompt.ratio >= highest or prompt.tokens * num_not_shorter <= budget


@given(
    st.text(alphabet="ab\u00e9\U0001f600", max_size=60),
    st.lists(st.text(alphabet="ab\u00e9", min_size=1, max_size=5), max_size=3),
    st.lists(st.integers(1, 7), max_size=80),
)
def test_text_does_not_depend_on_how_its_bytes_are_split(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    """Any split has the same text and the same stop text."""
    data, ends = text.encode(), list(itertools.accumulate(cuts))
    pieces = [data[start:end] for start, end in itertools.pairwise([0, *ends, len(data)])]
    bytewise = [data[at : at + 1] for at in range(len(data))]

    assert _until_stop(stops, pieces) == _until_stop(stops, bytewise)


def _until_stop(stops: list[str], pieces: list[bytes]) -> tuple[str, str | None]:
    stream, text = Detokenizer(stops), ""
    for piece in pieces:
        text += stream.push(piece)
        if stream.stop is not None:
            return text, stream.stop
    return text + stream.finish(), stream.stop


@given(
    st.dictionaries(st.integers(1, 8), st.floats(1, 100), max_size=8),
    st.sets(st.integers(0, 7), max_size=8),
)
def test_fillers_are_idle_slots_that_can_be_filled(times: dict[int, float], used: set[int]) -> None:
    """A slot with a row, or without space for a filler, is never used."""
    idle = [slot for slot in range(8) if slot not in used]
    fillers = BatchLayout(times, 8).fillers(sorted(used), idle[::2])

    assert set(fillers) <= set(idle[::2])
