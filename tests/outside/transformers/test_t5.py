"""An encoder-decoder model beside transformers: the same outputs with the same random weights.

`make test-clients` installs transformers and runs this module; CORRAL_TRANSFORMERS is the Python
that has it.
"""

import json
import os
import random
import subprocess
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np
import numpy.typing as npt
import pytest

from inference_svc.engine.engine import Engine
from inference_svc.engine.events import Event
from inference_svc.engine.request import SequenceRequest
from inference_svc.llama.backend import LlamaBackend
from inference_svc.models.metadata import describe_model
from tests.support import model_kinds
from tests.support.llama_engines import (
    deltas,
    make_engine,
    open_backend,
    output_tokens,
    run_engine,
)
from tests.support.sequences import make_request

PYTHON = os.environ.get("CORRAL_TRANSFORMERS", "")
pytestmark = [
    pytest.mark.skipif(not PYTHON, reason="transformers is not installed (CORRAL_TRANSFORMERS)"),
    pytest.mark.timeout(240),
]
PROGRAM = Path(__file__).with_name("t5_program.py")
START, END = 0, 2
CONFIG = {
    "vocab_size": len(model_kinds.TOKENS),
    "d_model": model_kinds.WIDTH,
    "d_kv": model_kinds.HEAD,
    "d_ff": model_kinds.FFN,
    "num_layers": model_kinds.LAYERS,
    "num_heads": model_kinds.HEADS,
    "relative_attention_num_buckets": model_kinds.BUCKETS,
    "pad_token_id": START,
    "decoder_start_token_id": START,
    "eos_token_id": END,
}
FORMS: dict[str, dict[str, Any]] = {
    "1.1": {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    "1.0": {"feed_forward_proj": "relu", "tie_word_embeddings": True},
}
SEED = 6
"""Of weights whose greedy choices are clear: the margins are larger than the tolerance."""
MAX_TOKENS = 24
LOGPROB_TOLERANCE = 0.05
"""Differences of 0.03 were measured, and of 0.004 on average; the logits vary by 5.6."""
_RANDOM = random.Random(3)
SOURCES = [
    [*_RANDOM.choices(range(3, len(model_kinds.TOKENS)), k=k), END] for k in (1, 20, 60, 130, 300)
]
"""Within the exact buckets of positions, within the logarithmic ones, and beyond the last."""


class Reference(NamedTuple):
    """A model file, and for each source the greedy output and the logits of each of its tokens."""

    path: Path
    outputs: list[list[int]]
    logits: npt.NDArray[np.float32]


@pytest.fixture(scope="module", params=FORMS)
def reference(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Reference:
    folder = tmp_path_factory.mktemp("t5")
    config = {**CONFIG, **FORMS[request.param]}
    job = {"config": config, "seed": SEED, "sources": SOURCES, "max_tokens": MAX_TOKENS}
    environment = {**os.environ, "PYTHONPATH": "", "JAX_PLATFORMS": "cpu"}
    command: list[str | Path] = [PYTHON, PROGRAM, folder / "arrays.npz"]
    program = subprocess.run(
        command, input=json.dumps(job), env=environment, capture_output=True, text=True, check=False
    )
    assert program.returncode == 0, program.stderr
    arrays = dict(np.load(folder / "arrays.npz"))
    rows, logits = arrays.pop("outputs").tolist(), arrays.pop("logits")
    outputs = [row[: row.index(END) + 1] if END in row else row for row in rows]
    return Reference(_write_model(arrays, folder / "t5.gguf"), outputs, logits)


def _write_model(weights: dict[str, npt.NDArray[np.float32]], path: Path) -> Path:
    """Write the weights under the names that llama.cpp's converter gives them."""
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.T5, model_kinds.LAYERS)
    named = {str(names.get_name(name, (".weight",))): item for name, item in weights.items()}
    return model_kinds.write_model_of_kind("t5", path, named)


@pytest.fixture(scope="module")
def backend(reference: Reference) -> Iterator[LlamaBackend]:
    """A slot for each source, and room in the encoder for all of them."""
    total = sum(map(len, SOURCES))
    sizes: Any = {"batch_tokens": total, "ubatch_tokens": total, "shared_cells": 1024}
    sizes["logit_scale"] = describe_model(reference.path, "t5").logit_scale
    with open_backend(reference.path, slots=len(SOURCES), **sizes) as backend:
        yield backend


@pytest.fixture
def engine(backend: LlamaBackend) -> Engine:
    """An engine on empty slots."""
    return make_engine(backend)


def _request(i: int, **changes: Any) -> SequenceRequest:
    fields = {"max_tokens": MAX_TOKENS, "reuse": False, **changes}
    return make_request(i, [START], source=array("i", SOURCES[i]), **fields)


def test_outputs_are_those_of_transformers(engine: Engine, reference: Reference) -> None:
    """For sources of any length, one after the other."""
    outputs = [output_tokens(run_engine(engine, _request(i)), i) for i in range(len(SOURCES))]

    assert outputs == reference.outputs


@pytest.mark.parametrize("steps", [1, 4])
def test_outputs_are_those_of_transformers_when_sequences_join(
    engine: Engine, reference: Reference, steps: int
) -> None:
    """Each while those before it run, after so many steps."""
    events: list[Event] = []
    for i in reversed(range(len(SOURCES))):
        events += run_engine(engine, _request(i), steps=steps)
    events += run_engine(engine)

    assert [output_tokens(events, i) for i in range(len(SOURCES))] == reference.outputs


def test_probabilities_are_those_of_transformers(engine: Engine, reference: Reference) -> None:
    """Of the twenty most probable tokens at each place, while all sources run together."""
    requests = [_request(i, top_logprobs=20, max_draft=0) for i in range(len(SOURCES))]
    events = run_engine(engine, *requests)
    differences = []
    for i in range(len(SOURCES)):
        logits = reference.logits[i].astype(np.float64)
        logprobs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        places = [place for delta in deltas(events, i) for place in delta.logprobs]
        assert len(places) == len(reference.outputs[i])
        differences += [
            abs(entry.logprob - row[entry.token])
            for place, row in zip(places, logprobs, strict=False)
            for entry in place.top
        ]

    assert max(differences) < LOGPROB_TOLERANCE
