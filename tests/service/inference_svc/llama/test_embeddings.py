"""Embeddings on llama.cpp: a tiny encoder compared with numpy, and the demo model."""

import time
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest

from inference_svc.engine.batch import BatchLimitExceeded, Row, TokenBatch, check_native_limits
from inference_svc.engine.embedder import Embedder
from inference_svc.engine.embedding_request import EmbeddingRequest, Vector
from inference_svc.engine.events import Embedded
from inference_svc.engine_client.messages import EngineConfig
from inference_svc.engine_process.model_load import load
from inference_svc.llama import library
from inference_svc.llama.backend import BackendSettings
from inference_svc.llama.embeddings import EmbeddingSettings, LlamaEmbedding
from inference_svc.llama.vocabulary import Vocabulary
from inference_svc.llama.weights import ModelLoadError, load_model
from inference_svc.models.metadata import Pooling, describe_model
from inference_svc.models.placement import Placement
from inference_svc.models.sources import BUNDLED_PATH
from svc_kit.errors import ModelTooLarge
from tests.support.bert import CLS, LAST, MEAN, TEXTS, Bert, random_bert
from tests.support.causal_reranker import write_causal_reranker
from tests.support.llama_engines import select_events

CLOSE = 2e-3
"""llama.cpp computes GELU with a table of 16-bit floats."""
POOLINGS = {Pooling.MEAN: MEAN, Pooling.CLS: CLS, Pooling.LAST: LAST}


@pytest.fixture(scope="module")
def bert() -> Bert:
    """Random weights of a tiny BERT model."""
    return random_bert()


