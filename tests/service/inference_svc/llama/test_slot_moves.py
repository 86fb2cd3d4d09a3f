"""Moving running sequences in llama.cpp: attention on the demo model; a window, a recurrent state,
and a state beside attention on small random ones."""

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from inference_svc.engine.engine import Engine
from inference_svc.engine.events import Delta, Event, Moved
from inference_svc.engine.kv_cache.copies import CopyCosts
from inference_svc.engine.request import SequenceRequest
from inference_svc.llama import library
from inference_svc.llama.backend import BackendSettings, LlamaBackend
from inference_svc.llama.warmup import warm_up
from inference_svc.models.sources import BUNDLED_PATH
from tests.support.layouts import FixedLayout
from tests.support.model_kinds import write_model_of_kind
from tests.support.sequences import a_request

SLOTS = 4
TOKENS = 40
# Company moves logits in their last bits; a wrong cell moves them by more than 1.
TOLERANCE = 0.1
BY_STREAM, BY_STATE = CopyCosts(0.0, 1e-9), CopyCosts(1e-9, 0.0)


@pytest.fixture(scope="module", params=["attention", "window", "recurrent", "hybrid"])
def backend(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LlamaBackend]:
    """A model of each kind, with four slots."""
    library.start()
    path: Path = tmp_path_factory.mktemp("models") / "model.gguf"
    settings = BackendSettings(
        BUNDLED_PATH if request.param == "attention" else write_model_of_kind(request.param, path),
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


def _engine(backend: LlamaBackend, costs: CopyCosts, *, moves: bool) -> Engine:
    """One that moves whatever pays at all, or one to which holes cost nothing."""
    for slot in range(SLOTS):
        backend.trim(slot, 0)
    times = {1: 9e-6, 2: 12e-6, 3: 15e-6, SLOTS: 18e-6} if moves else {}
    layout = FixedLayout(times, SLOTS, can_fill=backend.can_trim)
    return Engine(
        "m", backend, layout=layout, chunk_cap=256, clock=time.monotonic, copy_costs=costs
    )


def _request(i: int, **changes: object) -> SequenceRequest:
    """Log probabilities show the logits."""
    prompt = random.Random(i).choices(range(3, 259), k=90)
    options = {"max_tokens": TOKENS, "ignore_eos": True, "max_draft": 0, "top_logprobs": 0}
    return a_request(i, prompt, cache_key=b"%d" % i, **{**options, **changes})


def _run(engine: Engine, steps: int = 10**6) -> list[Event]:
    events: list[Event] = []
    while engine.has_work and steps:
        events += engine.step()
        engine.check_integrity()
        steps -= 1
    return events


def _said(events: list[Event], sequence_id: int) -> tuple[list[int], list[float]]:
    """Tokens, and their log probabilities."""
    deltas = [e for e in events if isinstance(e, Delta) and e.sequence_id == sequence_id]
    logprobs = [each.chosen.logprob for delta in deltas for each in delta.logprobs]
    return [token for delta in deltas for token in delta.tokens], logprobs


@pytest.mark.parametrize("costs", [BY_STREAM, BY_STATE], ids=["stream", "state"])
@pytest.mark.parametrize("deterministic", [False, True])
def test_a_move_moves_no_bit_of_a_sequence_alone(
    backend: LlamaBackend, costs: CopyCosts, *, deterministic: bool
) -> None:
    """From slot to slot in the middle of its text: the same tokens with the same probabilities."""
    request = _request(1, deterministic=deterministic, reuse=not deterministic)
    engine = _engine(backend, costs, moves=False)
    engine.submit(request)
    still = _said(_run(engine), 1)
    engine = _engine(backend, costs, moves=False)
    engine.submit(request)
    events = _run(engine, steps=5)
    for target in (2, 1, 3, 0):
        (sequence,) = engine.running
        assert engine._compactor._mover.move(sequence, engine._table.slots[target])
        events += _run(engine, steps=3)
    events += _run(engine)

    assert _said(events, 1) == still


@pytest.mark.parametrize("costs", [BY_STREAM, BY_STATE], ids=["stream", "state"])
def test_holes_are_closed_and_nobody_notices(backend: LlamaBackend, costs: CopyCosts) -> None:
    """Beside others the logits are the same within what company does to them."""
    said = []
    for moves in (False, True):
        engine = _engine(backend, costs, moves=moves)
        for i in range(SLOTS):
            engine.submit(_request(i, max_tokens=TOKENS if i in (0, 3) else 6))
        events = _run(engine)
        assert ([e for e in events if isinstance(e, Moved)] == [Moved(3, 1)]) is moves
        said.append([_said(events, i) for i in (0, 3)])

    for (tokens, logprobs), (moved_tokens, moved_logprobs) in zip(*said, strict=True):
        same = next(
            (
                i
                for i, pair in enumerate(zip(tokens, moved_tokens, strict=True))
                if len({*pair}) > 1
            ),
            TOKENS,
        )
        assert same > 12  # beyond the move: a near tie may part them later
        assert moved_logprobs[:same] == pytest.approx(logprobs[:same], abs=TOLERANCE)


def test_what_an_idle_slot_held_survives_the_swap(backend: LlamaBackend) -> None:
    """A conversation that ended goes on where the moved sequence was, as if it had stayed."""
    follow_ups = []
    for moves in (False, True):
        engine = _engine(backend, CopyCosts(), moves=moves)
        for i in range(SLOTS):
            engine.submit(_request(i, max_tokens=TOKENS if i in (0, 3) else 6))
        events = _run(engine, steps=20)
        assert any(isinstance(event, Moved) for event in events) is moves
        told = [*_request(1).prompt, *_said(events, 1)[0], 7, 8, 9]
        _run(engine)
        engine.submit(a_request(9, told, cache_key=b"1", ignore_eos=True, max_draft=0))
        follow_ups.append(_run(engine))

    still, moved = (_said(events, 9)[0] for events in follow_ups)
    assert still == moved


def test_warm_up_measures_what_a_move_costs(backend: LlamaBackend) -> None:
    """Also for models whose states are saved and restored."""
    _engine(backend, CopyCosts(), moves=False)  # leaves every slot empty
    costs = warm_up(backend, cores=1, threads=1, budget_s=0.0).copy_costs

    assert costs.of_state(100) > 0
    assert (costs.stream_s == 0) or backend.can_trim
