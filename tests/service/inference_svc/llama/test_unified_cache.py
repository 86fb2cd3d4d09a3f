"""The unified layout in llama.cpp on the demo model: references instead of copies, one stock of
cells that can run out, and states that fit either layout."""

import random
import time
from collections.abc import Iterator

import pytest

from inference_svc.engine.batch import Row, TokenBatch
from inference_svc.engine.defrag.batch_layout import BatchLayout
from inference_svc.engine.engine import Engine
from inference_svc.engine.events import CacheSource, Delta, Event, Preempted, Started
from inference_svc.engine.request import SequenceRequest
from inference_svc.llama import library
from inference_svc.llama.backend import BackendSettings, LlamaBackend
from inference_svc.models.sources import BUNDLED_PATH
from tests.support.sequences import a_request

SLOTS = 3
CELLS = 512
SYSTEM = random.Random(1).choices(range(40, 900), k=200)


def _backend(shared_cells: int | None) -> LlamaBackend:
    library.start()
    return LlamaBackend(
        BackendSettings(
            BUNDLED_PATH,
            slots=SLOTS,
            context_tokens=CELLS,
            batch_tokens=CELLS,
            ubatch_tokens=256,
            threads=1,
            sampling_threads=1,
            shared_cells=shared_cells,
        )
    )


@pytest.fixture(scope="module")
def unified() -> Iterator[LlamaBackend]:
    """Three slots over the cells of one sequence."""
    backend = _backend(CELLS)
    yield backend
    backend.close()


@pytest.fixture(scope="module")
def streams() -> Iterator[LlamaBackend]:
    """Three slots with cells of their own."""
    backend = _backend(None)
    yield backend
    backend.close()


def _engine(backend: LlamaBackend, saved_bytes: int = 64 << 20) -> Engine:
    for slot in range(SLOTS):
        backend.trim(slot, 0)
    return Engine(
        "demo",
        backend,
        layout=BatchLayout({}, SLOTS),
        chunk_cap=CELLS,
        clock=time.monotonic,
        saved_bytes=saved_bytes,
    )


def _request(i: int, prompt: list[int], tokens: int, **changes: object) -> SequenceRequest:
    return a_request(i, prompt, max_tokens=tokens, ignore_eos=True, max_draft=0, **changes)


def _run(engine: Engine, steps: int = 10**6) -> list[Event]:
    events: list[Event] = []
    while engine.has_work and steps:
        events += engine.step()
        engine.check_integrity()
        steps -= 1
    return events


def _tokens(events: list[Event], i: int) -> list[int]:
    deltas = [e for e in events if isinstance(e, Delta) and e.sequence_id == i]
    return [token for delta in deltas for token in delta.tokens]


def _alone(backend: LlamaBackend, prompt: list[int], tokens: int) -> list[int]:
    engine = _engine(backend)
    engine.submit(_request(0, prompt, tokens, reuse=False))
    return _tokens(_run(engine), 0)


def test_a_prefix_of_a_running_sequence_is_shared_in_part(unified: LlamaBackend) -> None:
    """Three sequences over one prompt take little more than one, and say what they say alone."""
    prompts = {i: [*SYSTEM, *range(50 + i, 60 + i)] for i in range(SLOTS)}
    engine = _engine(unified)
    engine.submit(_request(0, prompts[0], 20))
    events = _run(engine, steps=2)
    for i in (1, 2):
        engine.submit(_request(i, prompts[i], 20))
    events += _run(engine, steps=3)
    assert len(engine.running) == SLOTS
    assert unified.used_cells < len(SYSTEM) + 3 * 20
    events += _run(engine)

    live = [e for e in events if isinstance(e, Started) and e.source is CacheSource.LIVE]
    assert [event.cached_tokens for event in live] == [len(SYSTEM)] * 2
    for i, prompt in prompts.items():
        assert _tokens(events, i)[:8] == _alone(unified, prompt, 8)


@pytest.mark.parametrize("saved_bytes", [64 << 20, 0], ids=["kept", "computed again"])
def test_cells_run_out_and_nothing_is_lost(unified: LlamaBackend, saved_bytes: int) -> None:
    """Somebody waits, by whatever way, and goes on where it was."""
    prompts = {i: random.Random(9 + i).choices(range(40, 900), k=60 + 60 * i) for i in range(SLOTS)}
    engine = _engine(unified, saved_bytes)
    for i, prompt in prompts.items():
        engine.submit(_request(i, prompt, 120, cache_key=b"%d" % i))
    events = _run(engine)

    assert Preempted(2) in events
    for i in prompts:
        assert len(_tokens(events, i)) == 120
    assert _tokens(events, 0)[:8] == _alone(unified, prompts[0], 8)


@pytest.mark.parametrize("way", ["into streams", "into cells that are shared"])
def test_a_state_fits_the_other_layout(
    unified: LlamaBackend, streams: LlamaBackend, way: str
) -> None:
    """Snapshots and what was saved do not know where they came from."""
    source, target = (unified, streams) if way == "into streams" else (streams, unified)
    for backend in (source, target):
        for slot in range(SLOTS):
            backend.trim(slot, 0)
    source.decode(TokenBatch.of([Row(1, 0, SYSTEM, output=True)]))
    assert target.restore(2, source.save(1))
    rows = []
    for backend, slot in ((source, 1), (target, 2)):
        backend.decode(TokenBatch.of([Row(slot, len(SYSTEM), (77,), output=True)]))
        rows.append(backend._row(0).copy())

    assert rows[1] == pytest.approx(rows[0], abs=0.01)
