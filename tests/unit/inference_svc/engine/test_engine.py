"""The step loop, on the fake backend."""

import pytest

from inference_svc.engine.batch import NativeLimits
from inference_svc.engine.engine import Engine
from inference_svc.engine.events import Cancelled, Delta, FinishReason, ModelLoad, Started
from inference_svc.engine.scheduler.policy import Policy
from svc_kit.errors import DeadlineExpired
from tests.support.fake_backend import (
    VOCABULARY_SIZE,
    FakeBackend,
)
from tests.support.sequences import EngineBench, expected_tokens, make_request


def test_a_sequence_emits_the_tokens_of_the_model() -> None:
    """The fake model hashes prompt, positions and draws, so any mistake changes the tokens."""
    bench = EngineBench()
    bench.submit(make_request(max_tokens=8))
    bench.run()

    assert bench.tokens(0) == expected_tokens([65, 66, 67], 8)
    assert bench.text(0) == bytes(bench.tokens(0)).decode()
    assert bench.finished(0).reason is FinishReason.LENGTH
    assert bench.finished(0).num_output_tokens == 8


def test_a_sequence_joins_while_another_decodes() -> None:
    """A new prompt is computed in the same step, in a separate call."""
    bench = EngineBench()
    bench.submit(make_request(0, max_tokens=8))
    bench.step()
    bench.step()
    bench.submit(make_request(1, prompt=[70] * 5, max_tokens=2))
    bench.step()

    assert [batch.slots.tolist() for batch in bench.backend.batches[-2:]] == [[0], [1] * 5]


def test_a_long_prompt_is_computed_in_chunks_beside_decoding_rows() -> None:
    """The cap bounds the delay of a decoding sequence."""
    bench = EngineBench(chunk_cap=16)
    bench.submit(make_request(0, max_tokens=20))
    bench.step()
    bench.submit(make_request(1, prompt=[70] * 40, max_tokens=1))
    bench.step()
    bench.step()
    bench.step()

    assert [len(batch.tokens) for batch in bench.backend.batches[1:]] == [1, 16, 1, 16, 1, 8]


@pytest.mark.parametrize(
    ("policy", "chunks"), [(Policy.BALANCED, [8, 8, 8, 6]), (Policy.THROUGHPUT_FIRST, [30])]
)
def test_prompts_alone_take_one_pass_per_step(policy: Policy, chunks: list[int]) -> None:
    """Two passes per step would only delay new arrivals."""
    limits = NativeLimits(64, 1, 1, 128, VOCABULARY_SIZE, ubatch_tokens=8)
    bench = EngineBench(FakeBackend(limits), chunk_cap=16, policy=policy)
    bench.submit(make_request(0, prompt=[70] * 30, max_tokens=1))
    bench.run()

    assert [len(batch.tokens) for batch in bench.backend.batches] == chunks


def test_a_short_prompt_is_computed_at_once_beside_long_ones() -> None:
    """It needs no more than an equal share of the cap."""
    limits = NativeLimits(64, 5, 5, 128, VOCABULARY_SIZE, ubatch_tokens=8)
    bench = EngineBench(FakeBackend(limits), chunk_cap=16)
    bench.submit(*(make_request(i, prompt=[70 + i] * 30, max_tokens=1) for i in range(4)))
    bench.submit(make_request(4, prompt=[80] * 3, max_tokens=1))
    bench.step()

    assert bench.finished(4).num_output_tokens == 1


def _first_to_speak(first_at: int, arrives_at: float, length: int) -> int:
    """Of a prompt of 240 tokens, of which so many are computed, and one that arrives then."""
    limits = NativeLimits(32, 2, 2, 256, VOCABULARY_SIZE)
    bench = EngineBench(FakeBackend(limits), chunk_cap=32)
    bench.submit(make_request(0, prompt=[65] * 240, max_tokens=1))
    while sum(len(batch.tokens) for batch in bench.backend.batches) < first_at:
        bench.step()
    bench.clock.now = arrives_at
    bench.submit(make_request(1, prompt=[66] * length, max_tokens=1))
    bench.run()
    return next(event.sequence_id for event in bench.events if isinstance(event, Delta))


