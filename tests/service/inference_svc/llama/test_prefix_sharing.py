"""Prefix sharing on llama.cpp: copies, saved states, and their order."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from inference_svc.engine.batch import Row, TokenBatch
from inference_svc.engine.engine import Engine
from inference_svc.engine.events import CacheSource, Event, Preempted, Started
from inference_svc.engine.kv_cache.copies import CacheCopier, CopyCosts, CopyOrderError
from inference_svc.engine.request import SequenceRequest
from inference_svc.engine.sampling_params import Mirostat, Sampling
from inference_svc.llama.backend import LlamaBackend
from inference_svc.llama.warmup import warm_up
from tests.support.llama_engines import (
    clear_slots,
    make_engine,
    output_text,
    run_engine,
    select_events,
    text_request,
)
from tests.support.sequences import ManualClock

SLOTS = 4
TEXT = "Tell me a story about Mira and the long road over the hills to the sea. " * 3
OTHER_TEXT = "What is the capital of France? I would rather hear of Paris and of Rome. " * 3
Cache = CacheCopier | LlamaBackend
QUESTION = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
SYSTEM = "<|im_start|>system\nYou are a careful guide who answers in one sentence.<|im_end|>\n"


class Scene:
    """Slot 0 has one text, slot 1 another of the same length; slots 2 and 3 are empty but their
    memory has the other text."""

    def __init__(self, backend: LlamaBackend) -> None:
        self.backend = backend
        text, other_text = (
            backend.vocabulary.tokenize(each, add_special=False, parse_special=True)
            for each in (TEXT, OTHER_TEXT)
        )
        self.length = min(len(text), len(other_text)) - 1
        self.next = text[self.length]
        clear_slots(backend)
        for slot in range(SLOTS):
            tokens = text if slot == 0 else other_text
            self.decode(Row(slot, 0, tokens[: self.length], output=False))
        for slot in (2, 3):
            backend.trim(slot, 0)

    def decode(self, *rows: Row) -> None:
        """Compute rows, without the checks of `CacheCopier`."""
        self.backend.decode(TokenBatch.of(rows))

    def logits(self, *slots: int) -> list[npt.NDArray[np.float32]]:
        """The logits of each slot after the same next token."""
        self.decode(*(Row(slot, self.length, (self.next,), output=True) for slot in slots))
        return [np.array(self.backend.logits(index)) for index in range(len(slots))]


def _save_the_target(scene: Scene, cache: Cache, copy: Callable[[], None]) -> int:
    copy()
    state = cache.save(2)
    scene.decode(Row(2, scene.length, (scene.next,), output=False))
    scene.backend.restore(3, state)
    return 3


def _restore_the_source(scene: Scene, cache: Cache, copy: Callable[[], None]) -> int:
    state = cache.save(1)
    copy()
    cache.restore(0, state)
    return 2


def _restore_the_target(scene: Scene, cache: Cache, copy: Callable[[], None]) -> int:
    state = cache.save(0)
    cache.copy(1, 2, scene.length)
    cache.restore(2, state)
    return 2


@pytest.mark.parametrize("order", [_save_the_target, _restore_the_source, _restore_the_target])
def test_a_forbidden_order_corrupts_the_cache_and_is_refused(
    backend: LlamaBackend, order: Callable[..., int]
) -> None:
    """Without checks slot 0's text continues as another one; `CacheCopier` raises instead."""
    expected = Scene(backend).logits(0)[0]
    scene = Scene(backend)
    slot = order(scene, backend, lambda: backend.copy(0, 2, scene.length))
    assert np.abs(scene.logits(slot)[0] - expected).max() > 1.0

    scene = Scene(backend)
    copier = CacheCopier(backend, CopyCosts())
    with pytest.raises(CopyOrderError):
        order(scene, copier, lambda: copier.copy(0, 2, scene.length))


def _copy_again(scene: Scene) -> None:
    scene.backend.copy(0, 3, scene.length)


def _save_the_source(scene: Scene) -> None:
    scene.backend.save(0)


def _clear_the_source(scene: Scene) -> None:
    scene.backend.trim(0, 0)


def _write_the_source(scene: Scene) -> None:
    scene.backend.trim(0, 0)
    scene.decode(Row(0, 0, (5, 6, 7), output=False))


@pytest.mark.parametrize(
    "operation", [_copy_again, _save_the_source, _clear_the_source, _write_the_source]
)
def test_an_allowed_order_does_not_change_logits(
    backend: LlamaBackend, operation: Callable[[Scene], None]
) -> None:
    """After a queued copy the source may be copied again, saved, dropped and overwritten."""
    expected = Scene(backend).logits(0)[0]
    scene = Scene(backend)
    backend.copy(0, 2, scene.length)
    operation(scene)

    np.testing.assert_array_equal(scene.logits(2)[0], expected)


def test_a_saved_state_is_restored_exactly(backend: LlamaBackend) -> None:
    """In another slot."""
    expected = Scene(backend).logits(0)[0]
    scene = Scene(backend)
    assert backend.restore(3, backend.save(0))

    np.testing.assert_array_equal(scene.logits(3)[0], expected)


