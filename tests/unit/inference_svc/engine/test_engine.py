"""The step loop, on the fake backend."""

from array import array

import pytest

from inference_svc.engine.engine import Engine
from inference_svc.engine.events import Cancelled, Delta, FinishReason, ModelLoad, Started
from inference_svc.engine.fake import (
    END_TOKEN,
    FAILING_SEED,
    VOCABULARY_SIZE,
    FakeBackend,
    next_token,
)
from inference_svc.engine.token_batch import NativeLimits, TokenBatch
from svc_kit.errors import DeadlineExpired, DecodeFailed
from tests.support.sequences import Bench, a_request


def _expected(prompt: list[int], count: int, *, seed: int = 1, choice: int = 0) -> list[int]:
    tokens = list(prompt)
    for draw in range(count):
        tokens.append(next_token(tokens, seed, choice, draw, end_after=1000))
    return tokens[len(prompt) :]


def test_a_sequence_produces_what_the_model_says() -> None:
    """Prompt, positions and draws are right: any mistake would change the hash."""
    bench = Bench()
    bench.submit(a_request(max_tokens=8))
    bench.run()

    assert bench.tokens(0) == _expected([65, 66, 67], 8)
    assert bench.text(0) == bytes(bench.tokens(0)).decode()
    assert bench.finished(0).reason is FinishReason.LENGTH
    assert bench.finished(0).num_output_tokens == 8


def test_two_sequences_share_decode_steps() -> None:
    """Continuous batching: both have a row in the same call."""
    bench = Bench()
    bench.submit(a_request(0, max_tokens=6), a_request(1, prompt=[70, 71], max_tokens=6))
    bench.run()

    shared = [batch for batch in bench.backend.batches if set(batch.slots) == {0, 1}]
    assert len(shared) >= 5
    assert bench.tokens(1) == _expected([70, 71], 6)


def test_a_sequence_joins_while_another_decodes() -> None:
    """A late prompt is computed beside a running decode, in one batch."""
    bench = Bench()
    bench.submit(a_request(0, max_tokens=8))
    bench.step()
    bench.step()
    bench.submit(a_request(1, prompt=[70] * 5, max_tokens=2))
    bench.step()

    assert bench.backend.batches[-1].slots.tolist() == [0, 1, 1, 1, 1, 1]


def test_a_long_prompt_is_computed_in_chunks_beside_decoding_rows() -> None:
    """The cap bounds what a decoding sequence has to wait for."""
    bench = Bench(chunk_cap=16)
    bench.submit(a_request(0, max_tokens=20))
    bench.step()
    bench.submit(a_request(1, prompt=[70] * 40, max_tokens=1))
    bench.step()
    bench.step()
    bench.step()

    assert [len(batch.tokens) for batch in bench.backend.batches[1:]] == [17, 17, 9]


def test_the_end_token_stops_without_text() -> None:
    """STOP names the token, which counts as output and has no text."""
    bench = Bench(FakeBackend(end_after=1))
    bench.submit(a_request())
    bench.run()

    finished = bench.finished(0)
    assert (finished.reason, finished.stop_token) == (FinishReason.STOP, END_TOKEN)
    assert (finished.num_output_tokens, bench.text(0)) == (1, "")


def test_ignore_eos_goes_on() -> None:
    """The end token is then an ordinary one."""
    bench = Bench(FakeBackend(end_after=1))
    bench.submit(a_request(ignore_eos=True, max_tokens=3))
    bench.run()

    assert bench.finished(0).reason is FinishReason.LENGTH
    assert bench.tokens(0) == [END_TOKEN] * 3


def test_a_stop_text_ends_the_sequence_and_is_not_sent() -> None:
    """The text before it is; the slot is free at once."""
    free = Bench()
    free.submit(a_request(max_tokens=8))
    free.run()
    stop = free.text(0)[3:5]
    bench = Bench()
    bench.submit(a_request(max_tokens=8, stop=(stop,)))
    bench.run()

    assert bench.text(0) == free.text(0)[: free.text(0).index(stop)]
    assert bench.finished(0).stop_text == stop


