"""A draft model on llama.cpp: the bundled one, of the demo model.

Its decode calls are expected to take no time, so that it drafts in every step.
"""

from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inference_svc.engine.batch import Row, TokenBatch
from inference_svc.engine.events import Finished, Preempted
from inference_svc.engine.request import MAX_DRAFT, AppliedAdapter, SequenceRequest
from inference_svc.engine.sampling_params import Sampling
from inference_svc.engine.spec_decode.draft_model import DraftModel
from inference_svc.llama.backend import LlamaBackend
from inference_svc.models.sources import BUNDLED_DRAFT_PATH, BUNDLED_FOLDER
from inference_svc.structured_output.spec import OutputFormatKind
from tests.support import llama_engines

SLOTS = 4
TURN = "<|im_start|>user\nTell me a story.<|im_end|>\n<|im_start|>assistant\n"
QUESTIONS = (
    "What is the capital of France?",
    "What is 12 + 30?",
    "Spell the word garden.",
    "Tell me a story about a fox.",
)
SHORT = (
    *QUESTIONS[:3],
    "Who are you?",
    "What is your name?",
    "My name is Ada.",
    "What is the capital of Japan?",
    "What is 7 times 8?",
    "Hello!",
    "Thank you!",
)
"""Questions that are not answered by a story."""
LENGTH = 60


@pytest.fixture(scope="module")
def backend() -> Iterator[LlamaBackend]:
    """The demo model with four slots and output rows for drafts."""
    with llama_engines.open_backend(draft_tokens=16) as backend:
        yield backend


@pytest.fixture(scope="module")
def draft_backend() -> Iterator[LlamaBackend]:
    with llama_engines.open_backend(BUNDLED_DRAFT_PATH) as backend:
        yield backend


@pytest.fixture
def model(draft_backend: LlamaBackend) -> DraftModel:
    llama_engines.clear_slots(draft_backend)
    return DraftModel(draft_backend, {}, lambda: 0.0, draft_backend.limits.vocabulary_size)


class _Run:
    """The events of sequences on a new engine, with a draft model or without any drafts."""

    def __init__(
        self,
        backend: LlamaBackend,
        model: DraftModel | None,
        *requests: SequenceRequest,
        adapters: tuple[Path, ...] = (),
        **options: Any,
    ) -> None:
        engine = llama_engines.make_engine(backend, draft_model=model, **options)
        for path in adapters:
            engine.adapters.load(path.stem, path)
        self.events = llama_engines.run_engine(engine, *requests)
        for path in adapters:
            engine.adapters.unload(path.stem)
        self.num_steps = engine.num_steps

    def tokens(self, i: int = 0) -> list[int]:
        return llama_engines.output_tokens(self.events, i)

    def finished(self, i: int = 0) -> Finished:
        return llama_engines.finished_event(self.events, i)


def _request(
    backend: LlamaBackend, i: int = 0, text: str = TURN, **changes: Any
) -> SequenceRequest:
    changes = {"max_tokens": LENGTH, "ignore_eos": True, "reuse": False, **changes}
    return llama_engines.text_request(backend, i, text, **changes)


def _question(backend: LlamaBackend, i: int, **changes: Any) -> SequenceRequest:
    text = f"<|im_start|>user\n{QUESTIONS[i % SLOTS]}<|im_end|>\n<|im_start|>assistant\n"
    return _request(backend, i, text, **changes)


@pytest.mark.batch_invariant
@pytest.mark.parametrize(
    "changes",
    [
        {"sampling": Sampling(temperature=0.0)},
        {"sampling": Sampling(temperature=1.0), "seed": 7},
        {"sampling": Sampling(temperature=0.0), "ignore_eos": False, "stop": ("fox",)},
        {"sampling": Sampling(temperature=0.0), "top_logprobs": 2},
    ],
    ids=["greedy", "sampled", "stop", "logprobs"],
)
def test_four_sequences_have_the_tokens_that_they_have_without_drafts(
    backend: LlamaBackend, model: DraftModel, changes: dict[str, Any]
) -> None:
    """In fewer steps; some drafts are rejected."""
    plain = _Run(
        backend, None, *(_question(backend, i, **changes, max_draft=0) for i in range(SLOTS))
    )
    drafted = _Run(backend, model, *(_question(backend, i, **changes) for i in range(SLOTS)))

    by_model = [drafted.finished(i).by_draft_model for i in range(SLOTS)]
    for i in range(SLOTS):
        assert drafted.tokens(i) == plain.tokens(i)
        assert drafted.finished(i)[1:5] == plain.finished(i)[1:5]
    assert 0 < sum(each.accepted for each in by_model) < sum(each.drafted for each in by_model)
    assert drafted.num_steps < plain.num_steps
    assert model.is_consistent


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_of_what_it_drafts_in_short_answers_half_is_accepted(
    backend: LlamaBackend, model: DraftModel, temperature: float
) -> None:
    """Nearly all in fact, of drafts of one token; the card has the figure."""
    sampling = Sampling(temperature=temperature)
    requests = [
        _request(backend, i, text, max_draft=1, seed=i, sampling=sampling, ignore_eos=False)
        for i, text in enumerate(TURN.replace("Tell me a story.", each) for each in SHORT)
    ]
    run = _Run(backend, model, *requests)

    by_model = [run.finished(i).by_draft_model for i in range(len(SHORT))]
    drafted = sum(each.drafted for each in by_model)
    assert drafted > len(SHORT)
    assert sum(each.accepted for each in by_model) > drafted / 2


