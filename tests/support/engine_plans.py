"""Run an engine on a random plan of arrivals, cancellations and pauses, and check its output.

A plan is a dictionary per sequence. `at` is its step of arrival; `cancel_after` and `pause_after`
are steps after that, or None. A pause lasts four steps.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any

from inference_svc.engine.batch import TokenBatch
from inference_svc.engine.events import Started
from tests.support.sequences import EngineBench, expected_prompt_tokens

Plan = dict[str, Any]


def fail_joint_batches(failing_calls: Collection[int], code: int) -> Callable[[TokenBatch], int]:
    """Fail the decode calls with these numbers if their batch has several slots, so that retrying
    in halves succeeds."""
    calls = iter(range(10**6))

    def fails(batch: TokenBatch) -> int:
        is_joint = len(set(batch.slots.tolist())) > 1
        return code if next(calls) in failing_calls and is_joint else 0

    return fails


def apply_plan(
    bench: EngineBench,
    plans: Sequence[Plan],
    submit: Callable[[EngineBench, int, Plan], None],
    step: int,
) -> None:
    """Submit, cancel, pause and continue the sequences whose turn is before this step."""
    for i, plan in enumerate(plans):
        elapsed = step - plan["at"]
        if elapsed == 0:
            submit(bench, i, plan)
        if elapsed == plan["cancel_after"]:
            bench.engine.cancel(i, arrived_in_step=step, step=step)
        if plan["pause_after"] is not None:
            bench.engine.pause(i, paused=0 <= elapsed - plan["pause_after"] < 4)


def run_plans(
    bench: EngineBench,
    plans: Sequence[Plan],
    submit: Callable[[EngineBench, int, Plan], None],
    *,
    step_s: float = 0.0,
    refused_states: Collection[int] = (),
) -> None:
    """Make decode calls until all sequences have ended; fail if one fails or never ends. The
    backend rejects saved states during the calls in `refused_states`."""
    last_event = max(plan["at"] + (plan["pause_after"] or 0) + 4 for plan in plans)
    for call in range(3000):
        apply_plan(bench, plans, submit, call)
        bench.backend.refuses_states = call in refused_states
        bench.call()
        bench.clock.now += step_s
        if call > last_event and not bench.engine.has_sequences:
            break
    assert not bench.engine.has_sequences
    assert bench.failures() == {}


def check_prompt_tokens(
    bench: EngineBench, plans: Sequence[Plan], prompt_of: Callable[[int], Sequence[int]]
) -> None:
    """Check that each prompt token of the `scored` sequences was sent once with its own log
    probability; those of cancelled ones up to some token, and none if resumed tokens ended it."""
    started = {event.sequence_id for event in bench.events if isinstance(event, Started)}
    for i, plan in enumerate(plans):
        tokens = bench.prompt_tokens(i)
        is_scored = plan["scored"] and i in started
        expected = expected_prompt_tokens(prompt_of(i)) if is_scored else []
        assert tokens == (expected if plan["cancel_after"] is None else expected[: len(tokens)])


def check_tokens(
    bench: EngineBench, plans: Sequence[Plan], expected: Callable[[int, Plan], list[int]]
) -> None:
    """Check that each sequence emitted the expected tokens, or a prefix if it was cancelled."""
    for i, plan in enumerate(plans):
        tokens, expected_output = bench.tokens(i), expected(i, plan)
        if plan["cancel_after"] is None:
            assert tokens == expected_output
            bench.finished(i)
        else:
            assert tokens == expected_output[: len(tokens)]
