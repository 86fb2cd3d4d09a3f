"""Constrained sequences in the engine, on the fake backend.

Its grammars are patterns: "?" is any lower-case letter, other characters are forced.
"""

from array import array
from dataclasses import replace

import pytest

from inference_svc.engine.batch import NativeLimits
from inference_svc.engine.constraint import MAX_FORCED, Constraint
from inference_svc.engine.events import FinishReason, Preempted, Started
from inference_svc.engine.request import SequenceRequest
from svc_kit.errors import DeadlineExpired, GrammarInvalid
from tests.support.fake_backend import FAILING_SEED, VOCABULARY_SIZE, FakeBackend
from tests.support.sequences import EngineBench, make_request


def make_constrained(pattern: str, sequence_id: int = 0, **changes: object) -> SequenceRequest:
    return replace(
        make_request(sequence_id, constraint=Constraint(pattern, "constraint"), max_tokens=100),
        **changes,  # type: ignore[arg-type]  # fields of the request
    )


def make_backend(batch_tokens: int, slot_tokens: int) -> FakeBackend:
    return FakeBackend(NativeLimits(batch_tokens, 4, 4, slot_tokens, VOCABULARY_SIZE))


def run_requests(*requests: SequenceRequest, backend: FakeBackend | None = None) -> EngineBench:
    bench = EngineBench(backend)
    bench.submit(*requests)
    bench.run()
    return bench


def test_forced_tokens_are_computed_with_the_previous_token() -> None:
    """One row has the prompt and its forced tokens, another each sampled token and its run."""
    bench = run_requests(make_constrained("ab?cd??ef"))

    assert len(bench.text(0)) == 9
    assert [len(batch.tokens) for batch in bench.backend.batches] == [5, 3, 1]
    assert bench.finished(0)[1:5] == (FinishReason.STOP, None, None, 9)


def test_a_step_emits_one_delta_per_sequence() -> None:
    """With the sampled token and all forced tokens, each with its text."""
    bench = run_requests(make_constrained("?cde?fghi"), make_constrained("?klm?nopq", 1))

    for i, runs in enumerate([(b"cde", b"fghi"), (b"klm", b"nopq")]):
        deltas = bench.deltas(i)
        assert [bytes(delta.tokens[1:]) for delta in deltas] == list(runs)
        assert all(delta.texts == tuple(map(chr, delta.tokens)) for delta in deltas)


def test_a_row_has_a_limited_number_of_forced_tokens() -> None:
    """The rest follows in the next step."""
    bench = run_requests(make_constrained("?" + "x" * 70), backend=make_backend(128, 256))

    assert bench.text(0)[1:] == "x" * 70
    rows = [len(batch.tokens) for batch in bench.backend.batches]
    assert max(rows[1:]) == MAX_FORCED + 1
    assert bench.finished(0).num_output_tokens == 71


def test_forced_rows_share_the_batch() -> None:
    """Four sequences with long runs do not exceed the batch size."""
    bench = run_requests(
        *(make_constrained("?" + "y" * 30 + "?", i) for i in range(4)),
        backend=make_backend(40, 128),
    )

    for i in range(4):
        assert bench.text(i)[1:-1] == "y" * 30
    assert max(len(batch.tokens) for batch in bench.backend.batches) <= 40


def test_other_sequences_run_while_a_grammar_is_built() -> None:
    """The sequence has its slot and starts when its grammar is built."""
    bench = EngineBench(FakeBackend(builds_after=6))
    bench.submit(make_constrained("ab?"), make_request(1, max_tokens=3))
    for _ in range(4):
        bench.step()

    assert bench.finished(1).num_output_tokens == 3
    assert bench.text(0) == ""
    bench.run()
    assert bench.text(0)[:2] == "ab"


def test_a_prompt_is_computed_while_its_grammar_is_built() -> None:
    """Except for its last token, whose logits need the mask; other sequences can share it."""
    prompt = array("i", [65 + i % 26 for i in range(50)])
    bench = EngineBench(FakeBackend(builds_after=8))
    bench.submit(
        make_constrained("ab?", prompt=prompt), make_request(1, [*prompt[:-1], 66], max_tokens=2)
    )
    for _ in range(6):
        bench.step()

    assert bench.engine.awaits_grammars
    assert len(bench.engine.running[0].slot.tokens) == len(prompt) - 1  # type: ignore[union-attr]
    assert bench.finished(1).num_output_tokens == 2
    assert [e.cached_tokens for e in bench.events if isinstance(e, Started)] == [0, 3 * 16]
    bench.run()
    assert bench.text(0)[:2] == "ab"


def test_a_grammar_that_cannot_be_built_fails_its_sequence() -> None:
    """With the field and the reason; other sequences continue."""
    bench = run_requests(make_constrained("!"), make_constrained("a?", 1))

    error = bench.failures()[0].error
    assert isinstance(error, GrammarInvalid)
    assert error.metadata == {"field": "constraint", "problem": "it cannot be built"}
    assert bench.finished(1).reason is FinishReason.STOP


