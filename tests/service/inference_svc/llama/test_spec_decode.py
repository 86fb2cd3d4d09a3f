"""Speculative decoding on llama.cpp and the demo model: fewer steps, the same outputs.

Outputs are repetitive because only few tokens are allowed, or because a grammar repeats itself.
"""

from array import array
from collections.abc import Iterator
from typing import Any

import pytest

from inference_svc.engine.events import ChosenLogprob, Finished, FinishReason
from inference_svc.engine.request import SequenceRequest
from inference_svc.engine.sampling_params import Adaptive, Dry, Mirostat, Sampling
from inference_svc.llama.backend import LlamaBackend
from inference_svc.llama.warmup import warm_up
from inference_svc.structured_output.spec import OutputFormatKind
from tests.support import llama_engines

SLOTS = 4
DRAFT_TOKENS = 16
LENGTH = 60
TURN = "<|im_start|>user\nTell me a story.<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def backend() -> Iterator[LlamaBackend]:
    """The demo model with four slots and output rows for drafts."""
    with llama_engines.open_backend(draft_tokens=DRAFT_TOKENS) as backend:
        yield backend


class Run:
    """The events of sequences on a new engine."""

    def __init__(self, backend: LlamaBackend, *requests: SequenceRequest) -> None:
        engine = llama_engines.make_engine(backend)
        self.events = llama_engines.run_engine(engine, *requests)
        self.num_steps = engine.num_steps

    def tokens(self, i: int = 0) -> list[int]:
        return llama_engines.output_tokens(self.events, i)

    def text(self) -> str:
        return llama_engines.output_text(self.events)

    def logprobs(self) -> list[ChosenLogprob]:
        """The log probabilities of the first sequence."""
        return [
            logprob for delta in llama_engines.deltas(self.events) for logprob in delta.logprobs
        ]

    def finished(self, i: int = 0) -> Finished:
        return llama_engines.finished_event(self.events, i)


def _request(backend: LlamaBackend, i: int = 0, **changes: Any) -> SequenceRequest:
    changes = {"max_tokens": LENGTH, "ignore_eos": True, "reuse": False, **changes}
    return llama_engines.text_request(backend, i, TURN, **changes)


def _four_words(backend: LlamaBackend, **changes: Any) -> Sampling:
    words = backend.vocabulary.tokenize(" a the and", add_special=False, parse_special=False)
    return Sampling(**{"temperature": 1.0, **changes}, allowed_token_ids=tuple(words))


SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "plain": {"top_k": 0, "top_p": 1.0, "min_p": 0.0},
    "penalties": {"repetition_penalty": 1.1, "presence_penalty": 0.3, "frequency_penalty": 0.1},
    "dry": {"dry": Dry(multiplier=0.5, allowed_length=4)},
    "xtc": {"xtc_probability": 0.3, "xtc_threshold": 0.1},
    "dynatemp": {"dynatemp_range": 0.5},
    "mirostat1": {"mirostat": Mirostat(1)},
    "mirostat2": {"mirostat": Mirostat(2, tau=2.0)},
    "adaptive": {"adaptive": Adaptive(0.6)},
}


@pytest.mark.parametrize("name", SAMPLINGS)
@pytest.mark.batch_invariant
def test_every_sampler_gives_the_same_tokens_with_drafts(backend: LlamaBackend, name: str) -> None:
    """Each position has its own seed, and samplers only accept verified tokens."""
    sampling = _four_words(backend, **SAMPLINGS[name])
    plain = Run(backend, _request(backend, sampling=sampling, max_draft=0))
    drafted = Run(backend, _request(backend, sampling=sampling))

    assert drafted.tokens() == plain.tokens()
    assert len(plain.tokens()) == LENGTH
    finished = drafted.finished()
    assert 0 < finished.num_accepted <= finished.num_drafted
    assert drafted.num_steps == plain.num_steps - finished.num_accepted
    assert plain.finished().num_drafted == 0


def test_random_sampling_rejects_some_drafts(backend: LlamaBackend) -> None:
    """So that the test above covers rejected drafts."""
    finished = Run(backend, _request(backend, sampling=_four_words(backend))).finished()

    assert finished.num_accepted < finished.num_drafted


