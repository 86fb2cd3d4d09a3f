"""Conversations between protos and the domain, for all who make one."""

from corral.control.v1 import conversation_pb2

from control_svc.api.convert import timestamp
from control_svc.domain.conversations import Conversation


def conversation_to_pb(conversation: Conversation) -> conversation_pb2.Conversation:
    """A conversation as callers see it."""
    return conversation_pb2.Conversation(
        id=conversation.id,
        create_time=timestamp(conversation.created_at),
        metadata=conversation.metadata,
        writing_response_id=conversation.writer,
    )
