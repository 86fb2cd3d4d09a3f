"""Chunks of vectors in the engine: their calls, files that are missing, and refusals."""

from array import array
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inference_svc.engine.batch import (
    BatchLimitExceeded,
    NativeLimits,
    Row,
    TokenBatch,
    check_native_limits,
)
from inference_svc.engine.events import Preempted
from inference_svc.engine.media import VectorFile, media_tokens
from inference_svc.engine.proposals import propose_tokens
from inference_svc.engine.request import AppliedAdapter, SequenceRequest
from inference_svc.engine.scheduler.policy import Policy
from inference_svc.engine.sequence import Sequence
from svc_kit.errors import DecodeFailed, InvalidField
from tests.support.fake_backend import VOCABULARY_SIZE, FakeBackend
from tests.support.media_prompts import Chunk, media_request, write_fake_chunk
from tests.support.sequences import EngineBench, expected_tokens, make_request

LIMITS = NativeLimits(64, 3, 3, 128, VOCABULARY_SIZE, ubatch_tokens=32, vector_width=1)
MIXED = replace(LIMITS, mixes_vectors=True)


@pytest.fixture
def picture(tmp_path: Path) -> Chunk:
    return write_fake_chunk(tmp_path, "picture", 20)


def _bench(limits: NativeLimits = LIMITS, chunk_cap: int = 16, **options: Any) -> EngineBench:
    return EngineBench(FakeBackend(limits), chunk_cap=chunk_cap, **options)


def test_tokens_and_vectors_of_a_step_are_computed_in_two_calls(picture: Chunk) -> None:
    """A step with a prompt in text and one in a chunk has a call for each kind; then the last token
    of the prompt joins the call of the other sequence."""
    bench = _bench(chunk_cap=64)
    bench.submit(media_request(0, [[65], picture, [66]]))
    bench.step()
    bench.submit(make_request(1, [67, 68, 69]))
    bench.step()
    bench.run()

    calls = [(batch.slots.tolist(), batch.vectors is None) for batch in bench.backend.batches]
    assert calls[:4] == [([0], True), ([1, 1, 1], True), ([0] * 20, False), ([0, 1], True)]
    prompt = media_request(0, [[65], picture, [66]]).prompt
    assert bench.tokens(0) == expected_tokens(prompt, 8)


def test_a_chunk_is_cut_by_the_budget_of_prompts(picture: Chunk) -> None:
    """Beside a stream, pieces of a causal chunk are as large as those of a prompt."""
    bench = _bench(chunk_cap=8)
    bench.submit(make_request(0, max_tokens=30))
    bench.step()
    bench.submit(media_request(1, [[65], picture, [66]]))
    bench.run()

    pieces = [len(batch.tokens) for batch in bench.backend.batches if batch.vectors is not None]
    assert sum(pieces) == 20
    assert max(pieces) <= 8


@pytest.mark.parametrize(
    ("policy", "step_s", "largest"),
    [
        (Policy.BALANCED, 0.01, 20),
        (Policy.BALANCED, 0.09, 8),
        (Policy.BALANCED, 0.2, 4),
        (Policy.LATENCY_FIRST, 0.2, 4),
        (Policy.THROUGHPUT_FIRST, 0.2, 20),
    ],
)
def test_pieces_of_a_chunk_keep_the_target_time_of_streams(
    picture: Chunk, policy: Policy, step_s: float, largest: int
) -> None:
    """They have at least four vectors; a policy without a target computes the chunk at once."""
    times = {1: step_s, 3: step_s}
    bench = _bench(chunk_cap=64, policy=policy, measured=times, token_target_s=0.43)
    bench.submit(make_request(0, max_tokens=30))
    bench.step()
    bench.submit(media_request(1, [[65], picture, [66]]))
    bench.run()

    pieces = [len(batch.tokens) for batch in bench.backend.batches if batch.vectors is not None]
    assert (pieces[0], sum(pieces)) == (largest, 20)


