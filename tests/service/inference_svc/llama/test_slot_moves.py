"""Moving running sequences between slots on llama.cpp: the demo model, and random models with a
sliding window, a recurrent state, and both attention and a state."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from inference_svc.engine.engine import Engine
from inference_svc.engine.events import Event, Moved
from inference_svc.engine.kv_cache.copies import CopyCosts
from inference_svc.engine.request import SequenceRequest
from inference_svc.llama.backend import LlamaBackend
from inference_svc.llama.warmup import warm_up
from tests.support.layouts import FixedLayout
from tests.support.llama_engines import (
    clear_slots,
    deltas,
    make_engine,
    open_backend,
    output_tokens,
    run_engine,
    select_events,
)
from tests.support.sequences import make_request

SLOTS = 4
TOKENS = 40
# Other rows of a batch change the last bits of logits; a wrong cell changes them by more than 1.
TOLERANCE = 0.1
BY_STREAM, BY_STATE = CopyCosts(0.0, 1e-9), CopyCosts(1e-9, 0.0)


@pytest.fixture(scope="module")
def backend(model_path: Path) -> Iterator[LlamaBackend]:
    """A model of each memory type, with four slots."""
    with open_backend(model_path, context_tokens=256, batch_tokens=256) as backend:
        yield backend


def _engine(backend: LlamaBackend, costs: CopyCosts, *, moves: bool) -> Engine:
    """An engine that moves sequences whenever it pays, or for which holes cost nothing."""
    times = {1: 9e-6, 2: 12e-6, 3: 15e-6, SLOTS: 18e-6} if moves else {}
    layout = FixedLayout(times, SLOTS, can_fill=backend.can_trim)
    return make_engine(backend, layout=layout, chunk_cap=256, copy_costs=costs)


def _request(i: int, **changes: object) -> SequenceRequest:
    """A request with log probabilities, which show the logits."""
    prompt = random.Random(i).choices(range(3, 259), k=90)
    options = {"max_tokens": TOKENS, "ignore_eos": True, "max_draft": 0, "top_logprobs": 0}
    return make_request(i, prompt, cache_key=b"%d" % i, **{**options, **changes})


def _output(events: list[Event], sequence_id: int) -> tuple[list[int], list[float]]:
    """Tokens and their log probabilities."""
    logprobs = [each for delta in deltas(events, sequence_id) for each in delta.logprobs]
    return output_tokens(events, sequence_id), [each.chosen.logprob for each in logprobs]


@pytest.mark.parametrize("costs", [BY_STREAM, BY_STATE], ids=["stream", "state"])
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.batch_invariant
def test_a_move_does_not_change_a_sequence_that_runs_alone(
    backend: LlamaBackend, costs: CopyCosts, *, deterministic: bool
) -> None:
    """The tokens and probabilities are bit-identical after several moves."""
    request = _request(1, deterministic=deterministic, reuse=not deterministic)
    engine = _engine(backend, costs, moves=False)
    unmoved = _output(run_engine(engine, request), 1)
    engine = _engine(backend, costs, moves=False)
    events = run_engine(engine, request, steps=5)
    for target in (2, 1, 3, 0):
        (sequence,) = engine.running
        mover = engine._runner.planner.compactor._mover
        assert mover.move(sequence, engine._state.table.slots[target])
        events += run_engine(engine, steps=3)
    events += run_engine(engine)

    assert _output(events, 1) == unmoved


def _two_long_requests() -> list[SequenceRequest]:
    """Requests for all slots; those in the middle slots end first."""
    return [_request(i, max_tokens=TOKENS if i in (0, 3) else 6) for i in range(SLOTS)]


@pytest.mark.parametrize("costs", [BY_STREAM, BY_STATE], ids=["stream", "state"])
def test_closing_holes_does_not_change_outputs(backend: LlamaBackend, costs: CopyCosts) -> None:
    """Beside other sequences the logits are the same within a tolerance."""
    outputs = []
    for moves in (False, True):
        engine = _engine(backend, costs, moves=moves)
        events = run_engine(engine, *_two_long_requests())
        assert (select_events(events, Moved) == [Moved(3, 1)]) is moves
        outputs.append([_output(events, i) for i in (0, 3)])

    for (tokens, logprobs), (moved_tokens, moved_logprobs) in zip(*outputs, strict=True):
        pairs = zip(tokens, moved_tokens, strict=True)
        same = next((i for i, (one, other) in enumerate(pairs) if one != other), TOKENS)
        assert same > 12  # after the move; later a near tie may make a difference
        assert moved_logprobs[:same] == pytest.approx(logprobs[:same], abs=TOLERANCE)


def test_a_move_preserves_the_prefix_of_the_idle_slot(backend: LlamaBackend) -> None:
    """The next turn of a conversation reuses it, with the same output as without the move."""
    follow_ups = []
    for moves in (False, True):
        engine = _engine(backend, CopyCosts(), moves=moves)
        events = run_engine(engine, *_two_long_requests(), steps=20)
        assert bool(select_events(events, Moved)) is moves
        prompt = [*_request(1).prompt, *output_tokens(events, 1), 7, 8, 9]
        run_engine(engine)
        follow_up = make_request(9, prompt, cache_key=b"1", ignore_eos=True, max_draft=0)
        follow_ups.append(output_tokens(run_engine(engine, follow_up), 9))

    assert follow_ups[0] == follow_ups[1]


def test_warm_up_measures_the_cost_of_a_move(backend: LlamaBackend) -> None:
    """Also for models whose states are saved and restored."""
    clear_slots(backend)
    costs = warm_up(backend, cores=1, threads=1, budget_s=0.0).copy_costs

    assert costs.state_seconds(100) > 0
    assert (costs.stream_s == 0) or backend.can_trim
