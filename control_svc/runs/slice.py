"""Builds runs and their job handlers."""

from datetime import timedelta

from control_svc.agent.loop import AgentLoop
from control_svc.assistants.messages import MessageAdder
from control_svc.core import Core, Slice
from control_svc.inference.slice import ModelParts
from control_svc.limits.buckets import RateLimits
from control_svc.runs.run_retry import retry_run
from control_svc.runs.service import Runs
from control_svc.runs.transitions import EXPIRY_KIND, RunExpiry, retry_expiry
from control_svc.runs.worker import KIND, RunWorker
from control_svc.vector_stores.search.model import Search


def build(core: Core, search: Search, model: ModelParts) -> Slice:
    wait = timedelta(seconds=core.settings.runs.expire_after_s)
    runs = Runs(
        *core.shared,
        core.streams.reader,
        RateLimits(core.across_projects),
        MessageAdder(core.ids, core.clock, core.settings.embedding_model),
        wait,
    )
    worker = RunWorker(
        core.transactions,
        core.streams.committer,
        AgentLoop(model.turns, core.ids, core.clock),
        model.counter,
        core.settings.runs.runs_at_once,
        search,
        core.ids,
        core.clock,
        wait,
    )
    return Slice(
        servicers=[runs],
        handlers=[worker, RunExpiry()],
        retries={KIND: retry_run, EXPIRY_KIND: retry_expiry},
    )