@pytest.mark.batch_invariant
def test_four_choices_have_the_same_outputs_with_drafts(backend: LlamaBackend) -> None:
    """A step has drafts of several sequences, some accepted and some rejected."""
    sampling = _four_words(backend, temperature=0.7)

    def choices(max_draft: int) -> list[SequenceRequest]:
        return [
            _request(backend, i, choice=i, sampling=sampling, max_draft=max_draft)
            for i in range(SLOTS)
        ]

    plain, drafted = Run(backend, *choices(0)), Run(backend, *choices(31))

    for i in range(SLOTS):
        assert drafted.tokens(i) == plain.tokens(i)
    assert len({tuple(plain.tokens(i)) for i in range(SLOTS)}) == SLOTS
    assert sum(drafted.finished(i).num_accepted for i in range(SLOTS)) > 0


@pytest.mark.batch_invariant
def test_log_probabilities_are_those_of_each_position(backend: LlamaBackend) -> None:
    """One for each token, from the row of logits that it was sampled from."""
    changes: dict[str, Any] = {"sampling": _four_words(backend), "top_logprobs": 2}
    plain = Run(backend, _request(backend, max_draft=0, **changes))
    drafted = Run(backend, _request(backend, **changes))

    assert drafted.finished().num_accepted > 0
    assert len(drafted.logprobs()) == LENGTH
    for one, other in zip(drafted.logprobs(), plain.logprobs(), strict=True):
        assert one.chosen.token == other.chosen.token
        assert one.chosen.logprob == pytest.approx(other.chosen.logprob, abs=0.01)
        assert [entry.token for entry in one.top] == [entry.token for entry in other.top]


def test_a_stop_text_ends_the_output_inside_a_draft(backend: LlamaBackend) -> None:
    """Drafted tokens behind it are not emitted."""
    sampling = _four_words(backend, temperature=0.0)
    whole = Run(backend, _request(backend, sampling=sampling, max_draft=0)).text()
    stop = " ".join(whole.split()[-6:-2])
    drafted = Run(backend, _request(backend, sampling=sampling, stop=(stop,)))

    assert drafted.text() == whole[: whole.index(stop)]
    assert drafted.finished().stop_text == stop


@pytest.mark.parametrize("top_logprobs", [None, 0], ids=["forced", "all sampled"])
def test_a_grammar_is_enforced_with_drafts(backend: LlamaBackend, top_logprobs: int | None) -> None:
    """Each drafted token is checked against its mask, with and without forced tokens."""
    twelve_lines = "([0-9] apples and (pears|plums)\n){12}"
    changes: dict[str, Any] = {
        "constraint": llama_engines.compile_format(backend, OutputFormatKind.REGEX, twelve_lines),
        "sampling": Sampling(temperature=0.0),
        "top_logprobs": top_logprobs,
        "max_tokens": 300,
        "ignore_eos": False,
    }
    plain = Run(backend, _request(backend, max_draft=0, **changes))
    drafted = Run(backend, _request(backend, **changes))

    assert drafted.tokens() == plain.tokens()
    assert drafted.text().count("\n") == 12
    assert drafted.finished().reason is FinishReason.STOP
    if top_logprobs is not None:
        assert drafted.finished().num_accepted > 0
        assert drafted.num_steps < plain.num_steps


@pytest.mark.batch_invariant
def test_a_resumed_sequence_uses_its_earlier_output_for_drafts(backend: LlamaBackend) -> None:
    """And has the same tokens as an uninterrupted one."""
    sampling = _four_words(backend)
    whole = Run(backend, _request(backend, sampling=sampling, max_draft=0)).tokens()
    request = _request(backend, sampling=sampling, resumed=array("i", whole[:20]))

    assert Run(backend, request).tokens() == whole[20:]


@pytest.mark.batch_invariant
def test_the_slot_of_a_cancelled_draft_is_reused(backend: LlamaBackend) -> None:
    """The next sequence has the output that it has alone."""
    sampling = _four_words(backend, temperature=0.0)
    alone = Run(backend, _request(backend, 1, sampling=sampling, max_draft=0)).tokens(1)
    engine = llama_engines.make_engine(backend)
    llama_engines.run_engine(engine, _request(backend, sampling=sampling), steps=10)
    engine.cancel(0, arrived_in_step=10, step=11)
    events = llama_engines.run_engine(engine, _request(backend, 1, sampling=sampling))

    assert llama_engines.output_tokens(events, 1) == alone


def test_warm_up_measures_the_cost_of_drafts(backend: LlamaBackend) -> None:
    """Rows of up to as many tokens as a step has output rows; slots are empty afterwards."""
    llama_engines.clear_slots(backend)
    measured = warm_up(backend, cores=1, threads=1, budget_s=5.0)

    assert measured.token_times is not None
    assert list(measured.token_times) == [1, 2, 4, 8, 16]
    assert all(seconds > 0 for seconds in measured.token_times.values())
    assert [backend.slot_length(slot) for slot in range(SLOTS)] == [0] * SLOTS
