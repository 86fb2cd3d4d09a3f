"""Counts of a conversation are checked before it is converted."""

import pytest
from corral.inference.v1 import chat_pb2
from corral.inference.v1 import inference_service_pb2 as pb

from inference_svc.chat.conversation import ConversationLimits
from inference_svc.rpc.prompts import check_counts
from svc_kit.errors import TooLong

LIMITS = ConversationLimits(max_messages=4)
PART = chat_pb2.ContentPart(text="x")


@pytest.mark.parametrize(
    ("conversation", "field", "limit"),
    [
        (pb.Conversation(messages=[chat_pb2.ChatMessage()] * 5), "messages", 4),
        (
            pb.Conversation(messages=[chat_pb2.ChatMessage(parts=[PART] * 5)]),
            "messages[0].content",
            4,
        ),
        (
            pb.Conversation(messages=[chat_pb2.ChatMessage(tool_calls=[chat_pb2.ToolCall()] * 5)]),
            "messages[0].tool_calls",
            4,
        ),
    ],
)
def test_a_repeated_field_beyond_its_limit_is_named(
    conversation: pb.Conversation, field: str, limit: int
) -> None:
    with pytest.raises(TooLong) as refusal:
        check_counts(conversation, LIMITS)

    assert (refusal.value.field, refusal.value.limit) == (field, limit)
