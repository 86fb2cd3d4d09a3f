"""Bodies of assistants, threads and messages as requests of the control service."""

from typing import Any

import orjson
import pytest
from corral.control.v1 import assistant_pb2, item_pb2, message_pb2
from google.protobuf.field_mask_pb2 import FieldMask

from openai_wire.assistants.objects import assistant_object, message_object
from openai_wire.assistants.requests import (
    ASSISTANT_UNSUPPORTED,
    AssistantUpdateBody,
    create_assistant_request,
    update_assistant_request,
)
from openai_wire.assistants.run_objects import error_frame
from openai_wire.assistants.run_requests import create_thread_and_run_request, parse_thread_and_run
from openai_wire.assistants.thread_requests import (
    create_message_request,
    create_thread_request,
    update_thread_request,
)
from openai_wire.shared.objects import list_object
from openai_wire.shared.pagination import PageQuery, parse_page_query
from svc_kit.errors import (
    DomainError,
    InvalidField,
    InvalidType,
    MissingField,
    OutOfRange,
    UnknownField,
    UnsupportedField,
    UnsupportedValue,
    UpstreamUnavailable,
)

IGNORED = {"user", "safety_identifier", "service_tier", "etag"}
"""Fields without an effect on an assistant, and what a change rests on."""


def mask_of(**fields: Any) -> list[str]:
    """What an update takes."""
    return list(update_assistant_request("asst_x", fields).update_mask.paths)


@pytest.mark.parametrize(
    "name", sorted(AssistantUpdateBody.model_fields.keys() - IGNORED - ASSISTANT_UNSUPPORTED.keys())
)
def test_a_change_of_any_field_has_an_effect(name: str) -> None:
    """Each field that an assistant takes has its place in the contract; null clears it."""
    paths = mask_of(**{name: None})

    assert paths
    descriptor: Any = assistant_pb2.Assistant.DESCRIPTOR
    assert FieldMask(paths=paths).IsValidForDescriptor(descriptor)


def test_a_change_of_nothing_names_nothing() -> None:
    """An empty mask means what is set: nothing is, although an assistant has defaults."""
    request = update_assistant_request("asst_x", {"etag": "e"})

    assert request.assistant == assistant_pb2.Assistant(id="asst_x", etag="e")
    assert not request.update_mask.paths


def test_a_change_of_one_option_leaves_the_others() -> None:
    """A temperature says nothing about top_p, which has a default all the same."""
    request = update_assistant_request("asst_x", {"temperature": 0.5})

    assert list(request.update_mask.paths) == ["options.sampling.temperature"]
    assert request.assistant.options.sampling.temperature == 0.5


def test_an_assistant_takes_openais_defaults() -> None:
    """As chat completions do, so that a run answers as they would."""
    request = create_assistant_request({"model": "m", "top_k": 5}, "key")
    shown = assistant_object(request.assistant)

    assert (shown["temperature"], shown["top_p"]) == (1.0, 1.0)
    assert request.assistant.options.sampling.top_k == 5
    assert shown["response_format"] == "auto"
    assert request.request_id == "key"


@pytest.mark.parametrize(
    ("fields", "error", "field"),
    [
        ({}, MissingField, "model"),
        ({"tools": [{"type": "code_interpreter"}]}, UnsupportedValue, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, MissingField, "tools[0].function"),
        ({"tools": [{"type": "web_search"}]}, InvalidField, "tools[0].type"),
        (
            {"tool_resources": {"code_interpreter": {"file_ids": ["file-1"]}}},
            UnsupportedField,
            "tool_resources.code_interpreter",
        ),
        (
            {"response_format": {"type": "json_schema"}},
            MissingField,
            "response_format.json_schema.schema",
        ),
        ({"response_format": 3}, InvalidType, "response_format"),
        ({"temperature": -1}, OutOfRange, "temperature"),
        ({"n": 2}, UnsupportedField, "n"),
        ({"stream": True}, UnsupportedField, "stream"),
        ({"banana": 1}, UnknownField, "banana"),
    ],
)
def test_what_an_assistant_cannot_have_is_refused_by_its_name(
    fields: dict[str, Any], error: type[DomainError], field: str
) -> None:
    """In the words of the body."""
    model = {} if field == "model" else {"model": "m"}
    with pytest.raises(error) as refused:
        create_assistant_request({**model, **fields}, "")

    assert refused.value.field == field


