"""Builds responses, their job handler, and the runner of batch lines."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from control_svc.agent.loop import AgentLoop
from control_svc.agent.mcp import McpServers, NoMcpServers
from control_svc.batches.line_client import ResponseRunner
from control_svc.config import McpServerSettings
from control_svc.core import SEAL_KEY, Core, Slice, shared_secret
from control_svc.inference.prefix_cleanup import PrefixCleanup
from control_svc.inference.slice import ModelParts
from control_svc.limits.buckets import RateLimits
from control_svc.responses.compaction import Compactor
from control_svc.responses.content_cipher import ContentCipher
from control_svc.responses.context import ResponseFactory
from control_svc.responses.ephemeral import EphemeralResponses
from control_svc.responses.response_retry import retry_response
from control_svc.responses.service import Responses
from control_svc.responses.servicer import (
    ResponseLines,
    ResponseServicer,
    delete_expired_responses,
)
from control_svc.responses.tools import ResponseTools
from control_svc.responses.worker import KIND, ResponseWorker
from control_svc.vector_stores.search.model import Search
from svc_kit.encryption import KEY_BYTES, Sealer


@dataclass(frozen=True, kw_only=True)
class ResponseSlice(Slice):
    """Responses, and what runs the lines of batches."""

    run_line: ResponseRunner


async def build(
    core: Core, search: Search, model: ModelParts, prefixes: PrefixCleanup
) -> ResponseSlice:
    """Build the slice. Raises StartupError."""
    bounds = core.settings.responses
    cipher = ContentCipher(Sealer(await shared_secret(core.database, SEAL_KEY, KEY_BYTES)))
    servers = _mcp_servers(core.settings.mcp_servers)
    tools = ResponseTools(search, servers, core.ids, core.clock)
    worker = ResponseWorker(
        core.transactions,
        core.streams.committer,
        AgentLoop(model.turns, core.ids, core.clock),
        model.counter,
        bounds.at_once,
        Compactor(model.turns, model.counter, cipher, core.ids, core.clock, bounds.summary_tokens),
        cipher,
        tools,
        core.clock,
    )
    factory = ResponseFactory(
        model.models, cipher, tools, core.ids, core.clock, timedelta(seconds=bounds.keep_s)
    )
    responses = Responses(core.transactions, core.streams.reader, factory, core.ids)
    answering = EphemeralResponses(responses, worker, model.turns, core.ids)
    limits = RateLimits(core.across_projects)
    return ResponseSlice(
        servicers=[ResponseServicer(*core.shared, responses, answering, limits, cipher, prefixes)],
        handlers=[worker],
        retries={KIND: retry_response},
        cleanup=[delete_expired_responses(prefixes)],
        run_line=ResponseLines(answering).answer,
    )


def _mcp_servers(settings: Sequence[McpServerSettings]) -> McpServers:
    """The MCP servers of the settings. Raises StartupError."""
    if not settings:
        return NoMcpServers()
    # Imported here because the package mcp is slow to import and seldom needed.
    from control_svc.agent.mcp_client import mcp_servers

    return mcp_servers(settings)