def test_a_stop_token_ends_the_sequence() -> None:
    """A caller's own stop token works as the model's."""
    token = _expected([65, 66, 67], 4)[3]
    bench = Bench()
    bench.submit(a_request(max_tokens=8, stop_tokens=frozenset({token})))
    bench.run()

    assert bench.finished(0).stop_token == token


def test_a_full_window_ends_with_length() -> None:
    """Nothing is shifted out."""
    limits = NativeLimits(64, 4, 4, 10, VOCABULARY_SIZE)
    bench = Bench(FakeBackend(limits))
    bench.submit(a_request(prompt=[65] * 7, max_tokens=100))
    bench.run()

    assert bench.finished(0).reason is FinishReason.LENGTH
    assert bench.finished(0).num_output_tokens == 3


def test_no_output_may_be_asked_for() -> None:
    """`max_tokens` 0 computes the prompt only."""
    bench = Bench()
    bench.submit(a_request(max_tokens=0))
    bench.run()

    assert (bench.tokens(0), bench.finished(0).reason) == ([], FinishReason.LENGTH)


def test_resume_goes_on_exactly_where_it_was() -> None:
    """Replayed tokens are not emitted again, and the rest equals the uninterrupted run."""
    whole = Bench()
    whole.submit(a_request(max_tokens=8))
    whole.run()
    bench = Bench()
    bench.submit(a_request(max_tokens=8, resumed=array("i", whole.tokens(0)[:3])))
    bench.run()

    assert bench.tokens(0) == whole.tokens(0)[3:]
    assert bench.finished(0).num_output_tokens == 8


def test_resume_remembers_a_stop_text_that_had_begun() -> None:
    """Text held back at the interruption is neither lost nor sent too early."""
    tokens = _expected([65, 66, 67], 8)
    text = bytes(tokens).decode()
    bench = Bench()
    bench.submit(a_request(max_tokens=8, stop=(text[2:6],), resumed=array("i", tokens[:4])))
    bench.run()

    assert (bench.text(0), bench.finished(0).stop_text) == ("", text[2:6])


def test_resuming_what_had_ended_ends_at_once() -> None:
    """An end token, or the last allowed token, among the resumed ones needs no computing."""
    bench = Bench()
    bench.submit(
        a_request(0, resumed=array("i", [97, END_TOKEN])),
        a_request(1, max_tokens=2, resumed=array("i", [97, 98])),
    )
    bench.run()

    assert bench.finished(0).reason is FinishReason.STOP
    assert bench.finished(1).reason is FinishReason.LENGTH
    assert bench.backend.batches == []


def test_a_follow_up_reuses_its_slot() -> None:
    """The common beginning is not computed again and is reported as cached."""
    bench = Bench()
    prompt = list(range(65, 105))
    bench.submit(a_request(0, prompt=prompt, max_tokens=4))
    bench.run()
    longer = [*prompt, *bench.tokens(0), 70, 71]
    bench.submit(a_request(1, prompt=longer, max_tokens=4))
    bench.run()

    (started,) = [e for e in bench.events if isinstance(e, Started) and e.sequence_id == 1]
    assert started.cached_tokens == len(prompt) + 3
    assert bench.tokens(1) == _expected(longer, 4)


def test_another_projects_prefix_is_not_reused() -> None:
    """The same prompt under another key is computed whole."""
    bench = Bench()
    prompt = list(range(65, 105))
    bench.submit(a_request(0, prompt=prompt, cache_key=b"a"))
    bench.run()
    bench.submit(a_request(1, prompt=prompt, cache_key=b"b"))
    bench.run()

    (started,) = [e for e in bench.events if isinstance(e, Started) and e.sequence_id == 1]
    assert started.cached_tokens == 0


