"""Chunks of vectors under random arrivals, cancellations, pauses and failed decodes."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_svc.engine.batch import NativeLimits
from inference_svc.engine.events import Started
from inference_svc.engine.kv_cache.copies import CopyCosts
from inference_svc.engine.media import row_at, whole_prefix
from tests.support.engine_plans import (
    check_prompt_tokens,
    check_tokens,
    fail_joint_batches,
    run_plans,
)
from tests.support.examples import examples
from tests.support.fake_backend import VOCABULARY_SIZE, FakeBackend
from tests.support.media_prompts import Chunk, Part, media_request, write_fake_chunk
from tests.support.sequences import EngineBench, expected_tokens

SLOTS = 3
NEVER = 10**6  # no end-of-generation token
_SIZES = {"short": 3, "picture": 20, "large": 45, "whole": 20, "wide": 30}
_WHOLE = ("whole", "wide")
_GRIDS = {"picture": (5, 4), "large": (9, 5)}


@pytest.fixture(scope="module")
def chunks() -> Iterator[dict[str, Chunk]]:
    """Chunks of several sizes; two are not causal, and two have a grid."""
    with TemporaryDirectory() as folder:
        yield {
            name: write_fake_chunk(
                Path(folder),
                name,
                size,
                is_causal=name not in _WHOLE,
                grid=_GRIDS.get(name),
            )
            for name, size in _SIZES.items()
        }


_text = st.lists(st.integers(97, 99), min_size=1, max_size=20)
_arrivals = st.fixed_dictionaries(
    {
        "start": st.sampled_from([[], [100] * 20]),
        "parts": st.lists(st.one_of(st.sampled_from(list(_SIZES)), _text), max_size=4),
        "end": _text,
        "max_tokens": st.integers(1, 8),
        "priority": st.sampled_from([1, 1, 2, 3]),
        "deterministic": st.sampled_from([False, False, False, True]),
        "scored": st.sampled_from([False, False, True]),
        "at": st.integers(0, 20),
        "cancel_after": st.one_of(st.none(), st.none(), st.integers(0, 12)),
        "pause_after": st.one_of(st.none(), st.none(), st.integers(0, 5)),
    }
)


def _parts(plan: dict[str, Any], chunks: dict[str, Chunk]) -> list[Part]:
    named = [chunks[part] if isinstance(part, str) else part for part in plan["parts"]]
    return [plan["start"], *named, plan["end"]]


@settings(max_examples=examples(100), deadline=None)
@given(
    plans=st.lists(_arrivals, min_size=1, max_size=10),
    failing=st.sets(st.integers(0, 60), max_size=6),
    code=st.sampled_from([1, -1, -2]),
    can_trim=st.booleans(),
    window=st.sampled_from([None, None, 8, 40]),
    saved_bytes=st.sampled_from([0, 1200, 10**6]),
    stream_s=st.sampled_from([0.0, 50.0, 1e9]),
    cells=st.sampled_from([None, None, 300, 480]),
    chunk_cap=st.sampled_from([8, 32]),
    mixes=st.booleans(),
)
def test_sequences_with_chunks_emit_the_same_tokens_as_alone(
    chunks: dict[str, Chunk],
    plans: list[dict[str, Any]],
    failing: set[int],
    code: int,
    can_trim: bool,
    window: int | None,
    saved_bytes: int,
    stream_s: float,
    cells: int | None,
    chunk_cap: int,
    mixes: bool,
) -> None:
    """Every sequence emits the same tokens as alone; no reused prefix ends inside a chunk."""
    fails = fail_joint_batches(failing if can_trim else (), code)
    limits = NativeLimits(
        48, SLOTS, SLOTS, 300, VOCABULARY_SIZE, cells=cells, vector_width=1, mixes_vectors=mixes
    )
    bench = EngineBench(
        FakeBackend(limits, end_after=NEVER, can_trim=can_trim, fails=fails, window=window),
        chunk_cap=chunk_cap,
        copy_costs=CopyCosts(stream_s, 0.0, 1.0),
        saved_bytes=saved_bytes,
        measured={1: 0.1, SLOTS: 0.3},
    )
    requests = {
        i: media_request(
            i,
            _parts(plan, chunks),
            max_tokens=plan["max_tokens"],
            priority=plan["priority"],
            deterministic=plan["deterministic"],
            reuse=not plan["deterministic"],
            ignore_eos=True,
            prompt_logprobs=0 if plan["scored"] else None,
        )
        for i, plan in enumerate(plans)
    }
    run_plans(bench, plans, lambda bench, i, _: bench.submit(requests[i]))

    check_tokens(
        bench,
        plans,
        lambda i, plan: expected_tokens(requests[i].prompt, plan["max_tokens"], end_after=NEVER),
    )
    check_prompt_tokens(bench, plans, lambda i: requests[i].prompt)
    for event in bench.events:
        if isinstance(event, Started):
            media = requests[event.sequence_id].media
            assert whole_prefix(media, event.cached_tokens) == event.cached_tokens


@given(
    st.lists(st.one_of(st.sampled_from(list(_SIZES)), _text), max_size=8),
    _text,
    st.integers(0, 4),
)
def test_rows_cover_a_prompt_and_prefixes_end_between_them(
    chunks: dict[str, Chunk], names: list[Any], end: list[int], max_text: int
) -> None:
    """A row is text, a chunk that is not causal, or causal chunks with short texts; a whole prefix
    is at most as long as asked, and only shorter inside a chunk."""
    parts = [chunks[name] if isinstance(name, str) else name for name in names]
    request = media_request(0, [*parts, end])
    media, length = request.media, len(request.prompt)

    for index in range(length):
        spans, stop = row_at(media, index, length=length, max_text=max_text)
        assert index < stop <= length
        assert list(spans) == [each for each in media if each.start < stop and index < each.end]
        assert all(each.is_causal for each in spans) or (len(spans), stop) == (1, spans[0].end)
        is_text = ["t" if token >= 0 else " " for token in request.prompt[index:stop]]
        assert not spans or all(len(text) <= max_text for text in "".join(is_text).split())
        if stop < length:
            assert stop in [edge for each in media for edge in (each.start, each.end)]
        inside = [each for each in media if each.start < index < each.end]
        assert whole_prefix(media, index) == (inside[0].start if inside else index)
