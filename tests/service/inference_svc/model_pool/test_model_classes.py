"""Prefix reuse, preemption and drafts with each kind of memory: sliding-window attention, recurrent
and hybrid. The models are small, with random weights, and run in llama.cpp."""

import random
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from inference_svc.engine.engine import Engine
from inference_svc.engine.events import (
    CacheSource,
    Event,
    Preempted,
    Started,
)
from inference_svc.engine.request import SequenceRequest
from inference_svc.engine.sampling_params import Sampling
from inference_svc.llama.backend import LlamaBackend
from tests.support.llama_engines import (
    finished_event,
    make_engine,
    open_backend,
    output_tokens,
    run_engine,
    select_events,
)
from tests.support.model_kinds import write_model_of_kind
from tests.support.sequences import make_request

SLOTS = 3
SYSTEM = random.Random(1).choices(range(3, 259), k=90)


@pytest.fixture(
    scope="module",
    params=product(["window", "recurrent", "hybrid"], [None, SLOTS * 256]),
    ids=lambda param: f"{param[0]}-{'unified' if param[1] else 'streams'}",
)
def backend(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LlamaBackend]:
    """A model of each kind, with three slots."""
    kind, shared_cells = request.param
    path = write_model_of_kind(kind, tmp_path_factory.mktemp("models") / "model.gguf")
    sizes: Any = {
        "context_tokens": 256,
        "batch_tokens": 256,
        "ubatch_tokens": 128,
        "draft_tokens": 15,
    }
    with open_backend(path, slots=SLOTS, shared_cells=shared_cells, **sizes) as backend:
        yield backend


def _engine(backend: LlamaBackend) -> Engine:
    return make_engine(backend, chunk_cap=256, saved_bytes=64 << 20)


def _request(i: int, prompt: list[int], **changes: object) -> SequenceRequest:
    options = {"max_tokens": 12, "ignore_eos": True, "max_draft": 0, **changes}
    return make_request(i, prompt, **options)


def _tokens_alone(backend: LlamaBackend, prompt: list[int], count: int = 12) -> list[int]:
    engine = _engine(backend)
    return output_tokens(run_engine(engine, _request(0, prompt, reuse=False, max_tokens=count)))


def _started_event(events: list[Event], sequence_id: int) -> Started:
    (event,) = [e for e in select_events(events, Started) if e.sequence_id == sequence_id]
    return event._replace(queue_s=0.0)  # depends on the real clock


def test_the_models_have_their_kind_and_their_output_depends_on_the_prompt(
    backend: LlamaBackend, request: pytest.FixtureRequest
) -> None:
    """The other tests depend on this."""
    changed = [*SYSTEM[:-30], 3, *SYSTEM[-29:]]

    assert backend.can_trim is ("window" in request.node.name)
    assert _tokens_alone(backend, SYSTEM) != _tokens_alone(backend, changed)
    assert len(set(_tokens_alone(backend, SYSTEM))) > 4


def test_a_follow_up_continues_its_slot(backend: LlamaBackend) -> None:
    """All computed tokens are reused with every kind of memory."""
    engine = _engine(backend)
    output = output_tokens(run_engine(engine, _request(0, SYSTEM)))
    prompt = [*SYSTEM, *output, 7, 8, 9]
    events = run_engine(engine, _request(1, prompt))

    assert _started_event(events, 1) == Started(1, 0, len(SYSTEM) + 11, CacheSource.SLOT)
    assert output_tokens(events, 1) == _tokens_alone(backend, prompt)


def test_a_partly_matching_prompt_reuses_its_prefix_only_if_the_memory_can_be_trimmed(
    backend: LlamaBackend,
) -> None:
    """A recurrent state is computed again. The output is the same as without reuse."""
    engine = _engine(backend)
    run_engine(engine, _request(0, SYSTEM))
    prompt = [*SYSTEM[:60], 7, 8, 9]
    events = run_engine(engine, _request(1, prompt))

    assert _started_event(events, 1).cached_tokens == (60 if backend.can_trim else 0)
    assert output_tokens(events, 1) == _tokens_alone(backend, prompt)


