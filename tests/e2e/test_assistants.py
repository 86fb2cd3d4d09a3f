"""Assistants, threads and messages with several releases of the official SDK."""

from typing import Any

import pytest

from tests.support.sdk_releases import RELEASES, run_program
from tests.support.services import Corral

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module", params=RELEASES)
def results(up: Corral, request: pytest.FixtureRequest) -> dict[str, Any]:
    """Run the program with each release; return its output."""
    return run_program("assistants.py", request.param, up.api)


def test_assistants_have_openais_shape(results: dict[str, Any]) -> None:
    """Every field, as created and as retrieved."""
    created = results["created"]
    shown = {name: value for name, value in created.items() if name not in ("id", "created_at")}
    shown.pop("etag")

    assert shown.pop("model") == results["model"]
    assert created["id"].startswith("asst_")
    assert isinstance(created["created_at"], int)
    assert results["retrieved"] == created
    assert shown == {
        "object": "assistant",
        "name": "Math Tutor",
        "description": "It knows sums.",
        "instructions": "You are a personal math tutor.",
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "get_weather",
                    "description": "The weather of a place.",
                    "parameters": {
                        "type": "object",
                        "properties": {"place": {"type": "string"}},
                    },
                },
            },
            {"type": "file_search", "file_search": {}},
        ],
        "tool_resources": {},
        "metadata": {"team": "maths"},
        "temperature": 0.5,
        "top_p": 0.9,
        "reasoning_effort": None,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "n", "schema": {"a": 1}},
        },
    }


def test_an_update_changes_only_the_given_fields(results: dict[str, Any]) -> None:
    """Other fields are not changed."""
    new = {"name": "History Tutor", "temperature": 0.25, "response_format": "auto"}
    expected = {**results["created"], **new}
    changed = dict(results["changed"])

    assert changed.pop("etag") != expected.pop("etag")
    assert changed == expected


def test_assistants_are_listed_in_pages_and_deleted(results: dict[str, Any]) -> None:
    """The SDK follows the cursors."""
    assert results["pages"] == ["History Tutor", "0", "1", "2", "3"]
    assert results["deleted"]["object"] == "assistant.deleted"
    assert results["deleted"]["deleted"] is True
    assert "No assistant found with id 'asst_x'." in results["gone"]


def test_threads_have_openais_shape(results: dict[str, Any]) -> None:
    thread = results["thread"]

    assert thread["id"].startswith("thread_")
    assert (thread["object"], thread["metadata"]) == ("thread", {"user": "abc123"})
    assert thread["tool_resources"] == {}
    assert results["same thread"] is True
    assert results["thread changed"] == {"k": "v"}
    assert results["thread deleted"] == ["thread.deleted", True]
    assert "No thread found with id 'thread_x'." in results["thread gone"]


def test_messages_have_openais_shape(results: dict[str, Any]) -> None:
    message = dict(results["message"])
    del message["created_at"]

    assert message.pop("id").startswith("msg_")
    assert message == {
        "object": "thread.message",
        "thread_id": results["thread"]["id"],
        "status": "completed",
        "incomplete_details": None,
        "completed_at": None,
        "incomplete_at": None,
        "role": "user",
        "content": [{"type": "text", "text": {"value": "And this one?", "annotations": []}}],
        "assistant_id": None,
        "run_id": None,
        "attachments": [{"file_id": results["file"], "tools": []}],
        "metadata": {"n": "1"},
    }
    assert results["messages"][2] == [
        {"type": "text", "text": {"value": "That of my file.", "annotations": []}},
        {
            "type": "image_url",
            "image_url": {"url": "data:image/png;base64,AA==", "detail": "auto"},
        },
        {"type": "image_file", "image_file": {"file_id": results["file"], "detail": "low"}},
    ]


def test_messages_are_listed_changed_and_deleted(results: dict[str, Any]) -> None:
    """Pages in both directions; errors name the field."""
    assert len(results["messages"]) == 4
    assert results["before"] == ["What is the answer?"]
    assert results["message changed"] == results["message retrieved"] == {"n": "2"}
    assert results["message deleted"] == ["thread.message.deleted", True, True]
    assert results["left"] == 3
    assert results["empty"] == [
        "invalid_request_error",
        "missing_required_parameter",
        "content[0].text",
    ]
