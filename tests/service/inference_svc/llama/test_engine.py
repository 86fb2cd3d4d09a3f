"""The engine on llama.cpp and the demo model."""

import ctypes
from array import array
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import llama_cpp
import pytest

from inference_svc.engine.backend import DecodeError
from inference_svc.engine.batch import Row, TokenBatch
from inference_svc.engine.engine import Engine
from inference_svc.engine.events import Delta, Failed, Finished, Started
from inference_svc.engine.request import SequenceRequest
from inference_svc.engine.sampling_params import Adaptive, Dry, Mirostat, Sampling, Stage
from inference_svc.engine_client.messages import EngineConfig
from inference_svc.engine_process.model_load import load
from inference_svc.llama.backend import LlamaBackend
from inference_svc.llama.warmup import warm_up
from inference_svc.llama.weights import ModelLoadError
from tests.support.layouts import FixedLayout
from tests.support.llama_engines import (
    finished_event,
    make_engine,
    make_settings,
    open_backend,
    output_text,
    output_tokens,
    run_engine,
    select_events,
    text_request,
)
from tests.support.sequences import ManualClock, make_request

QUESTION = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
ANSWER = "The capital of France is Paris."
STORY = "<|im_start|>user\nTell me a story about Mira.<|im_end|>\n<|im_start|>assistant\n"
SLOTS = 4


def _engine(
    backend: LlamaBackend, step_times: dict[int, float] | None = None, **options: Any
) -> Engine:
    return make_engine(backend, layout=FixedLayout(step_times or {}, SLOTS), **options)


def _request(backend: LlamaBackend, sequence_id: int, text: str, **changes: Any) -> SequenceRequest:
    return text_request(backend, sequence_id, text, **{"max_tokens": 40, **changes})


