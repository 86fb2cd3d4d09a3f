"""Runs: what callers do with them, and what carries them out."""

from collections.abc import Sequence
from datetime import timedelta

from corral.control.v1 import run_service_pb2_grpc

from control_svc.api.run_service import RunServicer
from control_svc.assembly.ground import Ground
from control_svc.assembly.models import ModelParts, model_parts
from control_svc.domain.search import Search
from control_svc.storage.run_documents import RunEventDocuments
from control_svc.usecases.agent_loop import AgentLoop
from control_svc.usecases.run_expiry import RunExpiry
from control_svc.usecases.run_tools import RunTools
from control_svc.usecases.run_work import RunHandler
from control_svc.usecases.runs import Runs
from control_svc.usecases.working import JobHandler
from svc_kit.rpc_server import Service


def run_service(ground: Ground) -> Service:
    """What callers do with runs."""
    runs = Runs(
        ground.transactions,
        ground.streams.followers,
        RunEventDocuments(),
        ground.ids,
        ground.tokens,
        ground.clock,
        wait=_wait(ground),
        embedding_model=ground.settings.embedding_model,
    )
    return Service(
        run_service_pb2_grpc.add_RunServiceServicer_to_server,
        RunServicer(runs),
        "corral.control.v1.RunService",
    )


def run_handlers(
    ground: Ground, search: Search, model: ModelParts | None = None
) -> Sequence[JobHandler]:
    """What does the jobs of runs; `model` stands in for the inference service."""
    codec, bounds = RunEventDocuments(), ground.settings.runs
    model = model or model_parts(ground, bounds.turn_timeout_s)
    handler = RunHandler(
        ground.transactions,
        ground.streams.writers,
        codec,
        AgentLoop(model.turns, ground.ids, ground.clock),
        model.counter,
        RunTools(search),
        ground.ids,
        ground.clock,
        wait=_wait(ground),
        concurrency=bounds.runs_at_once,
    )
    return [handler, RunExpiry(codec)]


def _wait(ground: Ground) -> timedelta:
    return timedelta(seconds=ground.settings.runs.expire_after_s)
