"""The engine on llama.cpp and the demo model: what no fake can show."""

import ctypes
import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import llama_cpp
import pytest

from inference_svc.engine.backend import DecodeError
from inference_svc.engine.batch import Row, TokenBatch
from inference_svc.engine.engine import Engine
from inference_svc.engine.events import Delta, Event, Failed, Finished, Started
from inference_svc.engine.request import SequenceRequest
from inference_svc.engine.sampling_params import Adaptive, Dry, Mirostat, Sampling, Stage
from inference_svc.engine_client.messages import EngineConfig, ModelConfig
from inference_svc.engine_process.model_load import load
from inference_svc.llama import library
from inference_svc.llama.backend import BackendSettings, LlamaBackend
from inference_svc.llama.warmup import warm_up
from inference_svc.llama.weights import ModelLoadError
from inference_svc.models.sources import BUNDLED_PATH
from tests.support.layouts import FixedLayout
from tests.support.sequences import a_request

QUESTION = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
ANSWER = "The capital of France is Paris."
STORY = "<|im_start|>user\nTell me a story about Mira.<|im_end|>\n<|im_start|>assistant\n"
SLOTS = 4


def _settings(path: Path = BUNDLED_PATH) -> BackendSettings:
    return BackendSettings(
        path,
        slots=SLOTS,
        context_tokens=512,
        batch_tokens=512,
        ubatch_tokens=256,
        threads=1,
        sampling_threads=2,
    )


@pytest.fixture(scope="module")
def backend() -> Iterator[LlamaBackend]:
    """The demo model with four slots."""
    library.start()
    backend = LlamaBackend(_settings())
    yield backend
    backend.close()


@pytest.fixture(autouse=True)
def _empty_slots(backend: LlamaBackend) -> None:
    for slot in range(SLOTS):
        backend.trim(slot, 0)


def _engine(backend: LlamaBackend, *, step_times: dict[int, float] | None = None) -> Engine:
    return Engine(
        "demo",
        backend,
        layout=FixedLayout(step_times or {}, SLOTS),
        chunk_cap=64,
        clock=time.monotonic,
    )


def _request(backend: LlamaBackend, sequence_id: int, text: str, **changes: Any) -> SequenceRequest:
    tokens = backend.vocabulary.tokenize(text, add_special=False, parse_special=True)
    changes = {"max_tokens": 40, **changes}
    return a_request(sequence_id, tokens, **changes)


def _run(engine: Engine, *requests: SequenceRequest) -> list[Event]:
    for request in requests:
        engine.submit(request)
    events: list[Event] = []
    while engine.has_work:
        events += engine.step()
        engine.check_integrity()
    return events


def _text(events: list[Event], sequence_id: int = 0) -> str:
    deltas = [event for event in events if isinstance(event, Delta)]
    return "".join(delta.text for delta in deltas if delta.sequence_id == sequence_id)


def _tokens(events: list[Event], sequence_id: int = 0) -> list[int]:
    deltas = [event for event in events if isinstance(event, Delta)]
    return [t for delta in deltas if delta.sequence_id == sequence_id for t in delta.tokens]


