"""Prefix sharing on llama.cpp and the demo model: what copies, states and their order really do."""

import time
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import pytest

from inference_svc.engine.batch import Row, TokenBatch
from inference_svc.engine.defrag.batch_layout import BatchLayout
from inference_svc.engine.engine import Engine
from inference_svc.engine.events import CacheSource, Delta, Event, Preempted, Started
from inference_svc.engine.kv_cache.copies import CacheCopier, CopyCosts, CopyOrderError
from inference_svc.engine.request import SequenceRequest
from inference_svc.engine.sampling_params import Mirostat, Sampling
from inference_svc.llama import library
from inference_svc.llama.backend import BackendSettings, LlamaBackend
from inference_svc.llama.warmup import warm_up
from inference_svc.models.sources import BUNDLED_PATH
from tests.support.sequences import ManualClock, a_request

SLOTS = 4
MINE = "Tell me a story about Mira and the long road over the hills to the sea. " * 3
OTHER = "What is the capital of France? I would rather hear of Paris and of Rome. " * 3
QUESTION = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
SYSTEM = "<|im_start|>system\nYou are a careful guide who answers in one sentence.<|im_end|>\n"


@pytest.fixture(scope="module")
def backend() -> Iterator[LlamaBackend]:
    """The demo model with four slots."""
    library.start()
    backend = LlamaBackend(
        BackendSettings(
            BUNDLED_PATH,
            slots=SLOTS,
            context_tokens=512,
            batch_tokens=512,
            ubatch_tokens=256,
            threads=1,
            sampling_threads=1,
        )
    )
    yield backend
    backend.close()


class Scene:
    """Slot 0 holds one text, slot 1 another of the same length, 2 and 3 what is left of it."""

    def __init__(self, backend: LlamaBackend) -> None:
        self.backend = backend
        mine, other = (
            backend.vocabulary.tokenize(text, add_special=False, parse_special=True)
            for text in (MINE, OTHER)
        )
        self.length = min(len(mine), len(other)) - 1
        self.next = mine[self.length]
        for slot in range(SLOTS):
            backend.trim(slot, 0)
            text = mine if slot == 0 else other
            self.decode(Row(slot, 0, text[: self.length], output=False))
        for slot in (2, 3):
            backend.trim(slot, 0)

    def decode(self, *rows: Row) -> None:
        """Compute rows, outside of any guard."""
        self.backend.decode(TokenBatch.of(rows))

    def logits(self, *slots: int) -> list[npt.NDArray[np.float32]]:
        """What each slot says after the same next token."""
        self.decode(*(Row(slot, self.length, (self.next,), output=True) for slot in slots))
        return [np.array(self.backend._row(index)) for index in range(len(slots))]


def _save_the_target(scene: Scene, do: CacheCopier | LlamaBackend, copy: Callable[[], None]) -> int:
    copy()
    state = do.save(2)
    scene.decode(Row(2, scene.length, (scene.next,), output=False))
    scene.backend.restore(3, state)
    return 3


def _restore_the_source(
    scene: Scene, do: CacheCopier | LlamaBackend, copy: Callable[[], None]
) -> int:
    state = do.save(1)
    copy()
    do.restore(0, state)
    return 2


def _restore_the_target(
    scene: Scene, do: CacheCopier | LlamaBackend, copy: Callable[[], None]
) -> int:
    state = do.save(0)
    scene.backend.copy(1, 2, scene.length) if isinstance(do, LlamaBackend) else do.copy(
        1, 2, scene.length
    )
    do.restore(2, state)
    return 2


@pytest.mark.parametrize("order", [_save_the_target, _restore_the_source, _restore_the_target])
def test_each_forbidden_order_mixes_sequences_and_is_refused(
    backend: LlamaBackend, order: Callable[..., int]
) -> None:
    """Done past the guard, slot 0's text continues as another's; the guard raises instead."""
    right = Scene(backend).logits(0)[0]
    scene = Scene(backend)
    slot = order(scene, backend, lambda: backend.copy(0, 2, scene.length))
    assert np.abs(scene.logits(slot)[0] - right).max() > 1.0

    scene = Scene(backend)
    guard = CacheCopier(backend, CopyCosts())
    with pytest.raises(CopyOrderError):
        order(scene, guard, lambda: guard.copy(0, 2, scene.length))