@pytest.mark.batch_invariant
def test_choices_copy_the_prompt_and_differ_by_their_draws(
    backend: LlamaBackend, model: DraftModel
) -> None:
    """As in a request with n > 1: the second choice finds the prompt in the slot of the first."""

    def choices(max_draft: int) -> list[SequenceRequest]:
        sampling, text = Sampling(temperature=1.2), 6 * "A fox and a dog live in a house. " + TURN
        return [
            _request(backend, i, text, choice=i, sampling=sampling, max_draft=max_draft, reuse=True)
            for i in range(3)
        ]

    plain, drafted = _Run(backend, None, *choices(0)), _Run(backend, model, *choices(31))

    assert [drafted.tokens(i) for i in range(3)] == [plain.tokens(i) for i in range(3)]
    assert len({tuple(plain.tokens(i)) for i in range(3)}) == 3
    assert sum(drafted.finished(i).by_draft_model.accepted for i in range(3)) > 0


@pytest.mark.batch_invariant
def test_a_grammar_is_followed(backend: LlamaBackend, model: DraftModel) -> None:
    """The draft model does not know it: what it drafts against the grammar is rejected."""
    grammar = r'root ::= "{\"name\": \"" [a-z]+ "\", \"age\": " [0-9] [0-9] "}"'
    constraint = llama_engines.compile_format(backend, OutputFormatKind.GBNF, grammar)
    changes: dict[str, Any] = {
        "constraint": constraint,
        "sampling": Sampling(temperature=0.0),
        "ignore_eos": False,
    }
    plain = _Run(backend, None, _request(backend, max_draft=0, **changes))
    drafted = _Run(backend, model, _request(backend, **changes))

    assert drafted.tokens() == plain.tokens()
    assert drafted.finished().by_draft_model.drafted > 0


@pytest.mark.batch_invariant
def test_adapters_change_the_output_and_not_the_drafts(
    backend: LlamaBackend, model: DraftModel
) -> None:
    """The draft model has none of them."""
    path = BUNDLED_FOLDER / "demo-lora-pirate-f16.gguf"
    changes: dict[str, Any] = {
        "sampling": Sampling(temperature=0.0),
        "adapters": (AppliedAdapter(path.stem, 1.0),),
    }
    plain = _Run(backend, None, _question(backend, 3, **changes, max_draft=0), adapters=(path,))
    drafted = _Run(backend, model, _question(backend, 3, **changes), adapters=(path,))

    assert drafted.tokens(3) == plain.tokens(3)
    assert drafted.finished(3).by_draft_model.accepted > 0


@pytest.mark.batch_invariant
def test_a_preempted_sequence_goes_on_with_the_same_tokens(
    backend: LlamaBackend, model: DraftModel
) -> None:
    """Its cells in the draft model are computed or copied again where it resumes."""

    def run(model: DraftModel | None, max_draft: int) -> _Run:
        changes: dict[str, Any] = {"max_draft": max_draft, "sampling": Sampling(temperature=0.0)}
        low = [_question(backend, i, priority=1, **changes) for i in range(SLOTS)]
        engine = llama_engines.make_engine(backend, draft_model=model, saved_bytes=1 << 24)
        result = _Run.__new__(_Run)
        result.events = llama_engines.run_engine(engine, *low, steps=6)
        high = _request(backend, SLOTS, priority=3, **changes)
        result.events += llama_engines.run_engine(engine, high)
        return result

    plain, drafted = run(None, 0), run(model, 31)

    assert any(isinstance(event, Preempted) for event in drafted.events)
    for i in range(SLOTS + 1):
        assert drafted.tokens(i) == plain.tokens(i)


def test_slots_that_share_cells_draft_too() -> None:
    """The unified layout, in which a sequence may have to wait for cells, and drafts have none."""
    cells = 512
    with (
        llama_engines.open_backend(draft_tokens=16, shared_cells=cells) as backend,
        llama_engines.open_backend(BUNDLED_DRAFT_PATH, shared_cells=cells) as draft_backend,
    ):
        model = DraftModel(draft_backend, {}, lambda: 0.0, draft_backend.limits.vocabulary_size)
        changes: dict[str, Any] = {"sampling": Sampling(temperature=0.0), "ignore_eos": False}
        requests = [_question(backend, i, **changes) for i in range(2 * SLOTS)]
        drafted = _Run(backend, model, *requests)
        num_cells = draft_backend.used_cells

    assert all(drafted.finished(i).by_draft_model.drafted > 0 for i in (3, 7))
    assert drafted.tokens(0) == drafted.tokens(4)
    assert num_cells <= cells


def test_the_cells_after_rejected_drafts_are_those_of_a_fresh_cache(
    backend: LlamaBackend, draft_backend: LlamaBackend, model: DraftModel
) -> None:
    """After all steps, the next logits are those after the same tokens in an empty slot."""
    engine = llama_engines.make_engine(backend, draft_model=model)
    request = _question(backend, 3, sampling=Sampling(temperature=1.0), seed=5)
    events = llama_engines.run_engine(engine, request)
    finished = llama_engines.finished_event(events, 3)
    assert 0 < finished.by_draft_model.accepted < finished.by_draft_model.drafted

    tokens = array("i", [*request.prompt, *llama_engines.output_tokens(events, 3)])
    kept = draft_backend.slot_length(0) - MAX_DRAFT  # without the last draft
    draft_backend.trim(0, kept)
    after_drafts = _logits(draft_backend, 0, kept, tokens[kept : kept + 1])
    fresh = _logits(draft_backend, 1, 0, tokens[: kept + 1])

    assert kept > len(request.prompt)
    np.testing.assert_allclose(after_drafts, fresh, atol=0.05)


def _logits(backend: LlamaBackend, slot: int, start: int, tokens: "array[int]") -> Any:
    backend.decode(TokenBatch.of([Row(slot, start, tokens, output=True)]))
    return backend.logits(0).copy()
