"""Assistants, threads and messages: what callers do with them."""

from corral.control.v1 import (
    assistant_service_pb2_grpc,
    message_service_pb2_grpc,
    thread_service_pb2_grpc,
)

from control_svc.api.assistant_service import AssistantServicer
from control_svc.api.message_service import MessageServicer
from control_svc.api.thread_service import ThreadServicer
from control_svc.assembly.archives import archives
from control_svc.assembly.ground import Ground
from control_svc.usecases.assistants import Assistants
from control_svc.usecases.messages import Messages
from control_svc.usecases.threads import Threads
from svc_kit.rpc_server import Service


def thread_services(ground: Ground) -> list[Service]:
    """What callers do with assistants, threads and messages."""
    shared = ground.transactions, ground.ids, ground.tokens, ground.clock
    embedding_model = ground.settings.embedding_model
    return [
        Service(
            assistant_service_pb2_grpc.add_AssistantServiceServicer_to_server,
            AssistantServicer(Assistants(*shared, embedding_model)),
            "corral.control.v1.AssistantService",
        ),
        Service(
            thread_service_pb2_grpc.add_ThreadServiceServicer_to_server,
            ThreadServicer(Threads(*shared, embedding_model, archives(ground))),
            "corral.control.v1.ThreadService",
        ),
        Service(
            message_service_pb2_grpc.add_MessageServiceServicer_to_server,
            MessageServicer(Messages(*shared, embedding_model)),
            "corral.control.v1.MessageService",
        ),
    ]
