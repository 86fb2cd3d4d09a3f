"""Functions and function calls, which came before tools."""

from typing import Any

import orjson
import pytest
from corral.inference.v1 import chat_pb2, generation_pb2

from dialects.openai.chat.chat_request import chat_request, parse_chat
from dialects.openai.chat.chunks import ChatChunks
from dialects.openai.chat.objects import CollectedChat, chat_params
from dialects.openai.errors import error_body, openai_name
from svc_kit.errors import DomainError
from tests.support.wire_events import (
    ChatEvent,
    chat_accepted,
    chat_delta,
    done,
    event_data,
    finished,
    make_envelope,
)

LOOK: dict[str, Any] = {"name": "look", "parameters": {"type": "object"}}
USER: dict[str, Any] = {"role": "user", "content": "hi"}
CALL: dict[str, Any] = {
    "role": "assistant",
    "content": None,
    "function_call": {"name": "look", "arguments": "{}"},
}
RESULT: dict[str, Any] = {"role": "function", "name": "look", "content": "seen"}
OF_TOOLS = {
    "tools": [{"type": "function", "function": LOOK}],
    "parallel_tool_calls": False,
}


def parse(**fields: Any) -> Any:
    return parse_chat({"model": "m", "messages": [USER], "functions": [LOOK]} | fields)


@pytest.mark.parametrize(
    ("choice", "as_tools"),
    [
        (None, {}),
        ("auto", {"tool_choice": "auto"}),
        ("none", {"tool_choice": "none"}),
        ({"name": "look"}, {"tool_choice": {"type": "function", "function": {"name": "look"}}}),
    ],
)
def test_functions_are_tools_with_one_call(choice: Any, as_tools: dict[str, Any]) -> None:
    tools = parse_chat({"model": "m", "messages": [USER]} | OF_TOOLS | as_tools)

    assert chat_request(parse(function_call=choice)) == chat_request(tools)


def test_a_result_answers_the_call_before_it() -> None:
    """Several calls of one function are told apart; the ids are 9 characters, as Mistral's are."""
    history = [USER, CALL, RESULT, CALL, USER, RESULT | {"content": None}]
    messages = chat_request(parse(messages=history)).conversation.messages

    assert [call.id for each in messages for call in each.tool_calls] == ["call00001", "call00003"]
    assert [each.tool_call_id for each in messages] == [
        "", "", "call00001", "", "", "call00003"
    ]  # fmt: skip
    assert {each.role for each in messages if each.tool_call_id} == {chat_pb2.ROLE_TOOL}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": OF_TOOLS["tools"]}, "tools"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"parallel_tool_calls": True}, "parallel_tool_calls"),
        ({"function_call": {"name": "other"}}, "function_call"),
        ({"function_call": "required"}, "function_call"),
        ({"function_call": {}}, "function_call.name"),
        ({"functions": [], "function_call": {"name": "look"}}, "function_call"),
        ({"functions": [{"parameters": {}}]}, "functions[0].name"),
        ({"functions": [LOOK] * 129}, "functions"),
        ({"messages": [USER, RESULT]}, "messages[1].name"),
        ({"messages": [USER, CALL, RESULT, RESULT]}, "messages[3].name"),
        ({"messages": [USER, CALL, RESULT | {"name": "other"}]}, "messages[2].name"),
        ({"messages": [USER, CALL]}, "messages[1].function_call"),
        ({"messages": [USER, CALL, CALL, RESULT]}, "messages[1].function_call"),
        ({"messages": [USER, CALL | {"function_call": {"arguments": "{}"}}]},
         "messages[1].function_call.name"),
        ({"messages": [USER, CALL | {"tool_calls": [
            {"id": "a", "function": {"name": "look", "arguments": "{}"}}]}]},
         "messages[1].function_call"),
        ({"messages": [USER | {"function_call": {"name": "look", "arguments": "{}"}}]},
         "messages[0].function_call"),
    ],
)  # fmt: skip
def test_what_does_not_belong_together_is_refused(fields: dict[str, Any], param: str) -> None:
    """With the path in the caller's body."""
    with pytest.raises(DomainError) as caught:
        chat_request(parse(**fields))
    error: Any = error_body(caught.value)["error"]

    assert error["param"] == param


def test_errors_of_the_service_name_functions() -> None:
    """The service knows tools only."""
    params = chat_params(parse(function_call={"name": "look"}))

    assert openai_name("conversation.tools[0].parameters_json", params) == "functions[0].parameters"
    assert openai_name("tools[0].function.name", params) == "functions[0].name"
    assert openai_name("conversation.tools[0].name", params) == "functions[0].name"
    assert openai_name("conversation.tool_choice", params) == "function_call"


EVENTS = [
    chat_accepted(),
    chat_delta("", calls=[chat_pb2.ToolCallDelta(id="c", name="look", arguments_json='{"a"')]),
    chat_delta("", calls=[chat_pb2.ToolCallDelta(arguments_json=": 1}")]),
    ChatEvent(finished=finished(reason=generation_pb2.FINISH_REASON_TOOL_CALLS)),
    ChatEvent(done=done()),
]


def test_an_answer_has_a_function_call() -> None:
    """With its finish reason, and without tool_calls."""
    completion = CollectedChat(make_envelope(), parse())
    for event in EVENTS:
        completion.add(event)
    written: Any = completion.as_object()
    (choice,) = written["choices"]

    assert choice["finish_reason"] == "function_call"
    assert choice["message"] == {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "annotations": [],
        "function_call": {"name": "look", "arguments": '{"a": 1}'},
    }


def test_a_stream_has_a_function_call() -> None:
    """The first chunk has the role, no content, and the name."""
    chunks = ChatChunks(make_envelope(), parse(stream=True))
    frames = [frame for event in EVENTS for frame in chunks.frames(event)]
    choices = [orjson.loads(event_data(frame))["choices"][0] for frame in frames]

    assert [choice["delta"] for choice in choices] == [
        {
            "role": "assistant",
            "content": None,
            "function_call": {"name": "look", "arguments": ""},
            "refusal": None,
        },
        {"function_call": {"arguments": '{"a"'}},
        {"function_call": {"arguments": ": 1}"}},
        {},
    ]
    assert [choice["finish_reason"] for choice in choices] == [None, None, None, "function_call"]