@pytest.mark.parametrize(("arrives_at", "first"), [(0.5, 1), (3.0, 0)])
def test_a_long_prompt_waits_only_for_shorter_ones_that_arrive_soon(
    arrives_at: float, first: int
) -> None:
    """Later, its response ratio is higher than that of new prompts."""
    assert _first_to_speak(32, arrives_at, 100) == first


def test_prompts_are_ordered_by_remaining_tokens() -> None:
    """A nearly finished long prompt comes before a shorter new one."""
    assert _first_to_speak(192, 0.0, 100) == 0


def test_equal_prompts_are_computed_one_after_the_other() -> None:
    """The first token of one does not wait for all."""
    limits = NativeLimits(32, 4, 4, 256, VOCABULARY_SIZE)
    bench = EngineBench(FakeBackend(limits), chunk_cap=32, measured={4: 0.4})
    bench.submit(*(make_request(i, prompt=[65 + i] * 128, max_tokens=1) for i in range(4)))
    bench.run()

    computed = [sorted(set(batch.slots.tolist())) for batch in bench.backend.batches]
    assert computed == [[slot] for slot in range(4) for _ in range(4)]


@pytest.mark.parametrize(("length", "joins"), [(200, 3), (20, 1), (16, 1)])
def test_a_priority_class_gets_every_fifth_step_beside_urgent_prompts(
    length: int, joins: int
) -> None:
    """Whether its prompts are long, or complete in one step."""
    limits = NativeLimits(160, 32, 32, 256, VOCABULARY_SIZE)
    bench = EngineBench(FakeBackend(limits), chunk_cap=160)
    bench.submit(make_request(500, prompt=[98] * 200, priority=1, max_tokens=99, reuse=False))
    bench.step()
    bench.step()
    turns = []
    for step in range(20):
        urgent = make_request(100 + step, prompt=[97] * 30, priority=3, max_tokens=1, reuse=False)
        bench.submit(urgent)
        if step % joins == 0:
            less = make_request(step, prompt=[70] * length, priority=1, max_tokens=1, reuse=False)
            bench.submit(less)
        before = len(bench.backend.batches)
        bench.step()
        prompts = sum(len(batch.tokens) for batch in bench.backend.batches[before:]) - 1
        turns += [step] if prompts > 30 else []

    assert turns == [4, 9, 14, 19]


def test_a_follow_up_reuses_its_slot() -> None:
    """The common prefix is not computed again and is reported as cached."""
    bench = EngineBench()
    prompt = list(range(65, 105))
    bench.submit(make_request(0, prompt=prompt, max_tokens=4))
    bench.run()
    longer = [*prompt, *bench.tokens(0), 70, 71]
    bench.submit(make_request(1, prompt=longer, max_tokens=4))
    bench.run()

    started = bench.started(1)
    assert started.cached_tokens == len(prompt) + 3
    assert bench.tokens(1) == expected_tokens(longer, 4)


def test_the_prefix_of_another_cache_key_is_not_reused() -> None:
    """The same prompt is computed in full."""
    bench = EngineBench()
    prompt = list(range(65, 105))
    bench.submit(make_request(0, prompt=prompt, cache_key=b"a"))
    bench.run()
    bench.submit(make_request(1, prompt=prompt, cache_key=b"b"))
    bench.run()

    started = bench.started(1)
    assert started.cached_tokens == 0


def test_a_model_that_cannot_trim_recomputes_a_changed_prompt() -> None:
    """Recurrent models reuse whole prefixes only."""
    bench = EngineBench(FakeBackend(can_trim=False))
    prompt = list(range(65, 105))
    bench.submit(make_request(0, prompt=prompt, max_tokens=4))
    bench.run()
    changed = [*prompt[:30], 200]
    bench.submit(make_request(1, prompt=changed, max_tokens=4))
    bench.run()

    assert bench.tokens(1) == expected_tokens(changed, 4)


def test_cancelling_frees_the_slot_before_the_next_step() -> None:
    """A queued sequence starts in that step; both step numbers are reported."""
    bench = EngineBench(FakeBackend(NativeLimits(64, 1, 1, 128, VOCABULARY_SIZE)))
    bench.submit(make_request(0, max_tokens=50), make_request(1, max_tokens=2))
    bench.step()
    bench.engine.cancel(0, arrived_in_step=1, step=2)
    events = bench.step()

    assert Cancelled(0, "decode", 1, 2) in events
    assert any(isinstance(event, Started) and event.sequence_id == 1 for event in events)


