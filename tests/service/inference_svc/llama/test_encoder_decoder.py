"""An encoder-decoder model, whose sequences join while others run: a small T5 with random weights.

The expected tokens are computed with llama.cpp alone, one source after the other.
"""

import random
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest

from inference_svc.engine.engine import Engine
from inference_svc.engine.events import Failed, Preempted, Started
from inference_svc.engine.request import SequenceRequest
from inference_svc.llama import library
from inference_svc.llama.backend import LlamaBackend
from svc_kit.errors import ContextLengthExceeded
from tests.support.llama_engines import (
    make_engine,
    open_backend,
    output_tokens,
    run_engine,
    select_events,
)
from tests.support.model_kinds import write_model_of_kind
from tests.support.sequences import make_request

SLOTS = 3
SOURCE_TOKENS = 96
START = 0
COUNT = 12
_RANDOM = random.Random(3)
SOURCES = [[*_RANDOM.choices(range(3, 259), k=20 + 5 * i), 2] for i in range(SLOTS)]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model_of_kind("t5", tmp_path_factory.mktemp("models") / "t5.gguf")


@pytest.fixture(scope="module")
def backend(path: Path) -> Iterator[LlamaBackend]:
    """Three slots that share cells."""
    sizes: Any = {"batch_tokens": SOURCE_TOKENS, "ubatch_tokens": SOURCE_TOKENS, "draft_tokens": 8}
    with open_backend(path, slots=SLOTS, shared_cells=768, context_tokens=256, **sizes) as backend:
        yield backend


@pytest.fixture(scope="module")
def expected(path: Path) -> list[list[int]]:
    """The greedy output for each source in a context of its own."""
    library.start()
    model = llama_cpp.llama_model_load_from_file(
        str(path).encode(), llama_cpp.llama_model_default_params()
    )
    try:
        return [_generate(model, source) for source in SOURCES]
    finally:
        llama_cpp.llama_model_free(model)


def _generate(model: object, source: list[int]) -> list[int]:
    params = llama_cpp.llama_context_default_params()
    params.n_ctx, params.n_threads = 256, 1
    context = llama_cpp.llama_init_from_model(model, params)
    size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    try:
        tokens = (llama_cpp.llama_token * len(source))(*source)
        batch = llama_cpp.llama_batch_get_one(tokens, len(source))
        if llama_cpp.llama_encode(context, batch) != 0:
            raise RuntimeError("llama.cpp cannot encode")
        output = [START]
        for _ in range(COUNT):
            last = (llama_cpp.llama_token * 1)(output[-1])
            llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(last, 1))
            logits = llama_cpp.llama_get_logits_ith(context, -1)
            output.append(int(np.ctypeslib.as_array(logits, (size,)).argmax()))
        return output[1:]
    finally:
        llama_cpp.llama_free(context)


def _engine(backend: LlamaBackend) -> Engine:
    return make_engine(backend, chunk_cap=64, saved_bytes=8 << 20)


def _request(i: int, source: list[int], **changes: object) -> SequenceRequest:
    fields = {"max_tokens": COUNT, "ignore_eos": True, "reuse": False, **changes}
    return make_request(i, [START], source=array("i", source), **fields)


def test_the_output_is_that_of_llama_cpp_and_depends_on_the_source(
    backend: LlamaBackend, expected: list[list[int]]
) -> None:
    """One sequence after the other, with drafts."""
    engine = _engine(backend)
    outputs = [
        output_tokens(run_engine(engine, _request(i, source)), i)
        for i, source in enumerate(SOURCES)
    ]

    assert outputs == expected
    assert len({tuple(output) for output in outputs}) == SLOTS


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.batch_invariant
def test_sequences_join_while_others_run(
    backend: LlamaBackend, expected: list[list[int]], steps: int
) -> None:
    """Each has the output that it has alone."""
    engine = _engine(backend)
    events = []
    for i, source in enumerate(SOURCES):
        events += run_engine(engine, _request(i, source), steps=steps)
    events += run_engine(engine)

    assert [output_tokens(events, i) for i in range(SLOTS)] == expected


def test_a_sequence_waits_until_the_encoder_has_room(
    backend: LlamaBackend, expected: list[list[int]]
) -> None:
    """The sources of all running sequences are read at once."""
    long_source = [*_RANDOM.choices(range(3, 259), k=SOURCE_TOKENS - 21), 2]
    engine = _engine(backend)
    events = run_engine(engine, _request(8, long_source), _request(0, SOURCES[0]), steps=4)

    assert [event.sequence_id for event in select_events(events, Started)] == [8]

    events += run_engine(engine)

    assert output_tokens(events, 0) == expected[0]


def test_a_source_that_is_too_long_is_refused(backend: LlamaBackend) -> None:
    """The error has both lengths."""
    engine = _engine(backend)
    engine.submit(_request(0, [5] * (SOURCE_TOKENS + 1)))

    (failed,) = select_events(engine.step(), Failed)

    assert failed.error == ContextLengthExceeded(
        field="prompt", prompt_tokens=SOURCE_TOKENS + 1, context_tokens=SOURCE_TOKENS
    )


def test_a_preempted_sequence_goes_on(backend: LlamaBackend, expected: list[list[int]]) -> None:
    """Its source is encoded again when it has a slot again."""
    engine = _engine(backend)
    requests = [_request(i, source, priority=1) for i, source in enumerate(SOURCES)]
    events = run_engine(engine, *requests, steps=4)
    events += run_engine(engine, _request(9, [5, 6, 2], priority=3))

    assert select_events(events, Preempted)
    assert [output_tokens(events, i) for i in range(SLOTS)] == expected


@pytest.mark.batch_invariant
def test_a_resumed_sequence_goes_on(backend: LlamaBackend, expected: list[list[int]]) -> None:
    """After the tokens of an earlier attempt."""
    resumed = array("i", expected[1][:5])
    events = run_engine(_engine(backend), _request(1, SOURCES[1], resumed=resumed))

    assert output_tokens(events, 1) == expected[1][5:]


def test_the_state_of_a_decoder_is_not_kept(backend: LlamaBackend) -> None:
    """It also depends on the source."""
    engine = _engine(backend)
    events = run_engine(engine, _request(0, SOURCES[0], request_id="r"), steps=3)

    assert select_events(events, Started)
    assert engine.snapshot("r", 0) is None