@pytest.fixture(scope="module")
def encoder_path(bert: Bert, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The weights as a GGUF file."""
    return bert.write(tmp_path_factory.mktemp("bert") / "encoder.gguf")


@contextmanager
def open_model(
    path: Path, pooling: Pooling, *, is_causal: bool, input_tokens: int, pack_tokens: int = 32
) -> Iterator[tuple[LlamaEmbedding, Vocabulary]]:
    library.start()
    model = load_model(path, Placement())
    sizes: dict[str, Any] = {
        "input_tokens": input_tokens,
        "pack_tokens": pack_tokens,
        "cell_bytes": 3072,
    }
    backend = LlamaEmbedding(
        model, EmbeddingSettings("m", pooling, is_causal=is_causal, threads=1, **sizes)
    )
    try:
        yield backend, Vocabulary.from_model(model)
    finally:
        backend.close()
        llama_cpp.llama_model_free(model)


def embed(
    backend: LlamaEmbedding, inputs: Sequence[Sequence[int]], *, normalize: bool = True
) -> tuple[list[Vector], int]:
    """The vectors of inputs and the number of decodes."""
    embedder = Embedder("m", backend, pack_tokens=backend.limits.batch_tokens, clock=time.monotonic)
    embedder.submit(
        EmbeddingRequest(0, "m", tuple(array("i", each) for each in inputs), normalize=normalize)
    )
    vectors: dict[int, Vector] = {}
    steps = 0
    while embedder.has_work:
        steps += 1
        embedded = select_events(embedder.step(), Embedded)
        vectors |= {event.input_index: event.vector for event in embedded}
    return [vector for _, vector in sorted(vectors.items())], steps


@pytest.mark.parametrize("pooling", POOLINGS)
def test_an_encoder_computes_what_numpy_does(
    bert: Bert, encoder_path: Path, pooling: Pooling
) -> None:
    """All inputs share a decode; each vector equals that of a forward pass in numpy."""
    with open_model(encoder_path, pooling, is_causal=False, input_tokens=64) as (
        backend,
        vocabulary,
    ):
        inputs = [
            vocabulary.tokenize(text, add_special=True, parse_special=False) for text in TEXTS
        ]
        vectors, steps = embed(backend, inputs)

    words = ["[CLS]", "the", "quick", "brown", "fox", "[SEP]"]
    assert [bert.words[token] for token in inputs[0]] == words
    assert steps == 1
    for vector, tokens in zip(vectors, inputs, strict=True):
        assert np.abs(vector - bert.embedding(tokens, POOLINGS[pooling])).max() < CLOSE


def test_the_longest_input_is_computed_and_a_longer_one_refused(
    bert: Bert, encoder_path: Path
) -> None:
    """An encoder is limited by its position table; beyond it llama.cpp terminates the process."""
    with open_model(encoder_path, Pooling.MEAN, is_causal=False, input_tokens=64) as (backend, _):
        longest = [5 + index % 16 for index in range(64)]
        (vector,), _ = embed(backend, [longest])

        assert np.abs(vector - bert.embedding(longest)).max() < CLOSE
        assert embed(backend, [[*longest, 5]]) == ([], 0)
        batch = TokenBatch.of([Row(0, 0, [*longest, 5], output=True)])
        with pytest.raises(BatchLimitExceeded):
            check_native_limits(batch, backend.limits.native)


@pytest.mark.parametrize("pooling", [Pooling.MEAN, Pooling.LAST])
def test_a_decoder_embeds_a_long_input_in_parts(pooling: Pooling) -> None:
    """Split over many decodes and batched with others, the vector is that of a single decode."""
    text = "Once upon a time there was a fox who lived in a forest. " * 8
    with open_model(BUNDLED_PATH, pooling, is_causal=True, input_tokens=512) as (small, vocabulary):
        long = vocabulary.tokenize(text, add_special=True, parse_special=False)
        short = vocabulary.tokenize("A fox.", add_special=True, parse_special=False)
        (in_parts, batched), steps = embed(small, [long, short])
    with open_model(BUNDLED_PATH, pooling, is_causal=True, input_tokens=512, pack_tokens=512) as (
        large,
        _,
    ):
        ((whole,), one), ((alone,), _) = embed(large, [long]), embed(large, [short])

    assert len(long) > 100
    assert (steps > 3, one) == (True, 1)
    assert float(in_parts @ whole) > 0.999
    assert float(batched @ alone) > 0.999


def test_a_ranking_decoder_scores_a_long_pair_in_parts(tmp_path: Path) -> None:
    """Its head reads the last token: the scores are those of a single decode, and they are
    probabilities."""
    path = write_causal_reranker(tmp_path / "ranks.gguf")
    file = describe_model(path, "m")
    scores = []
    for pack_tokens in (32, 512):
        sizes = {"input_tokens": 512, "pack_tokens": pack_tokens}
        with open_model(path, Pooling.RANK, is_causal=True, **sizes) as (backend, vocabulary):
            pair = vocabulary.tokenize("A fox. " * 40, add_special=False, parse_special=False)
            scores.append(embed(backend, [pair, pair[:9]], normalize=False)[0])
    in_parts, whole = scores

    assert (file.model_class, file.is_causal, file.gives_probabilities) == ("reranker", True, True)
    assert np.abs(np.array(in_parts) - np.array(whole)).max() < 0.01
    assert np.array(whole).sum(axis=1) == pytest.approx([1, 1], abs=1e-5)
    assert np.abs(whole[0] - whole[1]).max() > 0.05


def test_the_context_is_created_on_first_use() -> None:
    """A model that only chats uses no memory for embeddings."""
    with open_model(BUNDLED_PATH, Pooling.LAST, is_causal=True, input_tokens=512) as (backend, _):
        assert backend.limits.vector_size == 256
        assert backend._context is None


def test_a_context_that_does_not_fit_is_refused() -> None:
    """With the needed and the available size, before llama.cpp allocates memory."""
    with (
        open_model(BUNDLED_PATH, Pooling.LAST, is_causal=True, input_tokens=10**9) as (backend, _),
        pytest.raises(ModelTooLarge) as refusal,
    ):
        backend.embed(TokenBatch.of([Row(0, 0, (5,), output=True)]))

    assert refusal.value.needed_bytes > refusal.value.available_bytes > 0


@pytest.mark.parametrize(
    ("broken", "answer", "problem"),
    [
        (["llama_init_from_model"], None, "encoder: cannot create a context for embeddings of 32"),
        (["llama_encode", "llama_decode"], -3, "encoder cannot decode a warm-up batch"),
    ],
)
def test_an_encoder_that_cannot_start_is_a_load_error(
    monkeypatch: pytest.MonkeyPatch,
    encoder_path: Path,
    broken: list[str],
    answer: int | None,
    problem: str,
) -> None:
    """The engine process reports it to the frontend."""
    for name in broken:
        monkeypatch.setattr(llama_cpp, name, lambda *_: answer)
    sizes: dict[str, Any] = {"input_tokens": 32, "pack_tokens": 32, "cell_bytes": 0}
    embedding = EmbeddingSettings("encoder", Pooling.MEAN, is_causal=False, threads=1, **sizes)
    backend = BackendSettings(encoder_path, 0, 32, 32, 32, threads=1, sampling_threads=1)
    config = EngineConfig("encoder", backend, 32, 1, 1, embedding=embedding, generates=False)
    with pytest.raises(ModelLoadError, match=problem):
        load(config)
