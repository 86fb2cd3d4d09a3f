"""Runs with the helpers of several releases of the official SDK."""

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
def results(up: Corral, request: pytest.FixtureRequest) -> dict[str, Any]:
    """Run the program with each release; return its output."""
    return run_program("runs.py", request.param, up.api)


def test_a_polled_run_has_openais_shape(results: dict[str, Any]) -> None:
    """Every field of the run, its step and its message."""
    run = dict(results["polled"])
    ids = {name: run.pop(name) for name in ("id", "thread_id", "assistant_id")}
    times = {name: run.pop(name) for name in ("created_at", "started_at", "completed_at")}
    usage = run.pop("usage")

    assert results["answer"] == "The capital of France is Paris."
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
        "model": results["model"],
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
    assert [step["type"] for step in results["steps"]] == ["message_creation"]
    assert results["steps"][0]["status"] == "completed"
    assert results["same step"]
    assert results["updated"] == {"n": "2"}
    assert results["listed"] == [True]


def test_a_handler_receives_all_events_in_order(results: dict[str, Any]) -> None:
    """`stream` calls it with OpenAI's events; the deltas add up to the answer."""
    assert results["streamed"] == {
        "events": ANSWERED,
        "text": "The capital of Italy is Rome.",
        "done": ["The capital of Italy is Rome."],
    }
    assert results["streamed at once"]["events"] == ["thread.created", *ANSWERED]
    assert results["at once"] == ["completed", "The capital of France is Paris."]


def test_functions_are_called_and_answered(results: dict[str, Any]) -> None:
    """The run requires action, refuses other outputs, and continues with the right ones."""
    action = results["waiting"]["required_action"]
    [call] = action["submit_tool_outputs"]["tool_calls"]

    assert results["waiting"]["status"] == "requires_action"
    assert action["type"] == "submit_tool_outputs"
    assert (call["type"], call["function"]["name"]) == ("function", "get_weather")
    assert "Paris" in call["function"]["arguments"]
    messages = [message for message, _code in results["refused"]]
    assert messages[0].startswith("Can't add messages to thread_")
    assert "already has an active run run_" in messages[1]
    assert messages[2].startswith("Expected tool outputs for call_ids [call_")
    assert [code for _message, code in results["refused"]][:2] == [None, None]
    assert results["submitted"]["events"][:3] == [
        "thread.run.step.completed",
        "thread.run.queued",
        "thread.run.in_progress",
    ]
    assert results["submitted"]["events"][-1] == "thread.run.completed"
    assert "18 degrees" in results["submitted"]["text"]
    assert results["submitted"]["done"] == [results["submitted"]["text"]]
    assert results["submitted and polled"] == ["completed", results["submitted"]["text"]]


def test_a_waiting_run_is_cancelled(results: dict[str, Any]) -> None:
    """Immediately; a second cancellation is refused."""
    assert results["cancelled"] == "cancelled"
    assert results["twice"] == "Cannot cancel run with status 'cancelled'."
