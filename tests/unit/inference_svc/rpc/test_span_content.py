"""Prompts and answers in spans."""

import pytest
from corral.inference.v1 import chat_pb2
from corral.inference.v1 import inference_service_pb2 as pb

from inference_svc.rpc.span_content import OutputMessages, input_messages

EXACT = '{"id": 12345678901234567890123, "price": 0.12345678901234567890}'


@pytest.mark.parametrize(
    ("arguments", "written"), [(EXACT, EXACT), ('{"a": ', '"{\\"a\\": "')], ids=["long", "torn"]
)
def test_arguments_of_calls_keep_all_digits(arguments: str, written: str) -> None:
    """In prompts and in answers; what is no JSON is text."""
    call = chat_pb2.ToolCall(id="c", name="f", arguments_json=arguments)
    message = chat_pb2.ChatMessage(role=chat_pb2.ROLE_ASSISTANT, tool_calls=[call])
    prompt = input_messages(pb.ChatRequest(conversation=pb.Conversation(messages=[message])))
    output = OutputMessages()
    delta = chat_pb2.ToolCallDelta(id="c", name="f", arguments_json=arguments)
    output.add(pb.ChatResponse(delta=pb.ChatDelta(tool_calls=[delta])))

    for text in (prompt, output.text({0: "tool_calls"})):
        assert f'"arguments":{written}' in text
