"""The tools of a remote server as a tool of the model's: from a call to its result, or to the
question whether it may be made."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import orjson

from control_svc.domain.hosted_tools import HostedCall, HostedTool
from control_svc.domain.items import (
    ITEM_PREFIXES,
    Content,
    Item,
    McpApprovalRequest,
    McpCall,
    McpListTools,
    McpToolDescription,
)
from control_svc.domain.mcp import (
    McpFailed,
    McpServers,
    function_names,
    needs_approval,
    offered,
)
from control_svc.domain.tools import McpTool, Tool
from control_svc.domain.turns import TurnTool

_UNKNOWN: Final = (
    "Nobody knows whether this call was made: it was broken off, and it is not made again."
)


def mcp_tools(
    servers: McpServers, tools: Sequence[Tool], lists: Mapping[str, McpListTools]
) -> list[HostedTool]:
    """The remote tools of a request, in two groups for each server: calls of the one are made at
    once, those of the other wait for a person's word."""
    names = function_names(tools, lists)
    hosted: list[HostedTool] = []
    for tool in tools:
        if isinstance(tool, McpTool):
            described = {names[tool.server_label, d.name]: d for d in offered(tool, lists)}
            for asks in (False, True):
                group = {n: d for n, d in described.items() if needs_approval(tool, d.name) is asks}
                hosted.append(McpServerTools(servers, tool.server_label, group, asks=asks))
    return hosted


class McpServerTools:
    """The `HostedTool` that calls tools of a remote server, or asks whether it may."""

    kind = "mcp"
    is_repeatable = False

    def __init__(
        self,
        servers: McpServers,
        label: str,
        described: Mapping[str, McpToolDescription],
        *,
        asks: bool,
    ) -> None:
        """`described` are the tools by what the model calls them."""
        self._servers = servers
        self._label = label
        self._described = described
        self._asks = asks

    @property
    def functions(self) -> Sequence[TurnTool]:
        """What the model is told."""
        return [
            TurnTool(name, tool.description, tool.input_schema_json)
            for name, tool in self._described.items()
        ]

    @property
    def item_prefix(self) -> str:
        """Calls and questions are different items."""
        return ITEM_PREFIXES[McpApprovalRequest if self._asks else McpCall]

    def intent(self, call: HostedCall) -> Content:
        """The call, or the question whether it may be made."""
        name = self._described[call.name].name
        if self._asks:
            return McpApprovalRequest(server_label=self._label, name=name, arguments=call.arguments)
        return McpCall(server_label=self._label, name=name, arguments=call.arguments)

    def runs(self, content: Content) -> bool:
        """Whether an item is a call of this server."""
        return isinstance(content, McpCall) and content.server_label == self._label

    async def run(self, project: str, intent: Item) -> Content:
        """The call with what the tool answered, or why it did not."""
        call = intent.content
        if not isinstance(call, McpCall):
            return call
        arguments = _arguments(call.arguments)
        if arguments is None:
            return replace(call, problem="The arguments are no JSON object.")
        try:
            output = await self._servers.call(self._label, call.name, arguments)
        except McpFailed as failed:
            return replace(call, problem=str(failed))
        return replace(call, output=output)

    def abandoned(self, intent: Item) -> Content:
        """A call that may have had its effect."""
        call = intent.content
        return replace(call, problem=_UNKNOWN) if isinstance(call, McpCall) else call


def _arguments(text: str) -> dict[str, Any] | None:
    try:
        parsed = orjson.loads(text or "{}")
    except orjson.JSONDecodeError:
        return None
    return parsed if isinstance(parsed, dict) else None
