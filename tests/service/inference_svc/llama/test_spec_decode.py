"""Drafts on llama.cpp and the demo model: fewer steps, the same answers.

Texts repeat themselves because few tokens are allowed, or because a form says so: whatever the
model has learned.
"""

import asyncio
import time
from array import array
from collections.abc import Iterator
from typing import Any

import pytest

from inference_svc.engine.constraint import Constraint
from inference_svc.engine.defrag.batch_layout import BatchLayout
from inference_svc.engine.engine import Engine
from inference_svc.engine.events import ChosenLogprob, Delta, Event, Finished, FinishReason
from inference_svc.engine.request import SequenceRequest
from inference_svc.engine.sampling_params import Adaptive, Dry, Mirostat, Sampling
from inference_svc.llama import library
from inference_svc.llama.backend import BackendSettings, LlamaBackend
from inference_svc.llama.warmup import warm_up
from inference_svc.models.sources import BUNDLED_PATH
from inference_svc.structured_output.compiler import GrammarCompiler, GrammarVocabulary
from inference_svc.structured_output.spec import OutputFormat, OutputFormatKind, OutputSpec
from svc_kit.sandbox.frames import InlineJobs
from tests.support.sequences import a_request

SLOTS = 4
DRAFT_TOKENS = 16
LENGTH = 60
TURN = "<|im_start|>user\nTell me a story.<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def backend() -> Iterator[LlamaBackend]:
    """The demo model with four slots and room for drafts."""
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
            draft_tokens=DRAFT_TOKENS,
        )
    )
    yield backend
    backend.close()


class Ran:
    """The events of some sequences on an engine of their own."""

    def __init__(self, backend: LlamaBackend, *requests: SequenceRequest) -> None:
        for slot in range(SLOTS):
            backend.trim(slot, 0)
        engine = Engine(
            "demo", backend, layout=BatchLayout({}, SLOTS), chunk_cap=64, clock=time.monotonic
        )
        for request in requests:
            engine.submit(request)
        self.events: list[Event] = []
        while engine.has_work:
            self.events += engine.step()
            engine.check_integrity()
        self.num_steps = engine.num_steps

    def deltas(self, i: int = 0) -> list[Delta]:
        """What a sequence said."""
        return [e for e in self.events if isinstance(e, Delta) and e.sequence_id == i]

    def tokens(self, i: int = 0) -> list[int]:
        """Its tokens."""
        return [token for delta in self.deltas(i) for token in delta.tokens]

    def text(self, i: int = 0) -> str:
        """Its text."""
        return "".join(delta.text for delta in self.deltas(i))

    def logprobs(self, i: int = 0) -> list[ChosenLogprob]:
        """Its log probabilities."""
        return [logprob for delta in self.deltas(i) for logprob in delta.logprobs]

    def finished(self, i: int = 0) -> Finished:
        """Its end."""
        (event,) = [e for e in self.events if isinstance(e, Finished) and e.sequence_id == i]
        return event


def _request(backend: LlamaBackend, i: int = 0, **changes: Any) -> SequenceRequest:
    prompt = backend.vocabulary.tokenize(TURN, add_special=False, parse_special=True)
    changes = {"max_tokens": LENGTH, "ignore_eos": True, "reuse": False, **changes}
    return a_request(i, prompt, **changes)


def _few(backend: LlamaBackend, **changes: Any) -> Sampling:
    """A sampling that leaves four words."""
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
def test_every_sampler_chooses_the_same_tokens_with_drafts(
    backend: LlamaBackend, name: str
) -> None:
    """Each position has its own draw, and samplers hear of tokens that stood alone."""
    sampling = _few(backend, **SAMPLINGS[name])
    plain = Ran(backend, _request(backend, sampling=sampling, max_draft=0))
    drafted = Ran(backend, _request(backend, sampling=sampling))

    assert drafted.tokens() == plain.tokens()
    assert len(plain.tokens()) == LENGTH
    finished = drafted.finished()
    assert 0 < finished.num_accepted <= finished.num_drafted
    assert drafted.num_steps == plain.num_steps - finished.num_accepted
    assert plain.finished().num_drafted == 0


def test_sampling_at_random_drops_some_drafts(backend: LlamaBackend) -> None:
    """Else the test above would not show that they leave nothing behind."""
    finished = Ran(backend, _request(backend, sampling=_few(backend))).finished()

    assert finished.num_accepted < finished.num_drafted


def test_four_choices_say_with_drafts_what_they_say_without(backend: LlamaBackend) -> None:
    """Drafts of several sequences in one step, some right and some wrong."""
    sampling = _few(backend, temperature=0.7)

    def choices(max_draft: int) -> list[SequenceRequest]:
        return [
            _request(backend, i, choice=i, sampling=sampling, max_draft=max_draft)
            for i in range(SLOTS)
        ]

    plain, drafted = Ran(backend, *choices(0)), Ran(backend, *choices(31))

    for i in range(SLOTS):
        assert drafted.tokens(i) == plain.tokens(i)
    assert len({tuple(plain.tokens(i)) for i in range(SLOTS)}) == SLOTS
    assert sum(drafted.finished(i).num_accepted for i in range(SLOTS)) > 0