@pytest.mark.parametrize(("num_tokens", "pieces"), [(6, [4, 1]), (17, [17])])
def test_the_few_tokens_after_a_picture_keep_the_target_time_of_streams(
    picture: Chunk, num_tokens: int, pieces: list[int]
) -> None:
    """They are cut like the vectors of the picture, and the last one joins the call of the streams;
    a longer text is a prompt like others."""
    times = {1: 0.2, 3: 0.2}
    bench = _bench(chunk_cap=64, measured=times, token_target_s=0.43)
    bench.submit(make_request(0, max_tokens=40))
    bench.step()
    bench.submit(media_request(1, [[65], picture, list(range(66, 66 + num_tokens))]))
    bench.run()

    slots = [batch.slots.tolist() for batch in bench.backend.batches if batch.vectors is None]
    texts = [rows for rows in slots if 1 in rows]
    assert texts[1 : 2 + len(pieces)] == [*([1] * count for count in pieces), [0, 1]]


def _calls(bench: EngineBench, slot: int = 0) -> list[tuple[int, bool]]:
    """The tokens of each call that a slot is part of, and whether they are vectors."""
    batches = [batch for batch in bench.backend.batches if slot in batch.slots]
    return [(int((batch.slots == slot).sum()), batch.vectors is not None) for batch in batches]


@pytest.mark.parametrize(
    ("changes", "calls"),
    [
        ({}, [(32, True)]),
        ({"deterministic": True}, [(3, False), (20, True), (9, False)]),
        ({"prompt_logprobs": 0}, [(3, False), (20, True), (3, False), (3, False), (3, False)]),
    ],
)
def test_short_texts_are_computed_with_the_picture_beside_them(
    picture: Chunk, changes: dict[str, Any], calls: list[tuple[int, bool]]
) -> None:
    """Not if the sequence is deterministic, which may resume with other texts, or needs logits."""
    bench = _bench(MIXED, chunk_cap=64)
    request = media_request(0, [[65] * 3, picture, [66] * 9], max_tokens=1, **changes)
    bench.submit(request)
    bench.run()

    assert _calls(bench)[: len(calls)] == calls
    assert bench.tokens(0) == expected_tokens(request.prompt, 1)


def test_an_adapter_may_change_the_vectors_of_tokens(picture: Chunk) -> None:
    """So texts beside a picture have rows of their own."""
    parts: list[Any] = [[65] * 3, picture, [66] * 9]
    adapters = (AppliedAdapter("0" * 64, 1.0),)
    rows = [
        Sequence(media_request(0, parts, adapters=stack), arrived_at=0.0).next_row(64)
        for stack in ((), adapters)
    ]

    assert [(len(spans), count) for spans, count in rows] == [(1, 32), (0, 3)]


@pytest.mark.parametrize("num_text", [2, 10, 30, 60])
@pytest.mark.parametrize("step_s", [0.02, 0.09, 0.2])
def test_beside_streams_a_text_joins_a_picture_only_if_there_is_room(
    picture: Chunk, num_text: int, step_s: float
) -> None:
    """It never takes more calls than a text of its own."""
    numbers = []
    for limits in (LIMITS, MIXED):
        times = {1: step_s, 3: step_s}
        bench = _bench(limits, chunk_cap=64, measured=times, token_target_s=0.43)
        bench.submit(make_request(0, max_tokens=60))
        bench.step()
        bench.submit(media_request(1, [[65] * num_text, picture, [66] * 3], max_tokens=1))
        bench.run()
        numbers.append(len(_calls(bench, 1)))

    assert numbers[1] <= numbers[0]


def test_an_encoder_gets_a_share_of_the_time_while_it_encodes(picture: Chunk) -> None:
    """A share of the decode calls of streams, less if the step computed vectors, and at least a
    tenth of the step."""

    def decode(batch: TokenBatch) -> int:
        bench.clock.now += 0.05 if batch.vectors is None else 0.02
        return 0

    bench = EngineBench(FakeBackend(LIMITS, fails=decode), chunk_cap=8)
    bench.submit(make_request(0, max_tokens=30))
    pauses = []
    for step in range(4):
        if step == 2:
            bench.submit(media_request(1, [[65], picture, [66]]))
        bench.step()
        pauses.append(bench.engine.encoder_pause_s)

    assert pauses == pytest.approx([0.005, 0.0175, 0.0175, 0.007])


