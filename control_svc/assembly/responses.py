"""Responses: what callers do with them, and what works on them."""

from datetime import timedelta
from typing import NamedTuple

from corral.control.v1 import response_service_pb2_grpc

from control_svc.api.response_event_convert import RESPONSE_EVENTS
from control_svc.api.response_lines import ResponseLines
from control_svc.api.response_service import ResponseServicer
from control_svc.assembly.archives import archives
from control_svc.assembly.ground import Ground, shared_secret
from control_svc.assembly.mcp import mcp_servers
from control_svc.assembly.models import ModelParts, model_parts
from control_svc.domain.search import Search
from control_svc.storage.envelopes import Envelopes
from control_svc.usecases.agent_loop import AgentLoop
from control_svc.usecases.answering import Answering
from control_svc.usecases.compacting import Compactor
from control_svc.usecases.mcp_preparing import McpPreparing
from control_svc.usecases.response_compacting import Thresholds
from control_svc.usecases.response_ending import Endings
from control_svc.usecases.response_requests import Requests
from control_svc.usecases.response_tools import ResponseTools
from control_svc.usecases.response_work import ResponseHandler
from control_svc.usecases.response_working import ResponseWorker
from control_svc.usecases.responses import Responses
from svc_kit.rpc_server import Service
from svc_kit.sealing import KEY_BYTES, Sealer


class ResponseParts(NamedTuple):
    """The service, and what works."""

    service: Service
    handler: ResponseHandler
    lines: ResponseLines
    """Answers lines of batches."""


async def response_parts(
    ground: Ground, search: Search, model: ModelParts | None = None
) -> ResponseParts:
    """`model` stands in for the inference service. Raises StartupError."""
    bounds = ground.settings.responses
    seals = Envelopes(Sealer(await shared_secret(ground.database, "seal_key", KEY_BYTES)))
    model = model or model_parts(ground, bounds.turn_timeout_s)
    servers = mcp_servers(ground.settings.mcp_servers)
    tools = ResponseTools(search, servers)
    compactor = Compactor(model.turns, seals, ground.ids, ground.clock, bounds.summary_tokens)
    worker = ResponseWorker(
        AgentLoop(model.turns, ground.ids, ground.clock),
        model.counter,
        Thresholds(compactor, model.counter),
        seals,
        tools,
        McpPreparing(servers, ground.ids, ground.clock),
        ground.clock,
    )
    endings = Endings(RESPONSE_EVENTS, seals)
    requests = Requests(
        model.models, seals, tools, ground.ids, ground.clock, timedelta(seconds=bounds.keep_s)
    )
    responses = Responses(
        ground.transactions,
        ground.streams.followers,
        requests,
        endings,
        RESPONSE_EVENTS,
        ground.ids,
        ground.tokens,
        ground.clock,
        archives(ground),
    )
    answering = Answering(
        ground.transactions,
        responses,
        requests,
        worker,
        model.turns,
        model.counter,
        compactor,
        seals,
        tools,
        RESPONSE_EVENTS,
        ground.ids,
        ground.clock,
    )
    handler = ResponseHandler(
        ground.transactions,
        ground.streams.writers,
        worker,
        endings,
        RESPONSE_EVENTS,
        seals,
        bounds.at_once,
    )
    servicer = ResponseServicer(responses, answering)
    service = Service(
        response_service_pb2_grpc.add_ResponseServiceServicer_to_server,
        servicer,
        "corral.control.v1.ResponseService",
    )
    return ResponseParts(service, handler, ResponseLines(answering))
