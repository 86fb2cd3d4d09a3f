"""Runs by the official SDK's helpers, in the releases that programs are written against."""

from typing import Any

import pytest

from tests.support.sdk_releases import RELEASES, run_program
from tests.support.services import Corral

pytestmark = pytest.mark.e2e

ANSWERED = [
    "thread.run.created",
    "thread.run.queued",
    "thread.run.in_progress",
    "thread.run.step.created",
    "thread.run.step.in_progress",
    "thread.message.created",
    "thread.message.in_progress",
    "thread.message.delta",
    "thread.message.completed",
    "thread.run.step.completed",
    "thread.run.completed",
]


@pytest.fixture(scope="module", params=RELEASES)
def seen(up: Corral, request: pytest.FixtureRequest) -> dict[str, Any]:
    """What a program of each release saw."""
    return run_program("runs.py", request.param, up.api)


def test_a_polled_run_has_openais_shape(seen: dict[str, Any]) -> None:
    """Every field of a run, its step and its answer."""
    run = dict(seen["polled"])
    ids = {name: run.pop(name) for name in ("id", "thread_id", "assistant_id")}
    times = {name: run.pop(name) for name in ("created_at", "started_at", "completed_at")}
    usage = run.pop("usage")

    assert seen["answer"] == "The capital of France is Paris."
    assert ids["id"].startswith("run_")
    assert all(isinstance(time, int) for time in times.values())
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] > 0
    assert run == {
        "object": "thread.run",
        "status": "completed",
        "required_action": None,
        "last_error": None,
        "expires_at": None,
        "cancelled_at": None,
        "failed_at": None,
        "incomplete_details": None,
        "model": seen["model"],
        "instructions": "",
        "tools": [],
        "metadata": {"n": "1"},
        "temperature": 0.0,
        "top_p": 1.0,
        "max_prompt_tokens": None,
        "max_completion_tokens": None,
        "truncation_strategy": {"type": "auto", "last_messages": None},
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "response_format": "auto",
        "reasoning_effort": None,
    }
    assert [step["type"] for step in seen["steps"]] == ["message_creation"]
    assert seen["steps"][0]["status"] == "completed"
    assert seen["same step"]
    assert seen["updated"] == {"n": "2"}
    assert seen["listed"] == [True]


def test_a_handler_is_told_everything_in_order(seen: dict[str, Any]) -> None:
    """`stream` calls a handler with OpenAI's events, and the deltas make the answer."""
    assert seen["streamed"] == {
        "events": ANSWERED,
        "text": "The capital of Italy is Rome.",
        "done": ["The capital of Italy is Rome."],
    }
    assert seen["streamed at once"]["events"] == ["thread.created", *ANSWERED]
    assert seen["at once"] == ["completed", "The capital of France is Paris."]


def test_functions_are_called_and_answered(seen: dict[str, Any]) -> None:
    """A run waits with its calls, refuses what is not its outputs, and goes on with them."""
    action = seen["waiting"]["required_action"]
    [call] = action["submit_tool_outputs"]["tool_calls"]

    assert seen["waiting"]["status"] == "requires_action"
    assert action["type"] == "submit_tool_outputs"
    assert (call["type"], call["function"]["name"]) == ("function", "get_weather")
    assert "Paris" in call["function"]["arguments"]
    messages = [message for message, _code in seen["refused"]]
    assert messages[0].startswith("Can't add messages to thread_")
    assert "already has an active run run_" in messages[1]
    assert messages[2].startswith("Expected tool outputs for call_ids [call_")
    assert [code for _message, code in seen["refused"]][:2] == [None, None]
    assert seen["submitted"]["events"][:3] == [
        "thread.run.step.completed",
        "thread.run.queued",
        "thread.run.in_progress",
    ]
    assert seen["submitted"]["events"][-1] == "thread.run.completed"
    assert "18 degrees" in seen["submitted"]["text"]
    assert seen["submitted"]["done"] == [seen["submitted"]["text"]]
    assert seen["submitted and polled"] == ["completed", seen["submitted"]["text"]]


def test_a_waiting_run_is_cancelled(seen: dict[str, Any]) -> None:
    """It is cancelled at once, and once."""
    assert seen["cancelled"] == "cancelled"
    assert seen["twice"] == "Cannot cancel run with status 'cancelled'."
