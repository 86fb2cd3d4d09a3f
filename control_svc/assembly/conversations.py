"""Conversations: what callers do with them."""

from corral.control.v1 import conversation_service_pb2_grpc

from control_svc.api.conversation_service import ConversationServicer
from control_svc.assembly.archives import archives
from control_svc.assembly.ground import Ground
from control_svc.usecases.conversations import Conversations
from svc_kit.rpc_server import Service


def conversation_service(ground: Ground) -> Service:
    """What callers do with conversations."""
    conversations = Conversations(
        ground.transactions, ground.ids, ground.tokens, ground.clock, archives(ground)
    )
    return Service(
        conversation_service_pb2_grpc.add_ConversationServiceServicer_to_server,
        ConversationServicer(conversations),
        "corral.control.v1.ConversationService",
    )