def test_a_model_that_cannot_trim_computes_again() -> None:
    """Recurrent models reuse whole prefixes only."""
    bench = Bench(FakeBackend(can_trim=False))
    prompt = list(range(65, 105))
    bench.submit(a_request(0, prompt=prompt, max_tokens=4))
    bench.run()
    changed = [*prompt[:30], 200]
    bench.submit(a_request(1, prompt=changed, max_tokens=4))
    bench.run()

    assert bench.tokens(1) == _expected(changed, 4)


def test_holes_between_slots_are_filled_and_cleaned() -> None:
    """A filler row joins two slots into one batch and leaves no cell behind."""
    bench = Bench(step_times={1: 10.0, 2: 11.0, 3: 12.0, 4: 13.0})
    bench.submit(a_request(0, max_tokens=9), a_request(1, max_tokens=2), a_request(2, max_tokens=9))
    bench.run()

    assert any(
        batch.slots.tolist() == [0, 1, 2] and batch.outputs.tolist() == [1, 0, 1]
        for batch in bench.backend.batches
    )
    assert bench.tokens(2) == _expected([65, 66, 67], 9)


def test_cancelling_frees_the_slot_before_the_next_step() -> None:
    """The waiting sequence gets it in that very step, and both step numbers are reported."""
    bench = Bench(FakeBackend(NativeLimits(64, 1, 1, 128, VOCABULARY_SIZE)))
    bench.submit(a_request(0, max_tokens=50), a_request(1, max_tokens=2))
    bench.step()
    bench.engine.cancel(0, arrived_in_step=1, step=2)
    events = bench.step()

    assert Cancelled(0, "decode", 1, 2) in events
    assert any(isinstance(event, Started) and event.sequence_id == 1 for event in events)


def test_a_queued_sequence_can_be_cancelled_and_a_gone_one_too() -> None:
    """Cancel works in every phase and an unknown id is no error."""
    bench = Bench(FakeBackend(NativeLimits(64, 1, 1, 128, VOCABULARY_SIZE)))
    bench.submit(a_request(0, max_tokens=3), a_request(1))
    bench.step()
    bench.engine.cancel(1, arrived_in_step=1, step=2)
    bench.engine.cancel(99, arrived_in_step=1, step=2)
    bench.run()

    assert len(bench.tokens(0)) == 3
    assert bench.tokens(1) == []


def test_a_paused_sequence_waits_while_others_go_on() -> None:
    """A slow reader delays nobody else."""
    bench = Bench()
    bench.submit(a_request(0, max_tokens=5), a_request(1, max_tokens=5))
    bench.step()
    bench.engine.pause(0, paused=True)
    while bench.engine.has_work:
        bench.step()
    before = len(bench.tokens(0))
    bench.engine.pause(0, paused=False)
    bench.run()

    assert (before, len(bench.tokens(0)), len(bench.tokens(1))) == (1, 5, 5)


def test_waiting_behind_a_paused_sequence_is_no_work_but_keeps_deadlines() -> None:
    """The loop may sleep, and wakes to end what waited too long."""
    bench = Bench(FakeBackend(NativeLimits(64, 1, 1, 128, VOCABULARY_SIZE)))
    bench.submit(a_request(0, max_tokens=50), a_request(1, deadline=5.0))
    bench.step()
    bench.engine.pause(0, paused=True)

    assert not bench.engine.has_work
    assert bench.engine.has_sequences
    bench.clock.now = 6.0
    bench.step()
    assert bench.failures()[1].error == DeadlineExpired(phase="queued")


def test_higher_classes_start_first_and_order_holds_inside_a_class() -> None:
    """One slot, three waiting: the interactive one, then the others as they came."""
    bench = Bench(FakeBackend(NativeLimits(64, 1, 1, 128, VOCABULARY_SIZE)))
    bench.submit(
        a_request(0, priority=2),
        a_request(1, priority=1),
        a_request(2, priority=2),
        a_request(3, priority=3),
    )
    bench.run()

    started = [event.sequence_id for event in bench.events if isinstance(event, Started)]
    assert started == [3, 0, 2, 1]


