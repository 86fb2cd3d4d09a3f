"""Bodies as messages."""

import pytest
from corral.control.v1.conversation_service_pb2 import UpdateConversationRequest
from google.protobuf.field_mask_pb2 import FieldMask

from dialects.openai.responses.conversations import ConversationUpdateBody
from dialects.shared.fields import message_of, validate

BODY = validate(ConversationUpdateBody, {"metadata": {"a": "b"}})


def test_a_message_has_the_fields_of_its_body() -> None:
    mask = FieldMask(paths=["metadata"])
    request = UpdateConversationRequest(
        conversation_id="conv_1", metadata={"a": "b"}, update_mask=mask
    )

    given = {"conversation_id": "conv_1", "update_mask": mask}
    assert message_of(UpdateConversationRequest, BODY, **given) == request


def test_a_field_of_the_message_that_is_in_neither_is_an_error() -> None:
    """Which names it, the body and its module."""
    with pytest.raises(TypeError, match=r"conversations\.ConversationUpdateBody lacks update_mask"):
        message_of(UpdateConversationRequest, BODY, conversation_id="conv_1")