@pytest.mark.parametrize("end", ["cancel", "deadline"])
def test_a_sequence_may_end_while_its_grammar_is_built(end: str) -> None:
    """The guide is closed and the slot is freed."""
    bench = EngineBench(FakeBackend(builds_after=1000))
    bench.submit(make_constrained("a?", deadline=5.0))
    bench.step()
    if end == "cancel":
        bench.engine.cancel(0, arrived_in_step=0, step=1)
    else:
        bench.clock.now = 6.0
    bench.step()

    assert not bench.engine.has_sequences
    assert [guide.closed for guide in bench.backend.guides] == [True]
    if end == "deadline":
        assert isinstance(bench.failures()[0].error, DeadlineExpired)


def test_the_grammar_of_a_paused_sequence_is_not_work() -> None:
    """The engine is idle while it is built."""
    bench = EngineBench(FakeBackend(builds_after=3))
    bench.submit(make_constrained("a?"))
    bench.step()
    bench.engine.pause(0, paused=True)

    assert not bench.engine.has_work
    bench.engine.pause(0, paused=False)
    bench.run()
    assert bench.text(0)[:1] == "a"


def test_resume_continues_a_constrained_sequence() -> None:
    """After any number of tokens, including all of them."""
    bench = run_requests(make_constrained("ab?cd??ef"))
    whole = bench.tokens(0)
    for cut in range(len(whole) + 1):
        resumed = run_requests(make_constrained("ab?cd??ef", resumed=array("i", whole[:cut])))

        assert resumed.tokens(0) == whole[cut:]
        assert resumed.finished(0).num_output_tokens == 9


def test_resumed_tokens_that_violate_the_grammar_fail_the_sequence() -> None:
    bench = run_requests(make_constrained("ab?", resumed=array("i", list(b"zz"))))

    assert isinstance(bench.failures()[0].error, GrammarInvalid)


@pytest.mark.parametrize("limit", range(5))
def test_forced_tokens_count_toward_max_tokens(limit: int) -> None:
    """With 0, only the prompt is computed."""
    bench = run_requests(make_constrained("abcdef", max_tokens=limit))

    assert bench.text(0) == "abcdef"[:limit]
    assert bench.finished(0).reason is FinishReason.LENGTH


def test_a_forced_run_ends_when_the_slot_is_full() -> None:
    """The finish reason is `length`, as for free text."""
    bench = run_requests(make_constrained("?" + "z" * 40), backend=make_backend(64, 20))

    assert bench.finished(0).reason is FinishReason.LENGTH
    assert bench.finished(0).num_output_tokens == 17


def test_every_token_is_sampled_if_log_probabilities_are_requested() -> None:
    """Each has its own row."""
    bench = run_requests(make_constrained("ab?cd", top_logprobs=1))

    deltas = bench.deltas(0)
    assert [len(delta.logprobs) for delta in deltas if delta.tokens] == [1] * 5
    assert [len(batch.tokens) for batch in bench.backend.batches] == [3, 1, 1, 1, 1]


def test_a_failed_decode_with_a_forced_run_is_isolated() -> None:
    """Only the sequence of that row fails."""
    requests = make_constrained("?qqq?"), make_constrained("?rrr?", 1)
    backend = FakeBackend(fails=lambda batch: -3 if 0 in batch.slots and 113 in batch.tokens else 0)
    bench = run_requests(*requests, backend=backend)

    assert list(bench.failures()) == [0]
    assert bench.text(1)[1:4] == "rrr"


def test_a_failed_sampling_is_isolated() -> None:
    """Only its sequence fails, and both guides are closed."""
    bench = run_requests(make_constrained("a?b", seed=FAILING_SEED), make_constrained("a?b", 1))

    assert list(bench.failures()) == [0]
    assert [guide.closed for guide in bench.backend.guides] == [True, True]


@pytest.mark.parametrize("steps", [1, 2, 3, 4])
@pytest.mark.parametrize("builds_after", [0, 3])
def test_a_preempted_constrained_sequence_resumes(steps: int, builds_after: int) -> None:
    """With the same text, preempted before its grammar is built, in its prompt or after a run."""
    pattern, prompt = "?abcdef??ghi?", [70 + i % 9 for i in range(20)]
    limits = NativeLimits(16, 1, 1, 256, VOCABULARY_SIZE)
    request = make_constrained(pattern, prompt=array("i", prompt), priority=1)
    alone = run_requests(request, backend=FakeBackend(limits))
    bench = EngineBench(FakeBackend(limits, builds_after=builds_after), saved_bytes=10**6)
    bench.submit(request)
    for _ in range(steps):
        bench.step()
    bench.submit(make_request(1, priority=3, max_tokens=3))
    bench.run()

    assert [e.sequence_id for e in bench.events if isinstance(e, Preempted)] == [0]
    assert bench.tokens(0) == alone.tokens(0)
    assert len(bench.tokens(1)) == 3
