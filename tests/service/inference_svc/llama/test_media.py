"""Chunks of vectors in the engine on llama.cpp: pictures and sounds beside text."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inference_svc.engine.backend import DecodeError, SampledToken, SampleTask
from inference_svc.engine.batch import Row, TokenBatch
from inference_svc.engine.engine import Engine
from inference_svc.engine.events import CacheSource, Event, Preempted, Resumed, Started
from inference_svc.engine.media import media_tokens, read_row
from inference_svc.engine.sampling_params import Dry, Sampling
from inference_svc.llama.backend import LlamaBackend
from inference_svc.models.sources import BUNDLED_PATH
from tests.support.llama_engines import (
    clear_slots,
    make_engine,
    open_backend,
    output_tokens,
    run_engine,
    select_events,
)
from tests.support.media_models import MediaPair
from tests.support.media_prompts import Chunk, Part, media_request, token_vectors, write_chunk
from tests.support.plain_llama import PlainLlama
from tests.support.sequences import ManualClock, make_request
from tests.support.snapshots import save_prefix, write_and_read

COUNT = 12
TEXT = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
STORY = "Tell me a story about Mira and the long road over the hills to the sea. " * 4
LAYOUTS = {"streams": None, "unified": 700}
KINDS = {
    "causal": ("janus_pro", None, True),
    "non-causal": ("gemma3", None, False),
    "M-RoPE": ("qwen2vl_merger", (8, 5), True),
    "deepstack": ("qwen3vl_merger", (5, 8), True),
}


def _tokens(backend: LlamaBackend, text: str) -> list[int]:
    return list(backend.vocabulary.tokenize(text, add_special=False, parse_special=True))


def _engine(backend: LlamaBackend, **options: Any) -> Engine:
    # A clock that stands still: neither chunks nor waits depend on the load of the machine.
    return make_engine(backend, saved_bytes=64 << 20, clock=ManualClock(), **options)


def _fields(**changes: Any) -> dict[str, Any]:
    return {"max_tokens": COUNT, "ignore_eos": True, **changes}


@pytest.fixture(scope="module", params=LAYOUTS, ids=str)
def demo(request: pytest.FixtureRequest) -> Any:
    """The demo model in each layout, with micro-batches of 64 tokens."""
    with open_backend(shared_cells=LAYOUTS[request.param], ubatch_tokens=64) as backend:
        yield backend


@pytest.fixture(scope="module")
def vectors() -> Any:
    """The vector of each token of the demo model."""
    return token_vectors(BUNDLED_PATH)


def _replace(tokens: list[int], start: int, end: int, vectors: Any, folder: Path) -> list[Part]:
    return [tokens[:start], write_chunk(folder, vectors[tokens[start:end]]), tokens[end:]]


def test_vectors_of_tokens_are_computed_as_the_tokens(
    demo: LlamaBackend, vectors: Any, tmp_path: Path
) -> None:
    """A prompt with the vectors of its tokens in place of them has the same output, however the
    chunk is cut into pieces, and beside streams of text."""
    tokens = _tokens(demo, STORY + TEXT)
    expected = output_tokens(run_engine(_engine(demo), media_request(0, [tokens], **_fields())))
    parts = _replace(tokens, 20, 100, vectors, tmp_path)

    engine = _engine(demo, chunk_cap=48)
    requests = [
        media_request(0, [tokens[:-1], tokens[-1:]], **_fields(max_tokens=40)),
        media_request(1, parts, **_fields(cache_key=b"a")),
        media_request(2, _replace(tokens, 3, 60, vectors, tmp_path), **_fields(cache_key=b"b")),
    ]
    events = run_engine(engine, *requests)

    assert output_tokens(events, 0)[:COUNT] == expected
    assert output_tokens(events, 1) == output_tokens(events, 2) == expected


def test_a_picture_that_was_seen_is_not_computed_again(
    demo: LlamaBackend, vectors: Any, tmp_path: Path
) -> None:
    """A second prompt with the same chunk computes only what follows it; a chunk of another digest
    is computed, although its vectors are equal."""
    tokens = _tokens(demo, STORY + TEXT)
    engine, parts = _engine(demo), _replace(tokens, 20, 100, vectors, tmp_path)
    first = run_engine(engine, media_request(0, parts, **_fields()))
    same = run_engine(engine, media_request(1, [*parts[:2], tokens[100:]], **_fields()))
    text, chunk, rest = parts
    assert isinstance(chunk, Chunk)
    other = Chunk(chunk.vectors, chunk.num_tokens, b"other")
    different = run_engine(engine, media_request(2, [text, other, rest], **_fields()))

    cached = [select_events(events, Started)[0].cached_tokens for events in (same, different)]
    assert cached == [len(tokens) - 1, 20]
    assert output_tokens(first) == output_tokens(same, 1) == output_tokens(different, 2)


def test_choices_compute_a_chunk_once(demo: LlamaBackend, vectors: Any, tmp_path: Path) -> None:
    """Of four choices, three wait until the first one has computed the chunk."""
    tokens = _tokens(demo, STORY + TEXT)
    parts, engine = _replace(tokens, 20, 100, vectors, tmp_path), _engine(demo)
    choices = [media_request(i, parts, **_fields(choice=i)) for i in range(4)]
    events = run_engine(engine, *choices)
    alone = output_tokens(run_engine(_engine(demo), choices[3]), 3)

    started = select_events(events, Started)
    assert sorted(each.cached_tokens for each in started) == [0, 100, 100, 100]
    assert [output_tokens(events, i) for i in range(4)] == [alone] * 4


@pytest.mark.parametrize("max_draft", [0, 31])
def test_drafts_after_a_repeated_picture(vectors: Any, tmp_path: Path, max_draft: int) -> None:
    """Where an earlier match is followed by vectors, the output is the same with drafts."""
    with open_backend(draft_tokens=64) as backend:
        tokens = _tokens(backend, STORY + TEXT)
        chunk = write_chunk(tmp_path, vectors[tokens[:20]])
        parts: list[Part] = [tokens[:30], chunk, tokens[:30], chunk, tokens]
        engine = _engine(backend, token_times={1: 1.0, 32: 1.0}, step_times={1: 1.0, 4: 1.0})
        request = media_request(0, parts, **_fields(max_draft=max_draft, max_tokens=40))
        events = run_engine(engine, request)
        plain = run_engine(_engine(backend), media_request(0, parts, **_fields(max_tokens=40)))

    assert output_tokens(events) == output_tokens(plain)


@pytest.fixture(params=KINDS, ids=str)
def scene(
    request: pytest.FixtureRequest, media_pair: Callable[[str], MediaPair], tmp_path: Path
) -> "Scene":
    """A random model of each kind."""
    kind, grid, is_causal = KINDS[request.param]
    return Scene(media_pair(kind).model, tmp_path, grid, is_causal)


class Scene:
    """A model with prompts of two chunks each."""

    def __init__(
        self, path: Path, folder: Path, grid: tuple[int, int] | None, is_causal: bool
    ) -> None:
        self.path = path
        self._folder = folder
        self._fields: dict[str, Any] = {"grid": grid, "is_causal": is_causal}

    def chunk(self, seed: int) -> Chunk:
        """A chunk of 40 random vectors."""
        with closing(PlainLlama(self.path)) as plain:
            width = plain.width
        values = np.random.default_rng(seed).standard_normal((40, width), np.float32) * 0.2
        return write_chunk(self._folder, values, **self._fields)

    def parts(self, seed: int) -> list[Part]:
        text = np.random.default_rng(seed).integers(5, 1000, 60).tolist()
        return [text[:20], self.chunk(seed), text[20:27], self.chunk(seed + 1), text[27:]]

    def expected(self, parts: list[Part], count: int = COUNT) -> list[int]:
        """The output of llama.cpp alone."""
        with closing(PlainLlama(self.path)) as plain:
            return plain.generate(parts, count)


@pytest.mark.parametrize("mixes", [False, True])
@pytest.mark.parametrize("cells", LAYOUTS.values(), ids=LAYOUTS.keys())
@pytest.mark.batch_invariant
def test_output_equals_that_of_llama_cpp_alone(
    scene: Scene, cells: int | None, mixes: bool
) -> None:
    """Three prompts at once, with chunks computed in pieces or whole, and with the texts beside
    them or without, equal llama.cpp with each part in a batch of its own; repeated prompts reuse
    all but the last token."""
    prompts = [scene.parts(seed) for seed in (1, 5, 9)]
    expected = [scene.expected(parts) for parts in prompts]
    sizes: dict[str, Any] = {"shared_cells": cells, "ubatch_tokens": 64}
    with open_backend(scene.path, mixes=mixes, **sizes) as backend:
        engine = _engine(backend, chunk_cap=24)
        requests = [media_request(i, each, **_fields()) for i, each in enumerate(prompts)]
        events = run_engine(engine, *requests)
        again = [media_request(3 + i, each, **_fields()) for i, each in enumerate(prompts)]
        repeated = run_engine(engine, *again)

    assert [output_tokens(events, i) for i in range(3)] == expected
    assert [output_tokens(repeated, 3 + i) for i in range(3)] == expected
    assert {each.cached_tokens for each in select_events(repeated, Started)} == {139}


@pytest.mark.batch_invariant
def test_a_sequence_preempted_in_a_chunk_goes_on(scene: Scene) -> None:
    """Batch work that is preempted while its chunk is computed resumes with the same output."""
    parts = scene.parts(1)
    with open_backend(scene.path, slots=1, ubatch_tokens=64, mixes=True) as backend:
        engine = _engine(backend, chunk_cap=16)
        events = run_engine(engine, media_request(0, parts, **_fields(priority=1)), steps=4)
        computed = engine.running[0].num_computed
        urgent = media_request(1, [[7, 8, 9]], **_fields(priority=3, max_tokens=3))
        events += run_engine(engine, urgent)

    assert 20 < computed < 107
    assert select_events(events, Preempted)
    assert select_events(events, Resumed)
    assert output_tokens(events) == scene.expected(parts)


def test_a_snapshot_with_chunks_is_restored(scene: Scene) -> None:
    """A state written to a file and restored in a context of another size serves a request with the
    same chunks, without reading their vectors."""
    parts = scene.parts(1)
    expected = scene.expected(parts)
    with open_backend(scene.path, slots=2, ubatch_tokens=64) as backend:
        engine = _engine(backend)
        request = media_request(0, parts, **_fields(request_id="r", keep=True))
        run_engine(engine, request)
        restored = write_and_read(save_prefix(engine, "r"))
    for part in parts:
        if isinstance(part, Chunk):
            part.vectors.path.unlink()
    with open_backend(scene.path, slots=3, ubatch_tokens=64) as backend:
        engine = _engine(backend)
        assert engine.prefix_cache.put(restored)
        events: list[Event] = run_engine(engine, media_request(1, parts, **_fields()))

    (started,) = select_events(events, Started)
    assert (started.cached_tokens, started.source) == (139, CacheSource.DISK)
    assert output_tokens(events, 1) == expected


@pytest.mark.parametrize(
    ("kind", "mixes"),
    [("janus_pro", True), ("qwen2vl_merger", True), ("qwen3vl_merger", True), ("gemma3", False)],
)
def test_texts_join_pictures_where_the_model_reads_vectors_as_tokens(
    media_pair: Callable[[str], MediaPair], tmp_path: Path, kind: str, mixes: bool
) -> None:
    """A prompt with a picture between short texts is one call then. Gemma scales what it looks up
    for tokens, so its texts have calls of their own."""
    scene = Scene(media_pair(kind).model, tmp_path, None, is_causal=True)
    parts: list[Part] = [list(range(20, 30)), scene.chunk(3), [7, 8]]
    with open_backend(scene.path, mixes=True) as backend:
        engine = _engine(backend)
        events = run_engine(engine, media_request(0, parts, **_fields(max_tokens=1)))
        assert backend.limits.mixes_vectors == mixes

    assert engine.num_steps == (1 if mixes else 3)
    assert output_tokens(events) == scene.expected(parts, 1)


def _piece(chunk: Chunk, first: int, end: int, width: int) -> TokenBatch:
    """The vectors of a chunk that starts in cell 10."""
    tokens = media_tokens(chunk.digest, chunk.num_tokens)[first:end]
    row = Row(0, 10 + first, tokens, output=False, spans=(chunk.span(10),))
    return TokenBatch.of([row], [chunk.read(width)[first:end]])


def test_a_grid_whose_second_piece_fails_is_dropped_whole(
    media_pair: Callable[[str], MediaPair], tmp_path: Path
) -> None:
    """When the cells run out in it, the slot ends before the picture, which is then computed with
    the same result as by llama.cpp alone."""
    scene = Scene(media_pair("qwen2vl_merger").model, tmp_path, (8, 5), is_causal=True)
    chunk, text = scene.chunk(3), list(range(20, 30))
    sizes: dict[str, Any] = {"context_tokens": 256, "shared_cells": 256}
    with open_backend(scene.path, slots=2, **sizes) as backend:
        width = backend.limits.vector_width
        backend.decode(TokenBatch.of([Row(1, 0, [9] * 220, output=False)]))
        backend.decode(TokenBatch.of([Row(0, 0, text, output=False)]))
        backend.decode(_piece(chunk, 0, 20, width))
        assert (backend.slot_length(0), backend.used_cells) == (30, 250)
        with pytest.raises(DecodeError):
            backend.decode(_piece(chunk, 20, 40, width))
        assert (backend.slot_length(0), backend.used_cells) == (10, 230)
        backend.trim(1, 0)
        backend.decode(_piece(chunk, 0, 40, width))
        backend.decode(TokenBatch.of([Row(0, 50, [7, 8], output=True)]))
        with closing(backend.new_sampler(make_request())) as sampler:
            (sampled,) = backend.sample([SampleTask(0, sampler, 0)])
        assert (backend.slot_length(0), backend.used_cells) == (52, 52)
        assert not backend.trim(0, 20)

    assert isinstance(sampled, SampledToken)
    assert [sampled.token] == scene.expected([text, chunk, [7, 8]], 1)


def test_a_failed_row_of_texts_and_a_grid_is_computed_again(
    media_pair: Callable[[str], MediaPair], tmp_path: Path
) -> None:
    """When the cells run out in its second micro-batch."""
    scene = Scene(media_pair("qwen2vl_merger").model, tmp_path, (8, 5), is_causal=True)
    chunk, text = scene.chunk(3), list(range(20, 30))
    request = media_request(0, [text, chunk, [7, 8]])
    row = Row(0, 0, request.prompt, output=True, spans=request.media)
    sizes: dict[str, Any] = {"context_tokens": 256, "shared_cells": 256, "ubatch_tokens": 32}
    with open_backend(scene.path, slots=2, mixes=True, **sizes) as backend:
        vectors = read_row(row.spans, 0, len(row.tokens), backend.limits.vector_width)
        backend.decode(TokenBatch.of([Row(1, 0, [9] * 220, output=False)]))
        with pytest.raises(DecodeError):
            backend.decode(TokenBatch.of([row], [vectors]))
        backend.trim(0, 0)
        backend.trim(1, 0)
        backend.decode(TokenBatch.of([row], [vectors]))
        best = int(backend.logits(0).argmax())
        assert (backend.slot_length(0), backend.used_cells) == (52, 52)

    assert [best] == scene.expected([text, chunk, [7, 8]], 1)


def test_penalties_do_not_count_vectors(demo: LlamaBackend, vectors: Any, tmp_path: Path) -> None:
    """A sampler with penalties and DRY samples as one that has seen only the text."""
    tokens = _tokens(demo, TEXT)
    sampling = Sampling(temperature=0.0, repetition_penalty=1.5, dry=Dry(2.0))
    clear_slots(demo)
    demo.decode(TokenBatch.of([Row(0, 0, tokens, output=True)]))
    chunk = write_chunk(tmp_path, vectors[tokens[:5]])
    prompts: list[list[Part]] = [[tokens], [tokens[:4], chunk, tokens[4:]]]
    requests = [media_request(0, parts, sampling=sampling) for parts in prompts]
    samplers = [demo.new_sampler(request) for request in requests]
    sampled = [demo.sample([SampleTask(0, sampler, 0)])[0] for sampler in samplers]
    for sampler in samplers:
        sampler.close()

    assert isinstance(sampled[0], SampledToken)
    assert sampled[0] == sampled[1]
