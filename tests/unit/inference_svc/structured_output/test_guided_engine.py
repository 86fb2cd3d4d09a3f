"""Constrained sequences in the step loop, on the fake backend, whose grammars are patterns: "?" is
any small letter, all else is forced."""

from array import array
from dataclasses import replace

import pytest

from inference_svc.engine.batch import NativeLimits
from inference_svc.engine.constraint import MAX_FORCED, Constraint
from inference_svc.engine.events import FinishReason, Preempted, Started
from inference_svc.engine.fake import FAILING_SEED, VOCABULARY_SIZE, FakeBackend
from inference_svc.engine.request import SequenceRequest
from svc_kit.errors import DeadlineExpired, GrammarInvalid
from tests.support.sequences import EngineBench, make_request


def a_guided(pattern: str, sequence_id: int = 0, **changes: object) -> SequenceRequest:
    """A request held to a pattern, with room for it."""
    return replace(
        make_request(sequence_id, constraint=Constraint(pattern, "constraint"), max_tokens=100),
        **changes,  # type: ignore[arg-type]  # fields of the request, as given
    )


def test_forced_tokens_are_computed_with_the_one_before() -> None:
    """One row for the prompt and what is forced at once, one for each choice and its run."""
    bench = EngineBench()
    bench.submit(a_guided("ab?cd??ef"))
    bench.run()

    assert len(bench.text(0)) == 9
    assert [len(batch.tokens) for batch in bench.backend.batches] == [5, 3, 1]
    assert bench.finished(0)[1:5] == (FinishReason.STOP, None, None, 9)


def test_a_step_gives_a_sequence_one_delta() -> None:
    """However many tokens are forced, and two sequences are not mixed up."""
    bench = EngineBench()
    bench.submit(a_guided("?cde?fghi"), a_guided("?klm?nopq", 1))
    bench.run()

    for i, runs in enumerate([(b"cde", b"fghi"), (b"klm", b"nopq")]):
        deltas = bench.deltas(i)
        assert [bytes(delta.tokens[1:]) for delta in deltas] == list(runs)
        assert all(delta.text == bytes(delta.tokens).decode() for delta in deltas)


def test_a_forced_run_is_cut_at_its_limit() -> None:
    """No row beyond 32 tokens; the rest follows in the next step."""
    bench = EngineBench(FakeBackend(NativeLimits(128, 4, 4, 256, VOCABULARY_SIZE)))
    bench.submit(a_guided("?" + "x" * 70))
    bench.run()

    assert bench.text(0)[1:] == "x" * 70
    rows = [len(batch.tokens) for batch in bench.backend.batches]
    assert max(rows[1:]) == MAX_FORCED + 1
    assert bench.finished(0).num_output_tokens == 71


def test_forced_rows_share_the_batch() -> None:
    """Four sequences with long runs stay inside the native limit, which every step checks."""
    bench = EngineBench(FakeBackend(NativeLimits(40, 4, 4, 128, VOCABULARY_SIZE)))
    bench.submit(*(a_guided("?" + "y" * 30 + "?", i) for i in range(4)))
    bench.run()

    for i in range(4):
        assert bench.text(i)[1:-1] == "y" * 30
    assert max(len(batch.tokens) for batch in bench.backend.batches) <= 40


def test_a_grammar_in_the_making_holds_up_nobody() -> None:
    """Others start and end; the sequence keeps its slot and begins when its grammar is there."""
    bench = EngineBench(FakeBackend(builds_after=6))
    bench.submit(a_guided("ab?"), make_request(1, max_tokens=3))
    for _ in range(4):
        bench.step()

    assert bench.finished(1).num_output_tokens == 3
    assert bench.text(0) == ""
    bench.run()
    assert bench.text(0)[:2] == "ab"


def test_a_prompt_is_computed_while_its_grammar_is_built() -> None:
    """All but its last token, whose logits need the mask; who follows takes it from there."""
    prompt = array("i", [65 + i % 26 for i in range(50)])
    bench = EngineBench(FakeBackend(builds_after=8))
    bench.submit(a_guided("ab?", prompt=prompt), make_request(1, [*prompt[:-1], 66], max_tokens=2))
    for _ in range(6):
        bench.step()

    assert bench.engine.awaits_grammars
    assert len(bench.engine.running[0].slot.tokens) == len(prompt) - 1  # type: ignore[union-attr]
    assert bench.finished(1).num_output_tokens == 2
    assert [e.cached_tokens for e in bench.events if isinstance(e, Started)] == [0, 3 * 16]
    bench.run()
    assert bench.text(0)[:2] == "ab"


def test_a_grammar_that_cannot_be_built_fails_its_sequence() -> None:
    """With the field and the reason; its slot is free."""
    bench = EngineBench()
    bench.submit(a_guided("!"), a_guided("a?", 1))
    bench.run()

    error = bench.failures()[0].error
    assert isinstance(error, GrammarInvalid)
    assert error.metadata == {"field": "constraint", "problem": "it cannot be built"}
    assert bench.finished(1).reason is FinishReason.STOP