def test_a_truncated_state_is_refused(backend: LlamaBackend) -> None:
    Scene(backend)
    state = backend.save(0)

    assert not CacheCopier(backend, CopyCosts()).restore(3, state[: len(state) // 2])
    assert backend.slot_length(3) == 0


def test_warm_up_measures_copies(backend: LlamaBackend) -> None:
    """Of states, and leaves the slots empty."""
    costs = warm_up(backend, cores=1, threads=1, budget_s=0.1).copy_costs

    assert costs.state_s + costs.state_token_s > 0
    assert [backend.slot_length(slot) for slot in range(SLOTS)] == [0] * SLOTS


# --- through the engine ---------------------------------------------------------------------------


def _engine(backend: LlamaBackend, **options: Any) -> Engine:
    return make_engine(backend, saved_bytes=100 << 20, **options)


def _request(backend: LlamaBackend, i: int, text: str, **changes: Any) -> SequenceRequest:
    return text_request(backend, i, text, **{"max_tokens": 20, "ignore_eos": True, **changes})


def _sources(events: list[Event]) -> dict[int, tuple[int, CacheSource]]:
    started = select_events(events, Started)
    return {event.sequence_id: (event.cached_tokens, event.source) for event in started}


def _outputs_alone(backend: LlamaBackend, requests: list[SequenceRequest]) -> list[str]:
    return [output_text(run_engine(_engine(backend), each), each.sequence_id) for each in requests]


@pytest.mark.parametrize(
    "costs", [CopyCosts(), CopyCosts(stream_s=9e9)], ids=["stream copy", "state copy"]
)
def test_a_prefix_of_a_running_sequence_changes_no_output(
    backend: LlamaBackend, costs: CopyCosts
) -> None:
    """Both sequences have the outputs that they have alone."""
    texts = [SYSTEM + QUESTION, SYSTEM + QUESTION.replace("France", "Italy")]
    requests = [_request(backend, i, text) for i, text in enumerate(texts)]
    alone = _outputs_alone(backend, requests)
    engine = _engine(backend, copy_costs=costs)
    events = run_engine(engine, requests[0], steps=3)
    events += run_engine(engine, requests[1])

    cached, source = _sources(events)[1]
    assert cached > 16
    assert source is CacheSource.LIVE
    assert [output_text(events, i) for i in range(2)] == alone


@pytest.mark.batch_invariant
def test_a_shared_prompt_is_computed_once_even_if_its_leader_is_cancelled(
    backend: LlamaBackend,
) -> None:
    """The other two sequences have the outputs that they have alone."""
    countries = ("France", "Italy", "Spain")
    texts = [SYSTEM + TEXT + QUESTION.replace("France", country) for country in countries]
    requests = [_request(backend, i, text) for i, text in enumerate(texts)]
    alone = _outputs_alone(backend, requests)
    engine = _engine(backend, clock=ManualClock())  # no request waits too long
    events = run_engine(engine, *requests, steps=1)
    num_followers = engine._load().num_followers
    engine.cancel(0, arrived_in_step=1, step=2)
    events += run_engine(engine)

    assert num_followers == 2
    assert [output_text(events, i) for i in (1, 2)] == alone[1:]
    assert {_sources(events)[i][1] for i in (1, 2)} <= {CacheSource.SLOT, CacheSource.LIVE}
    assert engine._load().prompt_tokens < 1.5 * len(requests[0].prompt)


def test_a_prefix_from_memory_changes_no_output(backend: LlamaBackend) -> None:
    """After four other prompts have taken its slot."""
    engine = _engine(backend)
    prompt = SYSTEM + TEXT + QUESTION
    events = run_engine(engine, _request(backend, 0, prompt))
    others = [
        _request(backend, i, OTHER_TEXT[i:] + TEXT, max_tokens=40) for i in range(1, SLOTS + 1)
    ]
    run_engine(engine, *others)
    events += run_engine(engine, _request(backend, 9, prompt))

    assert _sources(events)[9][1] is CacheSource.MEMORY
    assert output_text(events, 9) == output_text(events, 0)


def test_a_preempted_sequence_resumes_exactly(backend: LlamaBackend) -> None:
    """With the tokens of an uninterrupted run, including random draws and penalties."""
    sampling = Sampling(temperature=1.2, repetition_penalty=1.3, mirostat=Mirostat(2))
    batch = _request(backend, 0, TEXT, priority=1, sampling=sampling, reuse=False)
    (uninterrupted,) = _outputs_alone(backend, [batch])

    engine = _engine(backend)
    blockers = [
        _request(backend, i, OTHER_TEXT[i:], priority=2, max_tokens=200, reuse=False)
        for i in range(1, SLOTS)
    ]
    events = run_engine(engine, batch, *blockers, steps=0)
    for paused, steps in ((True, 5), (False, 1), (True, 0)):
        for i in range(1, SLOTS):
            engine.pause(i, paused=paused)
        events += run_engine(engine, steps=steps)
    interactive = _request(backend, 9, QUESTION, priority=3, max_tokens=5)
    events += run_engine(engine, interactive)

    assert select_events(events, Preempted) == [Preempted(0)]
    assert output_text(events) == uninterrupted