def test_a_decode_is_waited_for_though_nothing_is_sampled(
    backend: LlamaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU is only told what to do: what is not waited for looks as if it took no time."""
    calls: list[str] = []

    def recorded(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*arguments: Any) -> Any:
            calls.append(name)
            return call(*arguments)

        return noted

    for name in ("llama_decode", "llama_synchronize"):
        monkeypatch.setattr(llama_cpp, name, recorded(name, getattr(llama_cpp, name)))
    backend.decode(TokenBatch.of([Row(0, 0, array("i", range(10, 60)), output=False)]))

    assert calls == ["llama_decode", "llama_synchronize"]


def test_the_demo_model_answers(backend: LlamaBackend) -> None:
    """Prompt in, sensible text out, ended by the model's own token."""
    events = _run(_engine(backend), _request(backend, 0, QUESTION))

    assert _text(events) == ANSWER
    (finished,) = [event for event in events if isinstance(event, Finished)]
    assert finished.stop_token in backend.vocabulary.end_tokens


def test_company_and_fillers_do_not_change_a_greedy_answer(backend: LlamaBackend) -> None:
    """Four sequences of different lengths, with holes filled: each says what it says alone."""
    requests = [
        _request(backend, 0, QUESTION),
        _request(backend, 1, STORY, max_tokens=60),
        _request(backend, 2, QUESTION, max_tokens=3),
        _request(backend, 3, STORY, max_tokens=50),
    ]
    times = {1: 9.0, 2: 9.1, 3: 9.2, 4: 9.3}
    together = _run(_engine(backend, step_times=times), *requests)

    for request in requests:
        for slot in range(SLOTS):
            backend.trim(slot, 0)
        alone = _run(_engine(backend), request)
        assert _text(together, request.sequence_id) == _text(alone, request.sequence_id)


def test_a_failed_decode_costs_one_sequence(
    backend: LlamaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it had written of the others is rolled back and computed again: they say what they say
    alone, and the slots are in order."""
    poison = _request(backend, 2, STORY, reuse=False)
    others = [
        _request(backend, 0, QUESTION),
        _request(backend, 1, QUESTION.replace("capital", "sea")),
    ]
    alone = [_text(_run(_engine(backend), request), request.sequence_id) for request in others]
    decode = backend.decode

    def fail(batch: TokenBatch) -> None:
        decode(batch)
        if 2 in batch.slots:
            raise DecodeError(-3)

    monkeypatch.setattr(backend, "decode", fail)
    events = _run(_engine(backend), *others, poison)

    (failed,) = [event for event in events if isinstance(event, Failed)]
    assert (failed.sequence_id, failed.error.reason) == (2, "DECODE_FAILED")
    assert [_text(events, i) for i in (0, 1)] == alone


def test_a_follow_up_reuses_the_slot_and_answers_the_same(backend: LlamaBackend) -> None:
    """Cached tokens change the time, not the answer."""
    engine = _engine(backend)
    prompt = f"<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{QUESTION}"
    _run(engine, _request(backend, 0, prompt))
    events = _run(engine, _request(backend, 1, prompt))

    (started,) = [event for event in events if isinstance(event, Started)]
    assert started.cached_tokens > 10
    assert _text(events, 1) == ANSWER


def test_a_seed_repeats_and_another_seed_differs(backend: LlamaBackend) -> None:
    """Draws depend on seed, choice and draw count alone."""
    sampling = Sampling(temperature=1.5, top_k=0, top_p=1.0, min_p=0.0)

    def say(seed: int, choice: int) -> list[int]:
        request = _request(backend, 0, STORY, sampling=sampling, seed=seed, choice=choice)
        return _tokens(_run(_engine(backend), replace(request, reuse=False)))

    assert say(7, 0) == say(7, 0)
    assert len({tuple(say(7, 0)), tuple(say(8, 0)), tuple(say(7, 1))}) == 3


RESUMABLE = {
    "plain": Sampling(temperature=1.2, min_p=0.0),
    "penalties": Sampling(temperature=1.2, repetition_penalty=1.5, presence_penalty=0.5),
    "dry": Sampling(temperature=1.2, dry=Dry(multiplier=2.0, allowed_length=1)),
    "xtc": Sampling(temperature=1.2, xtc_probability=0.5, xtc_threshold=0.02),
    "dynatemp": Sampling(temperature=1.2, dynatemp_range=0.5, dynatemp_exponent=1.5),
}


@pytest.mark.parametrize("name", RESUMABLE)
@pytest.mark.parametrize("cut", [1, 9])
def test_resume_continues_token_for_token(backend: LlamaBackend, name: str, cut: int) -> None:
    """Samplers are rebuilt by replaying: the rest equals the uninterrupted run."""
    request = _request(
        backend, 0, QUESTION, sampling=RESUMABLE[name], max_tokens=14, ignore_eos=True, reuse=False
    )
    whole = _tokens(_run(_engine(backend), request))
    resumed = replace(request, resumed=array("i", whole[:cut]))

    assert _tokens(_run(_engine(backend), resumed)) == whole[cut:]


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
def test_every_sampler_runs_and_repeats(backend: LlamaBackend, sampling: Sampling) -> None:
    """The same seed gives the same tokens, whatever the filters keep to themselves."""
    request = _request(backend, 0, STORY, sampling=sampling, reuse=False, ignore_eos=True)

    first = _tokens(_run(_engine(backend), request))

    assert len(first) == 40
    assert _tokens(_run(_engine(backend), request)) == first


def test_a_batch_fills_the_native_arrays(backend: LlamaBackend) -> None:
    """Two slots computed in one call hold the tokens given to each."""
    backend.decode(
        TokenBatch.of([Row(0, 0, (1, 2, 3), output=False), Row(2, 0, (4, 5), output=True)])
    )

    assert [backend.slot_length(slot) for slot in range(SLOTS)] == [3, 0, 2, 0]
    assert backend.trim(0, 1)
    assert backend.slot_length(0) == 1


def test_warm_up_measures_and_leaves_slots_empty(backend: LlamaBackend) -> None:
    """The table covers one row and all rows; the operator's thread count stands."""
    measured = warm_up(backend, cores=2, threads=1, budget_s=2.0)

    assert measured.threads == 1
    assert {1, SLOTS} <= measured.step_times.keys()
    assert all(seconds > 0 for seconds in measured.step_times.values())
    assert [backend.slot_length(slot) for slot in range(SLOTS)] == [0] * SLOTS


def test_a_broken_file_is_refused_with_its_name(tmp_path: Path) -> None:
    """Not a crash, not a null pointer."""
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(200))

    with pytest.raises(ModelLoadError, match=r"broken\.gguf"):
        LlamaBackend(_settings(broken))


def test_a_model_that_cannot_compute_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """As an error of loading, which the engine's process hands on: the memory of a GPU may end with
    the first batch."""
    monkeypatch.setattr(llama_cpp, "llama_decode", lambda *_: -2)
    model = ModelConfig("demo", _settings(), 64, threads=1)
    with pytest.raises(ModelLoadError, match=r"demo cannot compute a first input \(code -2\)"):
        load(EngineConfig(model, 1, "INFO", None, 0.0))


def test_the_native_batch_type_matches() -> None:
    """Token ids are 32-bit and candidates 12 bytes, as the array views assume."""
    assert ctypes.sizeof(llama_cpp.llama_token) == 4
    assert ctypes.sizeof(llama_cpp.llama_token_data) == 12


def test_a_prompt_is_not_cut_shortly_before_its_end(backend: LlamaBackend) -> None:
    """Beside as many who decode, where the target leaves prompts the least that there is, two of
    little more than that have their first token after one step."""
    engine = Engine(
        *("demo", backend),
        layout=FixedLayout({}, SLOTS),
        chunk_cap=512,
        clock=time.monotonic,
        step_times=dict.fromkeys(range(1, SLOTS + 1), 1.0),
        token_target_s=0.0,
    )
    for sequence_id in range(2):
        engine.submit(_request(backend, sequence_id, QUESTION, ignore_eos=True))
    while sum(sequence.is_decoding for sequence in engine.running) < 2:
        engine.step()
    for sequence_id, length in ((2, 140), (3, 150)):
        engine.submit(a_request(sequence_id, [300 + sequence_id] * length, max_tokens=1))
    events = engine.step()
    engine.check_integrity()

    assert {event.sequence_id for event in events if isinstance(event, Delta)} == {0, 1, 2, 3}


def test_a_token_is_told_before_the_prompts_behind_it_are_computed(backend: LlamaBackend) -> None:
    """A step goes on meanwhile, and who is submitted then has a first token in it."""
    engine = _engine(backend)
    alone = _tokens(_run(engine, _request(backend, 0, QUESTION, ignore_eos=True)))
    engine.submit(_request(backend, 0, QUESTION, ignore_eos=True))
    while not any(sequence.is_decoding for sequence in engine.running):
        engine.step()
    engine.submit(a_request(1, [300] * 40, max_tokens=1))
    calls = engine.decode_calls()
    first = next(calls)
    computed = [sequence.num_computed for sequence in engine.running]
    engine.submit(a_request(2, [301] * 20, max_tokens=1))
    rest = [event for events in calls for event in events]
    engine.check_integrity()

    assert {event.sequence_id for event in first if isinstance(event, Delta)} == {0}
    assert computed[1:] == [0]
    assert {event.sequence_id for event in rest if isinstance(event, Finished)} == {1, 2}
    said = _tokens([*first, *_run(engine)])
    assert said == alone[-len(said) :]