def test_log_probabilities_are_those_of_each_position(backend: LlamaBackend) -> None:
    """One for each token, from the row of logits that chose it."""
    asked: dict[str, Any] = {"sampling": _few(backend), "top_logprobs": 2}
    plain = Ran(backend, _request(backend, max_draft=0, **asked))
    drafted = Ran(backend, _request(backend, **asked))

    assert drafted.finished().num_accepted > 0
    assert len(drafted.logprobs()) == LENGTH
    for one, other in zip(drafted.logprobs(), plain.logprobs(), strict=True):
        assert one.chosen.token == other.chosen.token
        assert one.chosen.logprob == pytest.approx(other.chosen.logprob, abs=0.01)
        assert [entry.token for entry in one.top] == [entry.token for entry in other.top]


def test_a_stop_text_ends_a_text_inside_a_draft(backend: LlamaBackend) -> None:
    """Nothing that was guessed behind it is said."""
    sampling = _few(backend, temperature=0.0)
    whole = Ran(backend, _request(backend, sampling=sampling, max_draft=0)).text()
    words = whole.split()
    stop = " ".join(words[-6:-2])
    drafted = Ran(backend, _request(backend, sampling=sampling, stop=(stop,)))

    assert drafted.text() == whole[: whole.index(stop)]
    assert drafted.finished().stop_text == stop


def _line_by_line(backend: LlamaBackend) -> Constraint:
    vocabulary = backend.vocabulary
    known = GrammarVocabulary(
        vocabulary.size, vocabulary.control_tokens, tuple(sorted(vocabulary.end_tokens))
    )
    form = OutputFormat(OutputFormatKind.REGEX, "([0-9] apples and (pears|plums)\n){12}", "regex")
    grammar = asyncio.run(
        GrammarCompiler(InlineJobs()).compile(OutputSpec(form, None, None), known)
    )
    return Constraint(grammar, "constraint")


@pytest.mark.parametrize("top_logprobs", [None, 0], ids=["forced", "all sampled"])
def test_a_form_is_kept_with_drafts(backend: LlamaBackend, top_logprobs: int | None) -> None:
    """Each guess passes its mask, beside forced runs and where there are none."""
    asked: dict[str, Any] = {
        "constraint": _line_by_line(backend),
        "sampling": Sampling(temperature=0.0),
        "top_logprobs": top_logprobs,
        "max_tokens": 300,
        "ignore_eos": False,
    }
    plain = Ran(backend, _request(backend, max_draft=0, **asked))
    drafted = Ran(backend, _request(backend, **asked))

    assert drafted.tokens() == plain.tokens()
    assert drafted.text().count("\n") == 12
    assert drafted.finished().reason is FinishReason.STOP
    if top_logprobs is not None:
        assert drafted.finished().num_accepted > 0
        assert drafted.num_steps < plain.num_steps


def test_a_resumed_text_goes_on_as_it_would_have(backend: LlamaBackend) -> None:
    """What was said before is looked up like the rest."""
    sampling = _few(backend)
    whole = Ran(backend, _request(backend, sampling=sampling, max_draft=0)).tokens()
    resumed = array("i", whole[:20])

    assert (
        Ran(backend, _request(backend, sampling=sampling, resumed=resumed)).tokens() == whole[20:]
    )


def test_a_cancelled_draft_leaves_its_slot_to_the_next(backend: LlamaBackend) -> None:
    """The books are in order between any two steps, and the next sequence is undisturbed."""
    sampling = _few(backend, temperature=0.0)
    alone = Ran(backend, _request(backend, 1, sampling=sampling, max_draft=0)).tokens(1)
    for slot in range(SLOTS):
        backend.trim(slot, 0)
    engine = Engine(
        "demo", backend, layout=BatchLayout({}, SLOTS), chunk_cap=64, clock=time.monotonic
    )
    engine.submit(_request(backend, sampling=sampling))
    for _ in range(10):
        engine.step()
    engine.cancel(0, arrived_in_step=10, step=11)
    engine.submit(_request(backend, 1, sampling=sampling))
    events: list[Event] = []
    while engine.has_work:
        events += engine.step()
        engine.check_integrity()

    said = [e for e in events if isinstance(e, Delta) and e.sequence_id == 1]
    assert [token for delta in said for token in delta.tokens] == alone


def test_warm_up_measures_what_drafts_cost(backend: LlamaBackend) -> None:
    """Rows of one to as many tokens as a step may have logits for; slots are empty afterwards."""
    measured = warm_up(backend, cores=1, threads=1, budget_s=5.0)

    assert measured.token_times is not None
    assert list(measured.token_times) == [1, 2, 4, 8, 16]
    assert all(seconds > 0 for seconds in measured.token_times.values())
    assert [backend.slot_length(slot) for slot in range(SLOTS)] == [0] * SLOTS
