"""Random models of llama.cpp's encoders: Corral's embeddings are those of llama.cpp alone."""

import time
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt
import pytest

from inference_svc.engine.embedder import Embedder
from inference_svc.engine.embedding_request import EmbeddingRequest
from inference_svc.engine.events import Embedded
from inference_svc.llama import library
from inference_svc.llama.embeddings import EmbeddingSettings, LlamaEmbedding
from inference_svc.models.metadata import Pooling, describe_model
from tests.outside.llama_cpp.architectures import ENCODERS, write_architecture
from tests.outside.llama_cpp.results import check_results
from tests.outside.llama_cpp.test_architectures import PROMPT
from tests.support.llama_engines import select_events

DECODERS = ("gemma3", "llama", "qwen3")
"""Some of which embedding models are made."""
NAMES = (*ENCODERS.split(), *DECODERS)
POOLINGS = {1: Pooling.MEAN, 2: Pooling.CLS, 3: Pooling.LAST}
OTHERS = [7] * 50
INPUTS = [PROMPT[:1], PROMPT[:60], PROMPT[5:30], PROMPT[:10] + OTHERS, OTHERS + PROMPT[50:60]]
"""The last two begin or end as the second."""
CLOSE = 2e-3
"""llama.cpp computes attention with 16-bit floats."""
Vectors = npt.NDArray[np.float32]


@pytest.fixture(scope="module", params=[(name, pooling) for name in NAMES for pooling in POOLINGS])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of each architecture and each pooling type in its metadata."""
    name, pooling = request.param
    folder = tmp_path_factory.mktemp("models")
    return write_architecture(name, folder / f"{pooling}.gguf", pooling_type=pooling)


@pytest.fixture
def weights(path: Path) -> Iterator[Any]:
    library.start()
    params = llama_cpp.llama_model_default_params()
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
    yield model
    llama_cpp.llama_model_free(model)


def _plain(model: Any, tokens: Sequence[int]) -> Vectors:
    """What a context of llama.cpp with all defaults returns for one input, normalized."""
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = len(tokens)
    params.embeddings, params.n_threads, params.n_threads_batch = True, 1, 1
    context = llama_cpp.llama_init_from_model(model, params)
    values = (llama_cpp.llama_token * len(tokens))(*tokens)
    batch = llama_cpp.llama_batch_get_one(values, len(tokens))
    is_encoder = llama_cpp.llama_model_has_encoder(model)
    compute = llama_cpp.llama_encode if is_encoder else llama_cpp.llama_decode
    assert compute(context, batch) == 0
    width = llama_cpp.llama_model_n_embd_out(model)
    row = np.ctypeslib.as_array(llama_cpp.llama_get_embeddings_seq(context, 0), shape=(width,))
    vector: Vectors = (row / np.linalg.norm(row)).astype(np.float32)
    llama_cpp.llama_free(context)
    return vector


def _embed(model: Any, path: Path) -> Vectors:
    """Corral's vectors of all inputs, by the metadata of the file."""
    file = describe_model(path, "m")
    assert file.pooling is POOLINGS[int(path.stem)]
    settings = EmbeddingSettings(
        "m", file.pooling, file.is_causal, input_tokens=128, pack_tokens=256, threads=1,
        cell_bytes=file.kv_bytes_per_token if file.is_causal else 0,
    )  # fmt: skip
    backend = LlamaEmbedding(model, settings)
    embedder = Embedder("m", backend, pack_tokens=256, clock=time.monotonic)
    inputs = tuple(array("i", each) for each in INPUTS)
    embedder.submit(EmbeddingRequest(0, "m", inputs, normalize=True))
    vectors: dict[int, Any] = {}
    while embedder.has_work:
        events = select_events(embedder.step(), Embedded)
        vectors |= {event.input_index: event.vector for event in events}
    backend.close()
    return np.array([vectors[i] for i in range(len(INPUTS))])


def test_vectors_are_those_of_llama_cpp(weights: Any, path: Path) -> None:
    """Of several inputs in one batch; the pooling is that of the file."""
    expected = np.array([_plain(weights, tokens) for tokens in INPUTS])

    assert np.abs(_embed(weights, path) - expected).max() < CLOSE
    last, first = (np.abs(expected[1] - expected[i]).max() for i in (3, 4))
    assert max(last, first) > 5 * CLOSE


def test_results_are_published() -> None:
    """The numbers of embeddings, all of which these tests run."""
    num_encoders = len(ENCODERS.split())
    summary = (
        f"embeddings: {num_encoders} of {num_encoders} encoders and {len(DECODERS)} decoders give "
        f"llama.cpp's own vectors with {len(POOLINGS)} kinds of pooling"
    )
    check_results("embeddings", {"summary": summary, "columns": [], "rows": {}})