def test_the_state_of_a_running_sequence_is_reused(backend: LlamaBackend) -> None:
    """With all computed tokens; the output of the running sequence does not change."""
    engine = _engine(backend)
    events = run_engine(engine, _request(0, SYSTEM, max_tokens=30), steps=5)
    prompt = [*SYSTEM, *output_tokens(events), 7, 8]
    events += run_engine(engine, _request(1, prompt))

    assert _started_event(events, 1) == Started(1, 1, len(SYSTEM) + 4, CacheSource.LIVE)
    assert output_tokens(events, 1) == _tokens_alone(backend, prompt)
    assert output_tokens(events) == _tokens_alone(backend, SYSTEM, 30)


def test_a_prefix_is_restored_from_memory(backend: LlamaBackend) -> None:
    """Other sequences have used every slot since it was computed."""
    engine = _engine(backend)
    output = output_tokens(run_engine(engine, _request(0, SYSTEM)))
    run_engine(engine, *(_request(i, [9 + i, *SYSTEM]) for i in range(1, SLOTS + 1)))
    prompt = [*SYSTEM, *output, 7]
    events = run_engine(engine, _request(9, prompt))

    assert _started_event(events, 9).source is CacheSource.MEMORY
    assert output_tokens(events, 9) == _tokens_alone(backend, prompt)


def test_a_part_of_a_restored_prefix_is_not_reused(backend: LlamaBackend) -> None:
    """A restored window has only the cells of its last token. Neither the state in memory nor the
    slot that it was restored into serves an earlier one."""
    prompts = [[*SYSTEM[:60], 7, 8, i] for i in (9, 10)]
    expected = [_tokens_alone(backend, prompt) for prompt in prompts]
    engine = _engine(backend)
    output = output_tokens(run_engine(engine, _request(0, SYSTEM)))
    run_engine(engine, *(_request(i, [9 + i, *SYSTEM]) for i in range(1, SLOTS + 1)))
    first = run_engine(engine, _request(8, prompts[0]))
    restored = run_engine(engine, _request(9, [*SYSTEM, *output, 7]))
    second = run_engine(engine, _request(10, prompts[1]))

    assert _started_event(first, 8).cached_tokens == _started_event(second, 10).cached_tokens == 0
    assert _started_event(restored, 9).source is CacheSource.MEMORY
    assert [output_tokens(first, 8), output_tokens(second, 10)] == expected


def test_a_preempted_sequence_resumes_with_the_same_output(backend: LlamaBackend) -> None:
    """One of three batch sequences is preempted; each has the tokens that it has alone."""
    prompts = {i: [9 + i, *SYSTEM] for i in range(SLOTS)}
    engine = _engine(backend)
    requests = [_request(i, prompt, priority=1) for i, prompt in prompts.items()]
    events = run_engine(engine, *requests, steps=4)
    events += run_engine(engine, _request(9, [5, 6, 7], priority=3))

    assert select_events(events, Preempted) == [Preempted(SLOTS - 1)]
    for i, prompt in prompts.items():
        assert output_tokens(events, i) == _tokens_alone(backend, prompt)


@pytest.mark.batch_invariant
def test_drafts_are_used_only_if_the_memory_can_be_trimmed(backend: LlamaBackend) -> None:
    """The output is the same; a recurrent state could not drop rejected tokens."""
    sampling = Sampling(temperature=1.0, allowed_token_ids=(70, 71, 72))
    options = {"sampling": sampling, "max_tokens": 80, "reuse": False}
    engine = _engine(backend)
    expected = output_tokens(run_engine(engine, _request(0, SYSTEM, **options)))
    engine = _engine(backend)
    events = run_engine(engine, _request(0, SYSTEM, **options, max_draft=31))
    finished = finished_event(events)

    assert output_tokens(events) == expected
    assert (finished.num_drafted > finished.num_accepted > 0) is backend.can_trim
