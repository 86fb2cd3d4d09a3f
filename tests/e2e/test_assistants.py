"""Assistants, threads and messages by the official SDK, in the releases that programs are written
against."""

from typing import Any

import pytest

from tests.support.sdk_releases import RELEASES, run_program
from tests.support.services import Corral

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module", params=RELEASES)
def seen(up: Corral, request: pytest.FixtureRequest) -> dict[str, Any]:
    """What a program of each release saw."""
    return run_program("assistants.py", request.param, up.api)


def test_assistants_have_openais_shape(seen: dict[str, Any]) -> None:
    """Every field of an assistant, as it was created and as it was read again."""
    created = seen["created"]
    shown = {name: value for name, value in created.items() if name not in ("id", "created_at")}
    shown.pop("etag")

    assert shown.pop("model") == seen["model"]
    assert created["id"].startswith("asst_")
    assert isinstance(created["created_at"], int)
    assert seen["retrieved"] == created
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


def test_an_update_changes_what_it_names(seen: dict[str, Any]) -> None:
    """What an update does not name stays as it was."""
    new = {"name": "History Tutor", "temperature": 0.25, "response_format": "auto"}
    expected = {**seen["created"], **new}
    changed = dict(seen["changed"])

    assert changed.pop("etag") != expected.pop("etag")
    assert changed == expected


def test_assistants_are_listed_page_after_page_and_deleted(seen: dict[str, Any]) -> None:
    """The SDK follows the cursors by itself."""
    assert seen["pages"] == ["History Tutor", "0", "1", "2", "3"]
    assert seen["deleted"]["object"] == "assistant.deleted"
    assert seen["deleted"]["deleted"] is True
    assert "No assistant found with id 'asst_x'." in seen["gone"]


def test_threads_have_openais_shape(seen: dict[str, Any]) -> None:
    """A thread as it was created, changed and deleted."""
    thread = seen["thread"]

    assert thread["id"].startswith("thread_")
    assert (thread["object"], thread["metadata"]) == ("thread", {"user": "abc123"})
    assert thread["tool_resources"] == {}
    assert seen["same thread"] is True
    assert seen["thread changed"] == {"k": "v"}
    assert seen["thread deleted"] == ["thread.deleted", True]
    assert "No thread found with id 'thread_x'." in seen["thread gone"]


def test_messages_have_openais_shape(seen: dict[str, Any]) -> None:
    """A caller's message, with texts and pictures as they are read."""
    message = dict(seen["message"])
    del message["created_at"]

    assert message.pop("id").startswith("msg_")
    assert message == {
        "object": "thread.message",
        "thread_id": seen["thread"]["id"],
        "status": "completed",
        "incomplete_details": None,
        "completed_at": None,
        "incomplete_at": None,
        "role": "user",
        "content": [{"type": "text", "text": {"value": "And this one?", "annotations": []}}],
        "assistant_id": None,
        "run_id": None,
        "attachments": [{"file_id": seen["file"], "tools": []}],
        "metadata": {"n": "1"},
    }
    assert seen["messages"][2] == [
        {"type": "text", "text": {"value": "That of my file.", "annotations": []}},
        {
            "type": "image_url",
            "image_url": {"url": "data:image/png;base64,AA==", "detail": "auto"},
        },
        {"type": "image_file", "image_file": {"file_id": seen["file"], "detail": "low"}},
    ]


def test_messages_are_listed_changed_and_deleted(seen: dict[str, Any]) -> None:
    """By pages in both directions; what is refused names its field."""
    assert len(seen["messages"]) == 4
    assert seen["before"] == ["What is the answer?"]
    assert seen["message changed"] == seen["message retrieved"] == {"n": "2"}
    assert seen["message deleted"] == ["thread.message.deleted", True, True]
    assert seen["left"] == 3
    assert seen["empty"] == [
        "invalid_request_error",
        "missing_required_parameter",
        "content[0].text",
    ]