def test_decode_waits_for_the_gpu_even_if_nothing_is_sampled(
    backend: LlamaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the measured time would be that of queueing the work."""
    calls: list[str] = []

    def record(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*arguments: Any) -> Any:
            calls.append(name)
            return call(*arguments)

        return wrapper

    for name in ("llama_decode", "llama_synchronize"):
        monkeypatch.setattr(llama_cpp, name, record(name, getattr(llama_cpp, name)))
    backend.decode(TokenBatch.of([Row(0, 0, array("i", range(10, 60)), output=False)]))

    assert calls == ["llama_decode", "llama_synchronize"]


def test_the_demo_model_answers(backend: LlamaBackend) -> None:
    """With a sensible text that ends with an end token."""
    events = run_engine(_engine(backend), _request(backend, 0, QUESTION))

    assert output_text(events) == ANSWER
    assert finished_event(events).stop_token in backend.vocabulary.end_tokens


def test_other_rows_and_fillers_do_not_change_a_greedy_output(backend: LlamaBackend) -> None:
    """Four sequences of different lengths have the outputs that they have alone."""
    requests = [
        _request(backend, 0, QUESTION),
        _request(backend, 1, STORY, max_tokens=60),
        _request(backend, 2, QUESTION, max_tokens=3),
        _request(backend, 3, STORY, max_tokens=50),
    ]
    times = {1: 9.0, 2: 9.1, 3: 9.2, 4: 9.3}
    together = run_engine(_engine(backend, times), *requests)

    for request in requests:
        alone = run_engine(_engine(backend), request)
        assert output_text(together, request.sequence_id) == output_text(alone, request.sequence_id)


class FailingBackend(LlamaBackend):
    """Reports a failure after each decode that has tokens of slot 2."""

    def decode(self, batch: TokenBatch) -> None:
        super().decode(batch)
        if 2 in batch.slots:
            raise DecodeError(-3)


def test_a_failed_decode_fails_one_sequence(backend: LlamaBackend) -> None:
    """The other sequences are rolled back and computed again; their outputs do not change."""
    failing_request = _request(backend, 2, STORY, reuse=False)
    others = [
        _request(backend, 0, QUESTION),
        _request(backend, 1, QUESTION.replace("capital", "sea")),
    ]
    alone = [output_text(run_engine(_engine(backend), each), each.sequence_id) for each in others]
    with open_backend(make=FailingBackend) as failing:
        events = run_engine(_engine(failing), *others, failing_request)

    (failed,) = select_events(events, Failed)
    assert (failed.sequence_id, failed.error.reason) == (2, "DECODE_FAILED")
    assert [output_text(events, i) for i in (0, 1)] == alone


def test_a_repeated_prompt_reuses_the_slot(backend: LlamaBackend) -> None:
    engine = _engine(backend)
    prompt = f"<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{QUESTION}"
    run_engine(engine, _request(backend, 0, prompt))
    events = run_engine(engine, _request(backend, 1, prompt))

    (started,) = select_events(events, Started)
    assert started.cached_tokens > 10
    assert output_text(events, 1) == ANSWER


def test_the_output_depends_on_seed_and_choice(backend: LlamaBackend) -> None:
    sampling = Sampling(temperature=1.5, top_k=0, top_p=1.0, min_p=0.0)

    def generate(seed: int, choice: int) -> list[int]:
        request = _request(backend, 0, STORY, sampling=sampling, seed=seed, choice=choice)
        return output_tokens(run_engine(_engine(backend), replace(request, reuse=False)))

    assert generate(7, 0) == generate(7, 0)
    assert len({tuple(generate(7, 0)), tuple(generate(8, 0)), tuple(generate(7, 1))}) == 3


RESUMABLE = {
    "plain": Sampling(temperature=1.2, min_p=0.0),
    "penalties": Sampling(temperature=1.2, repetition_penalty=1.5, presence_penalty=0.5),
    "dry": Sampling(temperature=1.2, dry=Dry(multiplier=2.0, allowed_length=1)),
    "xtc": Sampling(temperature=1.2, xtc_probability=0.5, xtc_threshold=0.02),
    "dynatemp": Sampling(temperature=1.2, dynatemp_range=0.5, dynatemp_exponent=1.5),
    "typical_p": Sampling(temperature=1.2, typical_p=0.7),
    "top_n_sigma": Sampling(temperature=1.2, top_n_sigma=1.0),
    "top_k": Sampling(temperature=1.2, top_k=5),
    "order": Sampling(temperature=1.2, stages=(Stage.TEMPERATURE, Stage.MIN_P)),
}


@pytest.mark.parametrize("name", RESUMABLE)
@pytest.mark.parametrize("cut", [1, 9])
@pytest.mark.batch_invariant
def test_resume_continues_token_for_token(backend: LlamaBackend, name: str, cut: int) -> None:
    """Samplers are restored by accepting the earlier tokens."""
    request = _request(
        backend, 0, QUESTION, sampling=RESUMABLE[name], max_tokens=14, ignore_eos=True, reuse=False
    )
    whole = output_tokens(run_engine(_engine(backend), request))
    resumed = replace(request, resumed=array("i", whole[:cut]))

    assert output_tokens(run_engine(_engine(backend), resumed)) == whole[cut:]


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(mirostat=Mirostat(1)),
        Sampling(mirostat=Mirostat(2, tau=3.0)),
        Sampling(adaptive=Adaptive(0.4)),
        Sampling(typical_p=0.7, top_n_sigma=1.0),
        Sampling(top_k=1),
        Sampling(stages=(Stage.MIN_P, Stage.TEMPERATURE)),
    ],
    ids=["mirostat1", "mirostat2", "adaptive", "typical", "top_k", "order"],
)
def test_every_sampler_is_repeatable(backend: LlamaBackend, sampling: Sampling) -> None:
    """The same seed gives the same tokens, also with stateful samplers."""
    request = _request(backend, 0, STORY, sampling=sampling, reuse=False, ignore_eos=True)

    first = output_tokens(run_engine(_engine(backend), request))

    assert len(first) == 40
    assert output_tokens(run_engine(_engine(backend), request)) == first


def test_a_batch_fills_the_native_arrays(backend: LlamaBackend) -> None:
    """After a decode of two slots each has its tokens."""
    backend.decode(
        TokenBatch.of([Row(0, 0, (1, 2, 3), output=False), Row(2, 0, (4, 5), output=True)])
    )

    assert [backend.slot_length(slot) for slot in range(SLOTS)] == [3, 0, 2, 0]
    assert backend.trim(0, 1)
    assert backend.slot_length(0) == 1


def test_warm_up_measures_and_leaves_slots_empty(backend: LlamaBackend) -> None:
    """Step times include one row and all rows; the configured number of threads is used."""
    measured = warm_up(backend, cores=2, threads=1, budget_s=2.0)

    assert measured.threads == 1
    assert {1, SLOTS} <= measured.step_times.keys()
    assert all(seconds > 0 for seconds in measured.step_times.values())
    assert [backend.slot_length(slot) for slot in range(SLOTS)] == [0] * SLOTS


def test_a_broken_file_is_a_load_error(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(200))

    with pytest.raises(ModelLoadError, match=r"broken\.gguf"):
        LlamaBackend(make_settings(broken))


def test_a_failed_warm_up_is_a_load_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """With llama.cpp's code: a GPU may run out of memory in the first batch."""
    monkeypatch.setattr(llama_cpp, "llama_decode", lambda *_: -2)
    config = EngineConfig("demo", make_settings(), 64, threads=1, cores=1)
    with pytest.raises(ModelLoadError, match=r"demo cannot decode a warm-up batch \(.* code -2\)"):
        load(config)


def test_the_native_batch_type_matches() -> None:
    """Token ids have 4 bytes and candidates 12, as the numpy views assume."""
    assert ctypes.sizeof(llama_cpp.llama_token) == 4
    assert ctypes.sizeof(llama_cpp.llama_token_data) == 12


def test_short_prompts_are_not_split_shortly_before_their_end(backend: LlamaBackend) -> None:
    """Beside two decoding sequences and with the minimum prefill budget, two prompts that slightly
    exceed it have their first token after one step."""
    engine = make_engine(
        backend,
        layout=FixedLayout({}, SLOTS),
        chunk_cap=512,
        step_times=dict.fromkeys(range(1, SLOTS + 1), 1.0),
        token_target_s=0.0,
    )
    for sequence_id in range(2):
        engine.submit(_request(backend, sequence_id, QUESTION, ignore_eos=True))
    while sum(sequence.is_decoding for sequence in engine.running) < 2:
        engine.step()
    prompts = [
        make_request(sequence_id, [300 + sequence_id] * length, max_tokens=1)
        for sequence_id, length in ((2, 140), (3, 150))
    ]
    events = run_engine(engine, *prompts, steps=1)

    assert {delta.sequence_id for delta in select_events(events, Delta)} == {0, 1, 2, 3}


def test_tokens_are_emitted_before_the_prompts_of_a_step_are_computed(
    backend: LlamaBackend,
) -> None:
    """A request submitted between the calls of a step gets its first token in the same step."""
    engine = _engine(backend, clock=ManualClock())  # slow steps would divide the prompts
    alone = output_tokens(run_engine(engine, _request(backend, 0, QUESTION, ignore_eos=True)))
    engine.submit(_request(backend, 0, QUESTION, ignore_eos=True))
    while not any(sequence.is_decoding for sequence in engine.running):
        engine.step()
    engine.submit(make_request(1, [300] * 40, max_tokens=1))
    calls = engine.decode_calls()
    first = next(calls)
    computed = [sequence.num_computed for sequence in engine.running]
    engine.submit(make_request(2, [301] * 20, max_tokens=1))
    rest = [event for events in calls for event in events]
    engine.check_integrity()

    assert {delta.sequence_id for delta in select_events(first, Delta)} == {0}
    assert computed[1:] == [0]
    assert {event.sequence_id for event in select_events(rest, Finished)} == {1, 2}
    tokens = output_tokens([*first, *run_engine(engine)])
    assert tokens == alone[-len(tokens) :]
