"""Log probabilities of prompts in the engine are those of llama.cpp alone."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from inference_svc.engine.events import PromptToken, PromptTokens
from inference_svc.llama.backend import LlamaBackend
from tests.support.llama_engines import make_engine, open_backend, run_engine, select_events
from tests.support.plain_llama import Logprobs, PlainLlama
from tests.support.sequences import make_request

PROMPT = [10 + 7 * i % 200 for i in range(90)]
NUM_TOP = 5
TOLERANCE = 0.02
"""Cells are stored in 16 bits, and chunks are computed by other kernels than single tokens."""


@pytest.fixture(scope="module")
def reference(model_path: Path) -> Logprobs:
    """The log probabilities of all tokens after each token of the prompt."""
    plain = PlainLlama(model_path)
    try:
        return plain.logprobs(PROMPT)
    finally:
        plain.close()


@pytest.fixture(scope="module")
def backend(model_path: Path) -> Iterator[LlamaBackend]:
    """Four slots, and 20 rows of logits."""
    with open_backend(model_path, draft_tokens=16) as backend:
        yield backend


@pytest.mark.batch_invariant
def test_log_probabilities_of_a_prompt_are_those_of_llama_cpp(
    backend: LlamaBackend, reference: Logprobs
) -> None:
    """In chunks, beside another sequence, and with its prompt in the prefix cache."""
    engine = make_engine(backend)
    run_engine(engine, make_request(0, PROMPT, max_tokens=4))
    events = run_engine(
        engine,
        make_request(1, PROMPT[:50], max_tokens=30),
        make_request(2, PROMPT, max_tokens=1, prompt_logprobs=NUM_TOP),
    )
    tokens = [token for event in select_events(events, PromptTokens) for token in event.tokens]

    assert [token.token for token in tokens] == PROMPT
    assert tokens[0].logprob is None
    for row, token in zip(reference[:-1], tokens[1:], strict=True):
        _check(token, row)


def _check(token: PromptToken, row: Logprobs) -> None:
    assert token.logprob is not None
    chosen, top, rank, _ = token.logprob
    assert chosen.logprob == pytest.approx(row[token.token], abs=TOLERANCE)
    assert np.sum(row > row[token.token] + TOLERANCE) < rank
    assert rank <= 1 + np.sum(row > row[token.token] - TOLERANCE)
    assert [each.logprob for each in top] == pytest.approx(
        np.sort(row)[: -NUM_TOP - 1 : -1].tolist(), abs=TOLERANCE
    )
    assert [each.logprob for each in top] == pytest.approx(
        [float(row[each.token]) for each in top], abs=TOLERANCE
    )
