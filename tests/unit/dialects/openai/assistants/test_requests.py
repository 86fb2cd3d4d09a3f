"""Bodies of assistants, threads and messages as requests of the control service."""

from typing import Any

import orjson
import pytest
from corral.control.v1 import assistant_pb2, item_pb2, message_pb2
from google.protobuf.field_mask_pb2 import FieldMask

from dialects.openai.assistants.objects import assistant_object, message_object
from dialects.openai.assistants.requests import (
    AssistantUpdateBody,
    create_assistant_request,
    update_assistant_request,
)
from dialects.openai.assistants.run_events import error_frame
from dialects.openai.assistants.run_requests import (
    create_thread_and_run_request,
    parse_thread_and_run,
)
from dialects.openai.assistants.thread_requests import (
    create_message_request,
    create_thread_request,
    update_thread_request,
)
from dialects.openai.shared.objects import list_object
from dialects.openai.shared.pagination import PageQuery, parse_page_query
from dialects.shared.parameters import policy_of
from svc_kit import errors

WITHOUT_PATH = {"etag", *policy_of(AssistantUpdateBody)}
"""Fields that identify the version to update, or are not implemented for assistants."""


def update_paths(**fields: Any) -> list[str]:
    return list(update_assistant_request("asst_x", fields).update_mask.paths)


@pytest.mark.parametrize("name", sorted(AssistantUpdateBody.model_fields.keys() - WITHOUT_PATH))
def test_every_field_can_be_updated(name: str) -> None:
    """Its path is valid for the proto; null resets it."""
    paths = update_paths(**{name: None})

    assert paths
    descriptor: Any = assistant_pb2.Assistant.DESCRIPTOR
    assert FieldMask(paths=paths).IsValidForDescriptor(descriptor)


def test_an_empty_update_has_an_empty_mask() -> None:
    """No defaults are set in the assistant."""
    request = update_assistant_request("asst_x", {"etag": "e"})

    assert request.assistant == assistant_pb2.Assistant(id="asst_x", etag="e")
    assert not request.update_mask.paths


def test_an_update_of_one_option_keeps_the_others() -> None:
    """The mask has only its path."""
    request = update_assistant_request("asst_x", {"temperature": 0.5})

    assert list(request.update_mask.paths) == ["options.sampling.temperature"]
    assert request.assistant.options.sampling.temperature == 0.5


def test_an_assistant_has_openais_defaults() -> None:
    """As chat completions do."""
    request = create_assistant_request({"model": "m", "top_k": 5}, "key")
    shown = assistant_object(request.assistant)

    assert (shown["temperature"], shown["top_p"]) == (1.0, 1.0)
    assert request.assistant.options.sampling.top_k == 5
    assert shown["response_format"] == "auto"
    assert request.request_id == "key"


@pytest.mark.parametrize(
    ("fields", "error", "field"),
    [
        ({}, errors.MissingField, "model"),
        ({"tools": [{"type": "code_interpreter"}]}, errors.UnsupportedValue, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, errors.MissingField, "tools[0].function"),
        ({"tools": [{"type": "web_search"}]}, errors.InvalidField, "tools[0].type"),
        (
            {"tool_resources": {"code_interpreter": {"file_ids": ["file-1"]}}},
            errors.UnsupportedField,
            "tool_resources.code_interpreter",
        ),
        (
            {"response_format": {"type": "json_schema"}},
            errors.MissingField,
            "response_format.json_schema.schema",
        ),
        ({"response_format": 3}, errors.InvalidType, "response_format"),
        ({"temperature": -1}, errors.OutOfRange, "temperature"),
        ({"n": 2}, errors.UnsupportedField, "n"),
        ({"stream": True}, errors.UnsupportedField, "stream"),
        ({"banana": 1}, errors.UnknownField, "banana"),
    ],
)
def test_invalid_assistants_are_rejected(
    fields: dict[str, Any], error: type[errors.DomainError], field: str
) -> None:
    """The error has the body's field name."""
    model = {} if field == "model" else {"model": "m"}
    with pytest.raises(error) as refused:
        create_assistant_request({**model, **fields}, "")

    assert refused.value.field == field


def test_vector_stores_are_created_only_with_new_objects() -> None:
    """Assistants, threads and runs; updates reject them."""
    store = {"file_ids": ["file-1"], "metadata": {"k": "v"}}
    resources = {"file_search": {"vector_stores": [store]}}
    assistant = create_assistant_request({"model": "m", "tool_resources": resources}, "")
    thread = create_thread_request({"tool_resources": resources}, "")
    body = {"assistant_id": "asst_1", "thread": {"tool_resources": resources}}
    run = create_thread_and_run_request(parse_thread_and_run(body), "")

    for request in (assistant, thread, run):
        (new,) = request.new_vector_stores
        assert (list(new.file_ids), dict(new.metadata)) == (["file-1"], {"k": "v"})
    for change in (update_assistant_request, update_thread_request):
        with pytest.raises(errors.UnsupportedField, match="vector_stores"):
            change("x", {"tool_resources": resources})


def test_empty_resources_are_accepted() -> None:
    """Clients send them back as received."""
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
def test_a_part_without_content_is_rejected(content: list[Any], field: str) -> None:
    """The error has the missing field."""
    with pytest.raises(errors.MissingField) as refused:
        create_message_request("thread_x", {"role": "user", "content": content}, "")

    assert refused.value.field == field


def test_attachments_for_code_interpreter_are_rejected() -> None:
    """Only file_search is supported."""
    attachment = {"file_id": "file-1", "tools": [{"type": "code_interpreter"}]}
    message = {"role": "user", "content": "x", "attachments": [attachment]}

    with pytest.raises(errors.UnsupportedValue) as refused:
        create_thread_request({"messages": [message]}, "")
    assert refused.value.field == "messages[0].attachments[0].tools[0].type"


def test_a_thread_update_contains_the_fields_of_the_body() -> None:
    """Null resets a field."""
    cleared = update_thread_request("thread_x", {"metadata": None})
    nothing = update_thread_request("thread_x", {})

    assert list(cleared.update_mask.paths) == ["metadata"]
    assert not nothing.update_mask.paths


def test_an_incomplete_message_has_its_reason() -> None:
    """Content includes citations and refusals."""
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


def test_an_empty_list() -> None:
    """first_id and last_id are null."""
    assert list_object([], message_object) == {
        "object": "list",
        "data": [],
        "first_id": None,
        "last_id": None,
        "has_more": False,
    }


@pytest.mark.parametrize("limit", ["0", "101", "x", "-1"])
def test_an_invalid_limit_is_rejected(limit: str) -> None:
    """1 to 100 are allowed."""
    with pytest.raises((errors.OutOfRange, errors.InvalidType)) as refused:
        parse_page_query(PageQuery, {"limit": limit})

    assert refused.value.field == "limit"


def test_an_error_event_is_flat_and_nested() -> None:
    """SDKs raise only the nested form."""
    frame = error_frame(errors.UpstreamUnavailable(service="inference"))
    data = orjson.loads(frame.split(b"data: ")[1])
    assert frame.startswith(b"event: error\n")
    assert data["error"]["message"]
    assert data == {**data["error"], "error": data["error"]}
