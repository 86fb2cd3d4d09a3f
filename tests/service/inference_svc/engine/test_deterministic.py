"""Deterministic sequences on llama.cpp and the demo model: bit-identical in any batch."""

import random
from array import array
from collections.abc import Iterator
from dataclasses import replace

import pytest

from inference_svc.engine.engine import Engine
from inference_svc.engine.events import ChosenLogprob, Event, Finished, Preempted
from inference_svc.engine.request import SequenceRequest
from inference_svc.engine.sampling_params import Sampling
from inference_svc.llama.backend import LlamaBackend
from tests.support.layouts import FixedLayout
from tests.support.llama_engines import (
    deltas,
    make_engine,
    open_backend,
    output_tokens,
    run_engine,
    select_events,
)
from tests.support.sequences import make_request

pytestmark = pytest.mark.timeout(120)  # seconds on an idle machine

SLOTS = 4


@pytest.fixture(scope="module")
def backend() -> Iterator[LlamaBackend]:
    """The demo model with four slots."""
    with open_backend(context_tokens=256, batch_tokens=256) as backend:
        yield backend


def _engine(backend: LlamaBackend) -> Engine:
    # Holes are so expensive that they are filled wherever that is allowed.
    layout = FixedLayout({1: 9.0, 2: 9.1, 3: 9.2, 4: 9.3}, SLOTS)
    return make_engine(backend, layout=layout, chunk_cap=96, saved_bytes=2**24)


def _request(sequence_id: int, **changes: object) -> SequenceRequest:
    """A request with log probabilities, which show all bits of the logits."""
    rng = random.Random(sequence_id)
    prompt = [rng.randrange(40, 900) for _ in range(rng.randrange(70, 150))]
    request = make_request(
        sequence_id,
        prompt,
        sampling=Sampling(temperature=1.5),
        seed=sequence_id,
        max_tokens=24,
        top_logprobs=5,
        ignore_eos=True,
        reuse=False,
        deterministic=True,
    )
    return replace(request, **changes)  # type: ignore[arg-type]


def _companion(sequence_id: int, **changes: object) -> SequenceRequest:
    return _request(sequence_id, deterministic=False, reuse=True, max_tokens=8, **changes)


def _logprobs(events: list[Event], sequence_id: int) -> list[ChosenLogprob]:
    """The tokens with their log probabilities."""
    return [logprob for delta in deltas(events, sequence_id) for logprob in delta.logprobs]


def _run_in_company(engine: Engine, request: SequenceRequest) -> list[Event]:
    """Run a request with a new companion whenever a slot is free, so that slots, rows and chunks
    keep changing."""
    events: list[Event] = []
    companion_id = 1000
    for _ in range(5):
        events += run_engine(engine, _companion(companion_id := companion_id + 1), steps=1)
    engine.submit(request)
    while request.sequence_id not in {e.sequence_id for e in select_events(events, Finished)}:
        if len(engine.running) < SLOTS:
            engine.submit(_companion(companion_id := companion_id + 1))
        events += run_engine(engine, steps=1)
    return events


@pytest.mark.parametrize("sequence_id", range(4))
def test_other_sequences_do_not_change_a_bit(backend: LlamaBackend, sequence_id: int) -> None:
    """Tokens and log probabilities are those of the request alone."""
    request = _request(sequence_id)
    alone = _logprobs(run_engine(_engine(backend), request), sequence_id)

    assert len(alone) == request.max_tokens
    assert _logprobs(_run_in_company(_engine(backend), request), sequence_id) == alone


def test_deterministic_sequences_do_not_affect_each_other(backend: LlamaBackend) -> None:
    """Each is decoded separately."""
    requests = [_request(i) for i in range(SLOTS)]
    together = run_engine(_engine(backend), *requests)

    for i, request in enumerate(requests):
        alone = run_engine(_engine(backend), request)
        assert _logprobs(together, i) == _logprobs(alone, i)


@pytest.mark.parametrize("cut", [1, 13])
def test_a_resumed_sequence_is_bit_identical(backend: LlamaBackend, cut: int) -> None:
    """The earlier output tokens are computed one by one, as in the first run."""
    request = _request(7)
    events = run_engine(_engine(backend), request)
    resumed = replace(request, resumed=array("i", output_tokens(events, 7)[:cut]))

    rest = _logprobs(_run_in_company(_engine(backend), resumed), 7)
    assert rest == _logprobs(events, 7)[cut:]


def test_a_preempted_sequence_is_bit_identical(backend: LlamaBackend) -> None:
    """Its cache is saved in memory and restored."""
    request = _request(9, priority=1)
    alone = _logprobs(run_engine(_engine(backend), request), 9)
    engine = _engine(backend)
    events = run_engine(engine, request, steps=8)
    events += run_engine(engine, *(_companion(50 + i, priority=3) for i in range(SLOTS)))

    assert select_events(events, Preempted)
    assert _logprobs(events, 9) == alone