def _fan_out(scene: Scene) -> None:
    scene.backend.copy(0, 3, scene.length)


def _save_the_source(scene: Scene) -> None:
    scene.backend.save(0)


def _clear_the_source(scene: Scene) -> None:
    scene.backend.trim(0, 0)


def _write_the_source(scene: Scene) -> None:
    scene.backend.trim(0, 0)
    scene.decode(Row(0, 0, (5, 6, 7), output=False))


@pytest.mark.parametrize(
    "meanwhile", [_fan_out, _save_the_source, _clear_the_source, _write_the_source]
)
def test_what_the_guard_lets_pass_changes_no_logit(
    backend: LlamaBackend, meanwhile: Callable[[Scene], None]
) -> None:
    """The source may be copied again, saved, dropped and written: the copy comes first."""
    right = Scene(backend).logits(0)[0]
    scene = Scene(backend)
    backend.copy(0, 2, scene.length)
    meanwhile(scene)

    np.testing.assert_array_equal(scene.logits(2)[0], right)


def test_a_saved_state_comes_back_exactly(backend: LlamaBackend) -> None:
    """In another slot, after a shorter copy of it too."""
    right = Scene(backend).logits(0)[0]
    scene = Scene(backend)
    assert backend.restore(3, backend.save(0))

    np.testing.assert_array_equal(scene.logits(3)[0], right)


