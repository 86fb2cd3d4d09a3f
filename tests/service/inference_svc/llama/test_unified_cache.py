"""The unified layout on llama.cpp: shared cells, preemption when cells run out, and states that can
be restored in either layout."""

import random
from collections.abc import Iterator

import pytest

from inference_svc.engine.batch import Row, TokenBatch
from inference_svc.engine.engine import Engine
from inference_svc.engine.events import CacheSource, Preempted, Started
from inference_svc.engine.request import SequenceRequest
from inference_svc.llama.backend import LlamaBackend
from tests.support.llama_engines import (
    clear_slots,
    make_engine,
    open_backend,
    output_tokens,
    run_engine,
    select_events,
)
from tests.support.sequences import make_request

SLOTS = 3
CELLS = 512
STORY = "Once upon a time there was a fox who lived in a forest and loved to walk by the sea. "
SYSTEM = random.Random(1).choices(range(40, 900), k=200)


@pytest.fixture(scope="module")
def unified() -> Iterator[LlamaBackend]:
    """Three slots that share the cells of one."""
    with open_backend(slots=SLOTS, shared_cells=CELLS) as backend:
        yield backend


@pytest.fixture(scope="module")
def streams() -> Iterator[LlamaBackend]:
    """Three slots with their own cells."""
    with open_backend(slots=SLOTS) as backend:
        yield backend


def _engine(backend: LlamaBackend, saved_bytes: int = 64 << 20) -> Engine:
    return make_engine(backend, chunk_cap=CELLS, saved_bytes=saved_bytes)


def _request(i: int, prompt: list[int], tokens: int, **changes: object) -> SequenceRequest:
    return make_request(i, prompt, max_tokens=tokens, ignore_eos=True, max_draft=0, **changes)


def _tokens_alone(backend: LlamaBackend, prompt: list[int], tokens: int) -> list[int]:
    return output_tokens(run_engine(_engine(backend), _request(0, prompt, tokens, reuse=False)))


def test_a_prefix_of_a_running_sequence_is_shared(unified: LlamaBackend) -> None:
    """Three sequences with one prompt use few more cells than one, and their outputs are those that
    they have alone."""
    prompts = {i: [*SYSTEM, *range(50 + i, 60 + i)] for i in range(SLOTS)}
    engine = _engine(unified)
    requests = [_request(i, prompt, 20) for i, prompt in prompts.items()]
    events = run_engine(engine, requests[0], steps=2)
    events += run_engine(engine, *requests[1:], steps=3)
    assert len(engine.running) == SLOTS
    assert unified.used_cells < len(SYSTEM) + 3 * 20
    events += run_engine(engine)

    live = [e for e in select_events(events, Started) if e.source is CacheSource.LIVE]
    assert [event.cached_tokens for event in live] == [len(SYSTEM)] * 2
    for i, prompt in prompts.items():
        assert output_tokens(events, i)[:8] == _tokens_alone(unified, prompt, 8)


@pytest.mark.parametrize("saved_bytes", [64 << 20, 0], ids=["saved", "recomputed"])
def test_a_sequence_is_preempted_when_cells_run_out(
    unified: LlamaBackend, saved_bytes: int
) -> None:
    """And resumes, from its saved state or by computing its tokens again."""
    # A text has decisive logits: batches change their last bits.
    text = unified.vocabulary.tokenize(STORY * 9, add_special=False, parse_special=False)
    prompts = {i: text[i : 60 + 61 * i] for i in range(SLOTS)}
    engine = _engine(unified, saved_bytes)
    requests = [_request(i, prompt, 120, cache_key=b"%d" % i) for i, prompt in prompts.items()]
    events = run_engine(engine, *requests)

    assert Preempted(2) in events
    for i in prompts:
        assert len(output_tokens(events, i)) == 120
    assert output_tokens(events, 0)[:8] == _tokens_alone(unified, prompts[0], 8)


@pytest.mark.parametrize("target_layout", ["streams", "unified"])
def test_a_state_can_be_restored_in_the_other_layout(
    unified: LlamaBackend, streams: LlamaBackend, target_layout: str
) -> None:
    """Snapshots and saved prefixes do not depend on the layout."""
    source, target = (unified, streams) if target_layout == "streams" else (streams, unified)
    clear_slots(source)
    clear_slots(target)
    source.decode(TokenBatch.of([Row(1, 0, SYSTEM, output=True)]))
    assert target.restore(2, source.save(1))
    rows = []
    for backend, slot in ((source, 1), (target, 2)):
        backend.decode(TokenBatch.of([Row(slot, len(SYSTEM), (77,), output=True)]))
        rows.append(backend.logits(0).copy())

    assert rows[1] == pytest.approx(rows[0], abs=0.01)