def test_queued_and_unknown_sequences_can_be_cancelled() -> None:
    """An unknown id is not an error."""
    bench = EngineBench(FakeBackend(NativeLimits(64, 1, 1, 128, VOCABULARY_SIZE)))
    bench.submit(make_request(0, max_tokens=3), make_request(1))
    bench.step()
    bench.engine.cancel(1, arrived_in_step=1, step=2)
    bench.engine.cancel(99, arrived_in_step=1, step=2)
    bench.run()

    assert len(bench.tokens(0)) == 3
    assert bench.tokens(1) == []


def test_a_paused_sequence_delays_no_others() -> None:
    """A slow reader does not delay other sequences."""
    bench = EngineBench()
    bench.submit(make_request(0, max_tokens=5), make_request(1, max_tokens=5))
    bench.step()
    bench.engine.pause(0, paused=True)
    while bench.engine.has_work:
        bench.step()
    before = len(bench.tokens(0))
    bench.engine.pause(0, paused=False)
    bench.run()

    assert (before, len(bench.tokens(0)), len(bench.tokens(1))) == (1, 5, 5)


def test_waiting_behind_a_paused_sequence_is_not_work_but_deadlines_apply() -> None:
    """The step loop may sleep until a deadline."""
    bench = EngineBench(FakeBackend(NativeLimits(64, 1, 1, 128, VOCABULARY_SIZE)))
    bench.submit(make_request(0, max_tokens=50), make_request(1, deadline=5.0))
    bench.step()
    bench.engine.pause(0, paused=True)

    assert not bench.engine.has_work
    assert bench.engine.has_sequences
    bench.clock.now = 6.0
    bench.step()
    assert bench.failures()[1].error == DeadlineExpired(phase="queued")


def test_sequences_start_by_priority_then_arrival() -> None:
    """One slot, four queued sequences."""
    bench = EngineBench(FakeBackend(NativeLimits(64, 1, 1, 128, VOCABULARY_SIZE)))
    bench.submit(
        make_request(0, priority=2),
        make_request(1, priority=1),
        make_request(2, priority=2),
        make_request(3, priority=3),
    )
    bench.run()

    started = [event.sequence_id for event in bench.events if isinstance(event, Started)]
    assert started == [3, 0, 2, 1]


def test_a_deadline_ends_queued_and_running_sequences() -> None:
    """The error has the phase of the sequence; others go on."""
    bench = EngineBench(FakeBackend(NativeLimits(64, 1, 1, 128, VOCABULARY_SIZE)))
    bench.submit(make_request(0, max_tokens=50, deadline=5.0), make_request(1, queue_deadline=5.0))
    bench.submit(make_request(2, max_tokens=1))
    bench.step()
    bench.clock.now = 6.0
    bench.run()

    failures = bench.failures()
    assert failures[0].error == DeadlineExpired(phase="decode")
    assert failures[1].error == DeadlineExpired(phase="queued")
    assert len(bench.tokens(2)) == 1


def test_the_load_is_reported() -> None:
    """The last report shows an idle engine and its cells."""
    bench = EngineBench()
    bench.submit(make_request(max_tokens=4))
    bench.run()

    load = [event for event in bench.events if isinstance(event, ModelLoad)][-1]
    assert (load.num_running, load.num_waiting, load.output_tokens) == (0, 0, 4)
    assert load.num_idle_cells == load.num_used_cells == 6


def test_the_load_has_how_much_of_each_prompt_is_computed() -> None:
    """Until the first token; in each call a chunk of 16 tokens."""
    bench = EngineBench(chunk_cap=16)
    bench.submit(make_request(prompt=[65] * 40, max_tokens=4))
    found = []
    for now in range(4):
        bench.clock.now = float(now)
        found += [each.prefills for each in bench.step() if isinstance(each, ModelLoad)][-1:]

    assert found == [((0, 16),), ((0, 32),), (), ()]


def test_the_engine_is_idle_without_sequences() -> None:
    """A step emits no tokens."""
    engine: Engine = EngineBench().engine

    assert not engine.has_work
    assert [event for event in engine.step() if isinstance(event, Delta)] == []