def test_an_encoder_gets_less_time_after_a_slow_decode_call() -> None:
    """So that such a step is not followed by a pause of its own length."""
    durations = [0.05, 0.05, 0.06, 0.08, 0.05]

    def decode(_batch: TokenBatch) -> int:
        bench.clock.now += durations.pop(0)
        return 0

    bench = EngineBench(FakeBackend(LIMITS, fails=decode), measured={1: 0.05})
    bench.submit(make_request(0, max_tokens=30))
    pauses = []
    while durations:
        bench.step()
        pauses.append(bench.engine.encoder_pause_s)

    assert pauses == pytest.approx([0.005, 0.0175, 0.0075, 0.008, 0.0175])


def test_a_step_with_drafts_counts_as_no_slow_one() -> None:
    """It takes longer than one of single tokens, but brings several."""

    def decode(batch: TokenBatch) -> int:
        bench.clock.now += 0.05 if len(batch.tokens) == 1 else 0.1
        return 0

    limits = replace(LIMITS, output_rows=LIMITS.slots + 8)
    bench = EngineBench(FakeBackend(limits, repeats=True, fails=decode), measured={1: 0.05})
    bench.submit(make_request(0, max_tokens=60))
    pauses = set()
    while bench.engine.has_work:
        bench.step()
        pauses.add(round(bench.engine.encoder_pause_s, 4))

    assert bench.finished(0).num_drafted
    assert pauses >= {0.0175, 0.035}


def test_non_causal_chunks_are_computed_whole_and_alone(tmp_path: Path) -> None:
    """Two of them beside a stream take a call each, one in a step that lacks budget for both."""
    bench = _bench(chunk_cap=8)
    bench.submit(make_request(0, max_tokens=30))
    bench.step()
    for i, size in ((1, 20), (2, 24)):
        chunk = write_fake_chunk(tmp_path, f"whole{i}", size, is_causal=False)
        bench.submit(media_request(i, [[64 + i], chunk, [66]]))
    bench.step()
    numbers = []
    for _ in range(3):
        before = len(bench.backend.batches)
        bench.step()
        step = bench.backend.batches[before:]
        numbers.append([len(batch.tokens) for batch in step if batch.vectors is not None])
    bench.run()

    assert sorted(chain.from_iterable(numbers)) == [20, 24]
    assert max(map(len, numbers)) == 1


def test_chunks_are_computed_again_after_a_preemption_without_memory(tmp_path: Path) -> None:
    """A sequence that lost its cells while it generated computes text and vectors in turn."""
    chunk = write_fake_chunk(tmp_path, "small", 3)
    bench = _bench(replace(LIMITS, slot_tokens=40, cells=50))
    requests = [
        media_request(i, [[70 + i, 71], chunk, [72, 73]], max_tokens=24, reuse=False)
        for i in range(2)
    ]
    bench.submit(*requests)
    bench.run()

    assert any(isinstance(event, Preempted) for event in bench.events)
    for i, request in enumerate(requests):
        assert bench.tokens(i) == expected_tokens(request.prompt, 24)


@pytest.mark.parametrize("size", [None, 0, 79])
def test_a_file_without_the_vectors_fails_its_sequence_only(
    picture: Chunk, tmp_path: Path, size: int | None
) -> None:
    """A missing or short file is a typed error of its sequence; another in the call goes on."""
    path = tmp_path / "other.vectors"
    if size is not None:
        path.write_bytes(bytes(size))
    broken = replace(picture, vectors=VectorFile(path, 0), digest=b"other")
    bench = _bench(chunk_cap=64)
    requests = [media_request(i, [[65], each, [66]]) for i, each in enumerate((broken, picture))]
    bench.submit(*(replace(request, request_id="r") for request in requests))
    bench.run()

    assert {i: failed.error for i, failed in bench.failures().items()} == {
        0: DecodeFailed(request_id="r")
    }
    assert bench.tokens(1) == expected_tokens(requests[1].prompt, 8)