def test_a_deadline_ends_queued_and_running_sequences() -> None:
    """Each with the phase it was in; the others go on."""
    bench = Bench(FakeBackend(NativeLimits(64, 1, 1, 128, VOCABULARY_SIZE)))
    bench.submit(a_request(0, max_tokens=50, deadline=5.0), a_request(1, queue_deadline=5.0))
    bench.submit(a_request(2, max_tokens=1))
    bench.step()
    bench.clock.now = 6.0
    bench.run()

    failures = bench.failures()
    assert failures[0].error == DeadlineExpired(phase="decode")
    assert failures[1].error == DeadlineExpired(phase="queued")
    assert len(bench.tokens(2)) == 1


@pytest.mark.parametrize("code", [1, -1, -2])
def test_one_failing_row_fails_alone(code: int) -> None:
    """A batch that cannot be computed is undone and retried until the bad row stands alone."""

    def fails(batch: TokenBatch) -> int:
        return code if 200 in batch.tokens else 0

    bench = Bench(FakeBackend(fails=fails))
    bench.submit(
        a_request(0, max_tokens=6),
        a_request(1, prompt=[65, 200, 66], request_id="req_1"),
        a_request(2, max_tokens=6),
    )
    bench.run()

    assert bench.failures()[1].error == DecodeFailed(request_id="req_1")
    assert bench.tokens(0) == bench.tokens(2) == _expected([65, 66, 67], 6)


def test_a_sampler_that_fails_ends_its_own_sequence_only() -> None:
    """Settings that cannot be sampled with disturb nobody else."""
    bench = Bench()
    bench.submit(a_request(0, seed=FAILING_SEED), a_request(1, max_tokens=4))
    bench.run()

    assert bench.failures().keys() == {0}
    assert len(bench.tokens(1)) == 4


def test_logprobs_ride_on_their_tokens() -> None:
    """Each delta carries as many as it has tokens."""
    bench = Bench()
    bench.submit(a_request(max_tokens=3, top_logprobs=2))
    bench.run()

    assert all(
        len(delta.logprobs) == len(delta.tokens) and len(delta.logprobs[0].top) == 2
        for delta in bench.deltas(0)
        if delta.tokens
    )


def test_the_sampler_learns_every_output_token_and_is_freed() -> None:
    """Penalties see what was said, resumed tokens included."""
    bench = Bench()
    made = []
    new_sampler = bench.backend.new_sampler
    bench.backend.new_sampler = lambda request: made.append(new_sampler(request)) or made[-1]  # type: ignore[method-assign, func-returns-value]
    bench.submit(a_request(max_tokens=4, resumed=array("i", [97])))
    bench.run()

    assert made[0].seen == [97, *bench.tokens(0)]
    assert made[0].closed


def test_the_load_is_reported() -> None:
    """The last report after the work is done shows an idle engine with its cells."""
    bench = Bench()
    bench.submit(a_request(max_tokens=4))
    bench.run()

    load = [event for event in bench.events if isinstance(event, ModelLoad)][-1]
    assert (load.num_running, load.num_waiting, load.output_tokens) == (0, 0, 4)
    assert load.num_idle_cells == load.num_used_cells == 6


def test_deltas_come_before_the_end() -> None:
    """Order inside one step's events is the order in which things happened."""
    bench = Bench()
    bench.submit(a_request(max_tokens=1))
    bench.run()

    kinds = [type(event).__name__ for event in bench.events if not isinstance(event, ModelLoad)]
    assert kinds == ["Started", "Delta", "Finished"]


def test_the_engine_is_idle_without_sequences() -> None:
    """Nothing to do, nothing computed."""
    engine: Engine = Bench().engine

    assert not engine.has_work
    assert [event for event in engine.step() if isinstance(event, Delta)] == []
