"""The engine under random arrivals, cancels, pauses and failing decodes."""

from array import array
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from inference_svc.engine.batch import NativeLimits, TokenBatch
from inference_svc.engine.defrag.batch_layout import BatchLayout
from inference_svc.engine.detokenizer import Detokenizer
from inference_svc.engine.fake import VOCABULARY_SIZE, FakeBackend
from inference_svc.engine.kv_cache.copies import CopyCosts
from inference_svc.engine.scheduler.policy import PendingPrompt, fair_chunks
from tests.support.examples import examples
from tests.support.sequences import EngineBench, expected_tokens, make_request

SYSTEM = [100 + i % 3 for i in range(40)]

_arrivals = st.fixed_dictionaries(
    {
        "prompt": st.builds(
            lambda shared, own: [*SYSTEM[:shared], *own],
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
        )
    )


@settings(max_examples=examples(150), deadline=None)
@given(
    plans=st.lists(_arrivals, min_size=1, max_size=10),
    failing=st.sets(st.integers(0, 60), max_size=6),
    code=st.sampled_from([1, -1, -2]),
    can_trim=st.booleans(),
    filling=st.booleans(),
    saved_bytes=st.sampled_from([0, 400, 10**6]),
    stream_s=st.sampled_from([0.0, 20.0, 1e9]),
    cells=st.sampled_from([None, None, 80, 130]),
)
def test_nobody_is_lost_mixed_up_or_disturbed(
    plans: list[dict[str, Any]],
    failing: set[int],
    code: int,
    can_trim: bool,
    filling: bool,
    saved_bytes: int,
    stream_s: float,
    cells: int | None,
) -> None:
    """Every sequence ends once, and one that was not cancelled says exactly what it says alone."""
    calls = iter(range(10**6))

    def fails(batch: TokenBatch) -> int:
        # Only joint batches fail, so that retrying in halves must succeed.
        return code if next(calls) in failing and len(set(batch.slots.tolist())) > 1 else 0

    limits = NativeLimits(24, 3, 3, 80, VOCABULARY_SIZE, cells=cells)
    backend = FakeBackend(
        limits, end_after=20, can_trim=can_trim, fails=fails if can_trim else lambda _: 0
    )
    times = {1: 10.0, 2: 10.5, 3: 11.0} if filling and can_trim else {}
    bench = EngineBench(
        backend,
        step_times=times,
        chunk_cap=8,
        copy_costs=CopyCosts(stream_s, 0.0, 1.0),
        saved_bytes=saved_bytes,
    )
    for step in range(2000):
        for i, plan in enumerate(plans):
            if plan["at"] == step:
                _submit(bench, i, plan)
            if plan["cancel_after"] is not None and plan["at"] + plan["cancel_after"] == step:
                bench.engine.cancel(i, arrived_in_step=step, step=step)
            if plan["pause_after"] is not None:
                since = step - plan["at"] - plan["pause_after"]
                bench.engine.pause(i, paused=0 <= since < 4)
        bench.call()
        if step > 25 and not bench.engine.has_sequences:
            break

    assert not bench.engine.has_sequences
    assert bench.failures() == {}
    for i, plan in enumerate(plans):
        resumed = expected_tokens(
            plan["prompt"], min(plan["resume"], plan["max_tokens"]), end_after=20
        )
        whole = expected_tokens(plan["prompt"], plan["max_tokens"], end_after=20)
        said = resumed + bench.tokens(i)
        if plan["cancel_after"] is None:
            assert said == whole
            bench.finished(i)
        else:
            assert said == whole[: len(said)]


_SHARES = st.lists(
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


@given(_SHARES, st.integers(0, 2048))
@example([PendingPrompt(tokens, 1) for tokens in (86, 213, 211, 205, 205)], 409)
def test_chunks_never_exceed_the_budget_nor_idle(prompts: list[PendingPrompt], budget: int) -> None:
    """A block is computed at least where there is work for it, nobody gets more than is left, and
    who needs no more than an equal part gets it."""
    chunks = fair_chunks(prompts, budget)

    worth = min(budget, sum(one.tokens for one in prompts))
    assert min(worth, 64) <= sum(chunks) <= worth
    for chunk, one in zip(chunks, prompts, strict=True):
        assert 0 <= chunk <= one.tokens
        assert chunk == one.tokens or one.tokens > budget // len(prompts)


@given(_SHARES, st.integers(1, 2048))
def test_only_short_prompts_overtake_who_has_waited_longest(
    prompts: list[PendingPrompt], budget: int
) -> None:
    """Who has something has no lower response ratio than who has nothing, or needs no more than an
    equal part."""
    given = list(zip(prompts, fair_chunks(prompts, budget), strict=True))

    highest = max((one.ratio for one, chunk in given if one.tokens and not chunk), default=0.0)
    for one, chunk in given:
        no_shorter = sum(other.tokens >= one.tokens for other in prompts)
        assert not chunk or one.ratio >= highest or one.tokens * no_shorter <= budget


@given(
    st.text(alphabet="ab\u00e9\U0001f600", max_size=60),
    st.lists(st.text(alphabet="ab\u00e9", min_size=1, max_size=5), max_size=3),
    st.lists(st.integers(1, 7), max_size=80),
)
def test_text_does_not_depend_on_how_it_was_cut(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    """Any split of the bytes gives the same text and the same stop."""
    data = text.encode()
    whole = Detokenizer(stops)
    bytewise = [whole.push(data[i : i + 1]) for i in range(len(data))]
    reference = _until_stop([*bytewise, whole.finish()])

    stream, pieces, at = Detokenizer(stops), [], 0
    for cut in [*cuts, len(data)]:
        pieces.append(stream.push(data[at : at + cut]))
        at += cut
    assert _until_stop([*pieces, stream.finish()]) == reference


def _until_stop(pieces: list[Any]) -> tuple[str, str | None]:
    text = ""
    for piece in pieces:
        text += piece.text
        if piece.stop is not None:
            return text, piece.stop
    return text, None


@given(
    st.dictionaries(st.integers(1, 8), st.floats(1, 100), max_size=8),
    st.sets(st.integers(0, 7), max_size=8),
)
def test_fillers_are_idle_slots(times: dict[int, float], used: set[int]) -> None:
    """A filler never takes a slot that has a row, nor one that cannot take it."""
    idle = [slot for slot in range(8) if slot not in used]
    fillers = BatchLayout(times, 8).fillers(sorted(used), idle[::2])

    assert set(fillers) <= set(idle[::2])