def test_a_chunk_at_the_end_of_a_prompt_is_refused(picture: Chunk) -> None:
    """A vector has no logits to sample from."""
    assert _refusal(media_request(0, [[65], picture])) == "text must follow a picture or sound"


def test_spans_that_are_not_where_the_vectors_are_are_refused(picture: Chunk) -> None:
    """A prompt of text has no chunk."""
    request = media_request(0, [[65], picture, [66]])
    moved = replace(request, prompt=array("i", [65] * 22))

    assert _refusal(moved) == "its vectors are not where its media are"


def test_a_non_causal_chunk_larger_than_a_micro_batch_is_refused(picture: Chunk) -> None:
    """It cannot be computed whole."""
    whole = replace(picture, is_causal=False)
    problem = _refusal(media_request(0, [[65], whole, [66]]), replace(LIMITS, ubatch_tokens=19))

    assert problem == "it has a picture of 20 tokens, more than 19"


def _refusal(request: SequenceRequest, limits: NativeLimits = LIMITS) -> str:
    """The problem of the prompt, of which nothing is computed."""
    bench = _bench(limits)
    bench.submit(request)
    bench.step()
    error = bench.failures()[0].error
    assert isinstance(error, InvalidField)
    assert (error.field, bench.backend.batches) == ("prompt", [])
    return error.problem


def test_vectors_are_never_proposed() -> None:
    """A draft ends before a chunk that followed an earlier match, and is empty at its start."""
    tokens = array("i", [5, 6, 7, 8, -3, -4, 9, 5, 6, 7])

    assert propose_tokens(tokens, 4) == array("i", [8])
    assert propose_tokens(array("i", [5, 6, 7, -3, 9, 5, 6, 7]), 4) == array("i")


def _vector_row(chunk: Chunk, count: int, slot: int = 0, *, output: bool = False) -> Row:
    return Row(slot, 0, media_tokens(chunk.digest, count), output, spans=(chunk.span(0),))


@pytest.mark.parametrize(
    ("vectors", "is_causal", "counts", "message"),
    [
        (np.zeros((20, 2), np.float32), True, (20,), r"not of \(20, 1\)"),
        (np.zeros((19, 1), np.float32), True, (20,), r"not of \(20, 1\)"),
        (np.zeros((20, 1)), True, (20,), "float64"),
        (np.zeros((19, 1), np.float32), False, (19,), "not whole and alone"),
        (np.zeros((40, 1), np.float32), False, (20, 20), "not whole and alone"),
    ],
)
def test_vectors_that_llama_cpp_cannot_compute_are_refused(
    picture: Chunk,
    vectors: "np.ndarray[tuple[int, int], np.dtype[np.float32]]",
    is_causal: bool,
    counts: tuple[int, ...],
    message: str,
) -> None:
    """Wrong widths, counts and types, and non-causal chunks that are cut or not alone."""
    chunk = replace(picture, is_causal=is_causal)
    rows = [_vector_row(chunk, count, slot) for slot, count in enumerate(counts)]

    with pytest.raises(BatchLimitExceeded, match=message):
        check_native_limits(TokenBatch.of(rows, [vectors]), LIMITS)


@pytest.mark.parametrize(
    ("token", "limits", "message"),
    [(65, LIMITS, "has text"), (VOCABULARY_SIZE, MIXED, f"token {VOCABULARY_SIZE}")],
)
def test_text_that_llama_cpp_cannot_compute_as_vectors_is_refused(
    picture: Chunk, token: int, limits: NativeLimits, message: str
) -> None:
    """Of a model whose vectors are not known, or beyond its vocabulary."""
    row = _vector_row(picture, 20)
    row = row._replace(tokens=[*row.tokens, token])
    batch = TokenBatch.of([row], [np.zeros((21, 1), np.float32)])

    with pytest.raises(BatchLimitExceeded, match=message):
        check_native_limits(batch, limits)


def test_a_vector_has_no_output(picture: Chunk) -> None:
    """Text follows each chunk, so logits after a vector are a defect."""
    batch = TokenBatch.of([_vector_row(picture, 20, output=True)], [picture.read(1)])

    with pytest.raises(BatchLimitExceeded, match="output"):
        check_native_limits(batch, LIMITS)
