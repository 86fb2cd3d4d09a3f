"""Deterministic sequences on llama.cpp and the demo model: company moves nothing, bit for bit."""

import random
import time
from array import array
from collections.abc import Iterator
from dataclasses import replace

import pytest

from inference_svc.engine.engine import Engine
from inference_svc.engine.events import Delta, Event, Finished, Preempted
from inference_svc.engine.request import SequenceRequest
from inference_svc.engine.sampling_params import Sampling
from inference_svc.llama import library
from inference_svc.llama.backend import BackendSettings, LlamaBackend
from inference_svc.models.sources import BUNDLED_PATH
from tests.support.layouts import FixedLayout
from tests.support.sequences import make_request

pytestmark = pytest.mark.timeout(120)  # seconds on an idle machine

SLOTS = 4
CHUNK = 96


@pytest.fixture(scope="module")
def backend() -> Iterator[LlamaBackend]:
    """The demo model with four slots."""
    library.start()
    settings = BackendSettings(
        BUNDLED_PATH,
        slots=SLOTS,
        context_tokens=256,
        batch_tokens=256,
        ubatch_tokens=256,
        threads=1,
        sampling_threads=1,
    )
    backend = LlamaBackend(settings)
    yield backend
    backend.close()


def _engine(backend: LlamaBackend) -> Engine:
    for slot in range(SLOTS):
        backend.trim(slot, 0)
    return Engine(
        "demo",
        backend,
        # Holes cost so much that they are filled wherever that is allowed.
        layout=FixedLayout({1: 9.0, 2: 9.1, 3: 9.2, 4: 9.3}, SLOTS),
        chunk_cap=CHUNK,
        clock=time.monotonic,
        saved_bytes=2**24,
    )


def _request(sequence_id: int, **changes: object) -> SequenceRequest:
    """One whose log probabilities show the logits to the last bit."""
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


def _company(sequence_id: int) -> SequenceRequest:
    return _request(sequence_id, deterministic=False, reuse=True, max_tokens=8)


def _said(events: list[Event], sequence_id: int) -> list[object]:
    """Tokens and their log probabilities."""
    deltas = [event for event in events if isinstance(event, Delta)]
    return [
        logprob
        for delta in deltas
        if delta.sequence_id == sequence_id
        for logprob in delta.logprobs
    ]


def _run(engine: Engine, *requests: SequenceRequest) -> list[Event]:
    for request in requests:
        engine.submit(request)
    events: list[Event] = []
    while engine.has_work:
        events += engine.step()
        engine.check_integrity()
    return events


def _run_in_company(engine: Engine, request: SequenceRequest) -> list[Event]:
    """With a new neighbour whenever there is room, so that slots, rows and chunks keep changing."""
    events: list[Event] = []
    number = 1000
    for _ in range(5):
        engine.submit(_company(number := number + 1))
        events += engine.step()
    engine.submit(request)
    while not any(
        isinstance(event, Finished) and event.sequence_id == request.sequence_id for event in events
    ):
        if len(engine.running) < SLOTS:
            engine.submit(_company(number := number + 1))
        events += engine.step()
        engine.check_integrity()
    return events


@pytest.mark.parametrize("sequence_id", range(4))
def test_company_moves_no_bit(backend: LlamaBackend, sequence_id: int) -> None:
    """Tokens and log probabilities are those of the request run alone."""
    request = _request(sequence_id)
    alone = _said(_run(_engine(backend), request), sequence_id)

    assert len(alone) == request.max_tokens
    assert _said(_run_in_company(_engine(backend), request), sequence_id) == alone


def test_deterministic_sequences_stay_out_of_each_others_way(backend: LlamaBackend) -> None:
    """Several of them at once, each by itself."""
    requests = [_request(i) for i in range(SLOTS)]
    together = _run(_engine(backend), *requests)

    for request in requests:
        alone = _run(_engine(backend), request)
        assert _said(together, request.sequence_id) == _said(alone, request.sequence_id)


@pytest.mark.parametrize("cut", [1, 13])
def test_a_resumed_one_goes_on_to_the_bit(backend: LlamaBackend, cut: int) -> None:
    """Output tokens that come back are computed as they were: one by one."""
    request = _request(7)
    events = _run(_engine(backend), request)
    tokens = [t for event in events if isinstance(event, Delta) for t in event.tokens]
    resumed = replace(request, resumed=array("i", tokens[:cut]))

    rest = _said(_run_in_company(_engine(backend), resumed), 7)
    assert rest == _said(events, 7)[cut:]


def test_a_preempted_one_goes_on_to_the_bit(backend: LlamaBackend) -> None:
    """Its cells wait in memory and come back as they were."""
    request = _request(9, priority=1)
    alone = _said(_run(_engine(backend), request), 9)
    engine = _engine(backend)
    engine.submit(request)
    events: list[Event] = []
    for _ in range(8):
        events += engine.step()
    for number in range(SLOTS):
        engine.submit(replace(_company(number + 50), priority=3))
    events += _run(engine)

    assert any(isinstance(event, Preempted) for event in events)
    assert _said(events, 9) == alone