@pytest.mark.parametrize("ending", ["cancel", "deadline"])
def test_a_sequence_may_end_while_its_grammar_is_built(ending: str) -> None:
    """The guide is closed and the slot is free."""
    bench = EngineBench(FakeBackend(builds_after=1000))
    bench.submit(a_guided("a?", deadline=5.0))
    bench.step()
    if ending == "cancel":
        bench.engine.cancel(0, arrived_in_step=0, step=1)
    else:
        bench.clock.now = 6.0
    bench.step()

    assert not bench.engine.has_sequences
    assert [guide.closed for guide in bench.backend.guides] == [True]
    if ending == "deadline":
        assert isinstance(bench.failures()[0].error, DeadlineExpired)


def test_a_paused_sequence_is_not_waited_for() -> None:
    """Nothing to do is nothing to do, whatever is being built."""
    bench = EngineBench(FakeBackend(builds_after=3))
    bench.submit(a_guided("a?"))
    bench.step()
    bench.engine.pause(0, paused=True)

    assert not bench.engine.has_work
    bench.engine.pause(0, paused=False)
    bench.run()
    assert bench.text(0)[:1] == "a"


def test_resume_replays_the_guide() -> None:
    """At every cut the rest is what came before; at the end nothing but the end comes."""
    bench = EngineBench()
    bench.submit(a_guided("ab?cd??ef"))
    bench.run()
    whole = bench.tokens(0)
    for cut in range(len(whole) + 1):
        again = EngineBench()
        again.submit(a_guided("ab?cd??ef", resumed=array("i", whole[:cut])))
        again.run()

        assert again.tokens(0) == whole[cut:]
        assert again.finished(0).num_output_tokens == 9


def test_foreign_tokens_cannot_be_resumed() -> None:
    """They fail that sequence."""
    bench = EngineBench()
    bench.submit(a_guided("ab?", resumed=array("i", list(b"zz"))))
    bench.run()

    assert isinstance(bench.failures()[0].error, GrammarInvalid)


@pytest.mark.parametrize("limit", range(5))
def test_no_forced_token_is_one_too_many(limit: int) -> None:
    """max_tokens counts them, zero computes the prompt alone."""
    bench = EngineBench()
    bench.submit(a_guided("abcdef", max_tokens=limit))
    bench.run()

    assert bench.text(0) == "abcdef"[:limit]
    assert bench.finished(0).reason is FinishReason.LENGTH


def test_the_slot_bounds_a_forced_run() -> None:
    """A full window ends with LENGTH, as for free text."""
    bench = EngineBench(FakeBackend(NativeLimits(64, 4, 4, 20, VOCABULARY_SIZE)))
    bench.submit(a_guided("?" + "z" * 40))
    bench.run()

    assert bench.finished(0).reason is FinishReason.LENGTH
    assert bench.finished(0).num_output_tokens == 17


def test_log_probabilities_want_every_token_sampled() -> None:
    """No chunk then: each token has its row and its probability."""
    bench = EngineBench()
    bench.submit(a_guided("ab?cd", top_logprobs=1))
    bench.run()

    deltas = bench.deltas(0)
    assert [len(delta.logprobs) for delta in deltas if delta.tokens] == [1] * 5
    assert [len(batch.tokens) for batch in bench.backend.batches] == [3, 1, 1, 1, 1]


def test_a_failed_decode_with_a_forced_run_is_isolated() -> None:
    """The row that cannot be computed stands alone; the other one ends well."""
    bench = EngineBench(
        FakeBackend(fails=lambda batch: -3 if 0 in batch.slots and 113 in batch.tokens else 0)
    )
    bench.submit(a_guided("?qqq?"), a_guided("?rrr?", 1))
    bench.run()

    assert list(bench.failures()) == [0]
    assert bench.text(1)[1:4] == "rrr"


def test_a_failed_sampling_is_isolated() -> None:
    """A guided sequence fails like a free one."""
    bench = EngineBench()
    bench.submit(a_guided("a?b", seed=FAILING_SEED), a_guided("a?b", 1))
    bench.run()

    assert list(bench.failures()) == [0]
    assert [guide.closed for guide in bench.backend.guides] == [True, True]


@pytest.mark.parametrize("steps", [1, 2, 3, 4])
@pytest.mark.parametrize("builds_after", [0, 3])
def test_a_preempted_guide_keeps_its_place(steps: int, builds_after: int) -> None:
    """Before its grammar is built, in its prompt or behind a forced run: the text is the same."""
    pattern, prompt = "?abcdef??ghi?", [70 + i % 9 for i in range(20)]
    limits = NativeLimits(16, 1, 1, 256, VOCABULARY_SIZE)
    alone = EngineBench(FakeBackend(limits))
    alone.submit(a_guided(pattern, prompt=array("i", prompt)))
    alone.run()
    bench = EngineBench(FakeBackend(limits, builds_after=builds_after), saved_bytes=10**6)
    bench.submit(a_guided(pattern, prompt=array("i", prompt), priority=1))
    for _ in range(steps):
        bench.step()
    bench.submit(make_request(1, priority=3, max_tokens=3))
    bench.run()

    assert [e.sequence_id for e in bench.events if isinstance(e, Preempted)] == [0]
    assert bench.tokens(0) == alone.tokens(0)
    assert len(bench.tokens(1)) == 3