def test_a_store_is_made_where_an_object_is() -> None:
    """Of assistants and threads, with a run too; a change makes none."""
    store = {"file_ids": ["file-1"], "metadata": {"k": "v"}}
    resources = {"file_search": {"vector_stores": [store]}}
    assistant = create_assistant_request({"model": "m", "tool_resources": resources}, "")
    thread = create_thread_request({"tool_resources": resources}, "")
    body = {"assistant_id": "asst_1", "thread": {"tool_resources": resources}}
    run = create_thread_and_run_request(parse_thread_and_run(body), "")

    for made in (assistant, thread, run):
        (new,) = made.new_vector_stores
        assert (list(new.file_ids), dict(new.metadata)) == (["file-1"], {"k": "v"})
    for change in (update_assistant_request, update_thread_request):
        with pytest.raises(UnsupportedField, match="vector_stores"):
            change("x", {"tool_resources": resources})


def test_resources_that_ask_for_nothing_are_taken() -> None:
    """Clients send what they have read."""
    resources: dict[str, Any] = {
        "code_interpreter": {"file_ids": []},
        "file_search": {"vector_stores": []},
    }
    request = create_assistant_request({"model": "m", "tool_resources": resources}, "")

    assert not request.assistant.tool_resources.vector_store_ids


@pytest.mark.parametrize(
    ("content", "field"),
    [
        ([{"type": "text"}], "content[0].text"),
        ([{"type": "image_url", "text": "x"}], "content[0].image_url"),
        ([{"type": "image_file"}], "content[0].image_file"),
    ],
)
def test_a_part_without_its_content_is_refused(content: list[Any], field: str) -> None:
    """By the field that is missing."""
    with pytest.raises(MissingField) as refused:
        create_message_request("thread_x", {"role": "user", "content": content}, "")

    assert refused.value.field == field


def test_a_file_for_the_interpreter_is_refused() -> None:
    """Attachments go to file_search alone."""
    attachment = {"file_id": "file-1", "tools": [{"type": "code_interpreter"}]}
    message = {"role": "user", "content": "x", "attachments": [attachment]}

    with pytest.raises(UnsupportedValue) as refused:
        create_thread_request({"messages": [message]}, "")
    assert refused.value.field == "messages[0].attachments[0].tools[0].type"


def test_a_change_of_a_thread_names_what_the_body_names() -> None:
    """Null clears, what is not there stays."""
    cleared = update_thread_request("thread_x", {"metadata": None})
    nothing = update_thread_request("thread_x", {})

    assert list(cleared.update_mask.paths) == ["metadata"]
    assert not nothing.update_mask.paths


def test_a_message_that_was_broken_off_says_why() -> None:
    """With its citations, as OpenAI writes both."""
    citation = item_pb2.FileCitation(file_id="file-1", marker="[1]", start=3, end=6)
    text = item_pb2.TextPart(text="see[1]", citations=[citation])
    message = message_pb2.Message(
        id="msg_1",
        state=message_pb2.Message.STATE_INCOMPLETE,
        incomplete_reason=message_pb2.Message.INCOMPLETE_REASON_RUN_CANCELLED,
        role=item_pb2.ITEM_ROLE_ASSISTANT,
        parts=[item_pb2.ItemPart(text=text), item_pb2.ItemPart(refusal="no")],
        run_id="run_1",
    )
    message.incomplete_time.FromSeconds(7)
    shown = message_object(message)

    assert (shown["status"], shown["incomplete_at"]) == ("incomplete", 7)
    assert shown["incomplete_details"] == {"reason": "run_cancelled"}
    assert shown["content"] == [
        {
            "type": "text",
            "text": {
                "value": "see[1]",
                "annotations": [
                    {
                        "type": "file_citation",
                        "text": "[1]",
                        "start_index": 3,
                        "end_index": 6,
                        "file_citation": {"file_id": "file-1"},
                    }
                ],
            },
        },
        {"type": "refusal", "refusal": "no"},
    ]


def test_an_empty_list_has_no_ends() -> None:
    """Clients stop at it."""
    assert list_object([], message_object, has_more=False) == {
        "object": "list",
        "data": [],
        "first_id": None,
        "last_id": None,
        "has_more": False,
    }


@pytest.mark.parametrize("limit", ["0", "101", "x", "-1"])
def test_a_limit_outside_the_list_is_refused(limit: str) -> None:
    """1 to 100, as at OpenAI."""
    with pytest.raises((OutOfRange, InvalidType)) as refused:
        parse_page_query(PageQuery, {"limit": limit})

    assert refused.value.field == "limit"


def test_an_error_within_a_stream_is_raised_by_the_sdks() -> None:
    """They look for the envelope; OpenAI's own clients for a flat one."""
    frame = error_frame(UpstreamUnavailable(service="inference"))
    data = orjson.loads(frame.split(b"data: ")[1])
    assert frame.startswith(b"event: error\n")
    assert data["error"]["message"]
    assert data == {**data["error"], "error": data["error"]}