def test_a_state_that_is_not_one_is_refused(backend: LlamaBackend) -> None:
    """And the slot is empty, not half filled."""
    Scene(backend)
    state = backend.save(0)

    assert not CacheCopier(backend, CopyCosts()).restore(3, state[: len(state) // 2])
    assert backend.slot_length(3) == 0


def test_warm_up_measures_copies(backend: LlamaBackend) -> None:
    """A state costs by its length, and slots are empty afterwards."""
    Scene(backend)
    for slot in range(SLOTS):
        backend.trim(slot, 0)
    costs = warm_up(backend, cores=1, threads=1, budget_s=0.1).copy_costs

    assert costs.state_s + costs.state_token_s > 0
    assert [backend.slot_length(slot) for slot in range(SLOTS)] == [0] * SLOTS


# --- through the engine ---------------------------------------------------------------------------


def _engine(
    backend: LlamaBackend,
    costs: CopyCosts | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Engine:
    for slot in range(SLOTS):
        backend.trim(slot, 0)
    return Engine(
        "demo",
        backend,
        layout=BatchLayout({}, SLOTS),
        chunk_cap=64,
        clock=clock,
        copy_costs=costs,
        saved_bytes=100 << 20,
    )


def _request(backend: LlamaBackend, i: int, text: str, **changes: object) -> SequenceRequest:
    tokens = backend.vocabulary.tokenize(text, add_special=False, parse_special=True)
    return a_request(i, tokens, **{"max_tokens": 20, "ignore_eos": True, **changes})


def _run(engine: Engine, steps: int = 10**6) -> list[Event]:
    events: list[Event] = []
    while engine.has_work and steps:
        events += engine.step()
        engine.check_integrity()
        steps -= 1
    return events


def _text(events: list[Event], sequence_id: int) -> str:
    deltas = [event for event in events if isinstance(event, Delta)]
    return "".join(delta.text for delta in deltas if delta.sequence_id == sequence_id)


def _sources(events: list[Event]) -> dict[int, tuple[int, CacheSource]]:
    started = [event for event in events if isinstance(event, Started)]
    return {event.sequence_id: (event.cached_tokens, event.source) for event in started}


@pytest.mark.parametrize(
    "costs", [CopyCosts(), CopyCosts(stream_s=9e9)], ids=["stream copy", "state copy"]
)
def test_a_prefix_lent_by_a_running_sequence_changes_no_answer(
    backend: LlamaBackend, costs: CopyCosts
) -> None:
    """The borrower answers as it does alone, and so does the lender."""
    alone = {}
    texts = [SYSTEM + QUESTION, SYSTEM + QUESTION.replace("France", "Italy")]
    for i, text in enumerate(texts):
        engine = _engine(backend)
        engine.submit(_request(backend, i, text))
        alone[i] = _text(_run(engine), i)
    engine = _engine(backend, costs)
    engine.submit(_request(backend, 0, texts[0]))
    events = _run(engine, steps=3)
    engine.submit(_request(backend, 1, texts[1]))
    events += _run(engine)

    cached, source = _sources(events)[1]
    assert cached > 16
    assert source is CacheSource.LIVE
    assert {i: _text(events, i) for i in alone} == alone


def test_followers_wait_for_a_leader_and_survive_it(backend: LlamaBackend) -> None:
    """Three over one prompt: it is computed once, though the first is cancelled in the middle, and
    the others say what they say alone."""
    countries = ("France", "Italy", "Spain")
    texts = [SYSTEM + MINE + QUESTION.replace("France", country) for country in countries]
    requests = [_request(backend, i, text) for i, text in enumerate(texts)]
    alone = []
    for request in requests:
        engine = _engine(backend)
        engine.submit(request)
        alone.append(_text(_run(engine), request.sequence_id))
    engine = _engine(backend, clock=ManualClock())  # nobody has waited too long
    for request in requests:
        engine.submit(request)
    events = _run(engine, steps=1)
    num_followers = engine._load().num_followers
    engine.cancel(0, arrived_in_step=1, step=2)
    events += _run(engine)

    assert num_followers == 2
    assert [_text(events, i) for i in (1, 2)] == alone[1:]
    assert {_sources(events)[i][1] for i in (1, 2)} <= {CacheSource.SLOT, CacheSource.LIVE}
    assert engine._load().prompt_tokens < 1.5 * len(requests[0].prompt)


def test_a_prefix_from_memory_changes_no_answer(backend: LlamaBackend) -> None:
    """Four other prompts take its slot; it comes back from memory, and the answer is the same."""
    engine = _engine(backend)
    prompt = SYSTEM + MINE + QUESTION
    engine.submit(_request(backend, 0, prompt))
    events = _run(engine)
    for i in range(1, SLOTS + 1):
        text = OTHER[i:] + MINE
        engine.submit(_request(backend, i, text, max_tokens=40))
    _run(engine)
    engine.submit(_request(backend, 9, prompt))
    events += _run(engine)

    assert _sources(events)[9][1] is CacheSource.MEMORY
    assert _text(events, 9) == _text(events, 0)


def test_a_preempted_sequence_resumes_exactly(backend: LlamaBackend) -> None:
    """Alone but for the interruption, with draws and penalties, it says token for token what it
    says undisturbed."""
    sampling = Sampling(temperature=1.2, repetition_penalty=1.3, mirostat=Mirostat(2))
    batch = _request(backend, 0, MINE, priority=1, sampling=sampling, reuse=False)
    engine = _engine(backend)
    engine.submit(batch)
    undisturbed = _text(_run(engine), 0)

    engine = _engine(backend)
    blockers = [
        _request(backend, i, OTHER[i:], priority=2, max_tokens=200, reuse=False)
        for i in range(1, SLOTS)
    ]
    for request in (batch, *blockers):
        engine.submit(request)
    for i in range(1, SLOTS):
        engine.pause(i, paused=True)
    events = _run(engine, steps=5)
    for i in range(1, SLOTS):
        engine.pause(i, paused=False)
    events += _run(engine, steps=1)
    for i in range(1, SLOTS):
        engine.pause(i, paused=True)
    engine.submit(_request(backend, 9, QUESTION, priority=3, max_tokens=5))
    events += _run(engine)

    assert [event for event in events if isinstance(event, Preempted)] == [Preempted(0)]
    assert _text(events, 0) == undisturbed
