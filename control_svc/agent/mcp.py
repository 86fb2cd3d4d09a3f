"""Tools of MCP servers: the interface to configured servers, function names, and approvals."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import orjson

from control_svc.agent.model import HostedCall, HostedTool
from control_svc.inference.turns import TurnTool
from control_svc.items.model import (
    APPROVAL_KINDS,
    ITEM_PREFIXES,
    CallPart,
    Content,
    Item,
    McpApprovalRequest,
    McpApprovalResponse,
    McpCall,
    McpListTools,
    McpToolDescription,
)
from control_svc.tools.model import CustomTool, FileSearchTool, FunctionTool, McpTool, Tool
from svc_kit.errors import InvalidField

MAX_NAME_CHARACTERS: Final = 64
"""Maximum length of the function name that the model is shown."""
_INVALID_CHARACTER: Final = re.compile(r"[^A-Za-z0-9_-]")


class McpError(Exception):
    """A call of an MCP server failed; the message is shown to the model and the caller."""


class McpServers(Protocol):
    """The MCP servers in the settings; no others are ever called."""

    @property
    def labels(self) -> Collection[str]:
        """The labels of the servers."""

    async def tools(self, label: str) -> Sequence[McpToolDescription]:
        """List the tools that a server offers now. Raises McpError."""

    async def call(self, label: str, name: str, arguments: Mapping[str, object]) -> str:
        """Call a tool once, without retries, and return its output. Raises McpError."""


class NoMcpServers:
    """`McpServers` of settings without any."""

    labels: Collection[str] = ()

    async def tools(self, label: str) -> Sequence[McpToolDescription]:
        """Raise McpError."""
        raise McpError(f"There is no server '{label}'.")

    async def call(self, label: str, name: str, arguments: Mapping[str, object]) -> str:
        """Raise McpError."""
        raise McpError(f"There is no server '{label}'.")


def needs_approval(tool: McpTool, name: str) -> bool:
    """Whether each call of a server's tool needs approval."""
    return (tool.require_approval == "always") is not (name in tool.approval_exempt)


def function_names(
    tools: Sequence[Tool], lists: Mapping[str, McpListTools]
) -> Mapping[tuple[str, str], str]:
    """The function name that the model is shown for each tool, by server label and tool name.

    A tool keeps its own name unless another tool of the request has it. Equal requests have equal
    names in every turn.
    """
    used = {t.name for t in tools if isinstance(t, FunctionTool | CustomTool)}
    used |= {t.kind for t in tools if isinstance(t, FileSearchTool)}
    names: dict[tuple[str, str], str] = {}
    for tool in tools:
        if isinstance(tool, McpTool):
            for each in allowed_tools(tool, lists):
                name = next(n for n in _candidates(tool.server_label, each.name) if n not in used)
                names[tool.server_label, each.name] = name
                used.add(name)
    return names


def allowed_tools(tool: McpTool, lists: Mapping[str, McpListTools]) -> list[McpToolDescription]:
    listed = lists.get(tool.server_label, McpListTools(server_label=tool.server_label))
    allowed = tool.allowed_tools
    by_name = {each.name: each for each in listed.tools}
    return [each for name, each in by_name.items() if allowed is None or name in allowed]


def _candidates(label: str, name: str) -> Iterator[str]:
    """Possible function names of a tool, the best first."""
    yield _INVALID_CHARACTER.sub("_", name)[:MAX_NAME_CHARACTERS] or "_"
    long = _INVALID_CHARACTER.sub("_", f"{label}_{name}")
    yield long[:MAX_NAME_CHARACTERS]
    number = 2
    while True:
        suffix = f"_{number}"
        yield long[: MAX_NAME_CHARACTERS - len(suffix)] + suffix
        number += 1


def latest_tool_lists(items: Sequence[Item]) -> dict[str, McpListTools]:
    """The latest tool list of each server, by label."""
    contents = (item.content for item in items)
    return {c.server_label: c for c in contents if isinstance(c, McpListTools)}


def check_approvals(before: Sequence[CallPart], given: Sequence[Item]) -> None:
    """Validate that each approval refers to a pending request, and is the only one for it.

    A client that stores the items itself sends the request together with the approval. Raises
    InvalidField.
    """
    pending = {part.item_id for part in before if part.kind == "mcp_approval_request"}
    pending -= {part.call_id for part in before if part.kind in APPROVAL_KINDS}
    for index, item in enumerate(given):
        if isinstance(item.content, McpApprovalRequest):
            pending.add(item.id)
        if isinstance(item.content, McpApprovalResponse):
            request = item.content.approval_request_id
            if request not in pending:
                raise InvalidField(
                    field=f"input[{index}].approval_request_id",
                    problem=f"there is no pending approval request '{request}'",
                )
            pending.remove(request)


def approved_calls(items: Sequence[Item], own: Sequence[Item]) -> list[McpCall]:
    """The approved calls of a response that have not started. `items` are all items, `own` those of
    the response.
    """
    requests = {i.id: i.content for i in items if isinstance(i.content, McpApprovalRequest)}
    contents = [item.content for item in own]
    started = {c.approval_request_id for c in contents if isinstance(c, McpCall)}
    approvals = [c for c in contents if isinstance(c, McpApprovalResponse) and c.approve]
    return [
        McpCall(
            server_label=request.server_label,
            name=request.name,
            arguments=request.arguments,
            approval_request_id=approval.approval_request_id,
        )
        for approval in approvals
        if approval.approval_request_id not in started
        and (request := requests.get(approval.approval_request_id)) is not None
    ]


_UNKNOWN: Final = "The call was interrupted: it may have been executed, and it is not repeated."


def mcp_tools(
    servers: McpServers, tools: Sequence[Tool], lists: Mapping[str, McpListTools]
) -> list[HostedTool]:
    """The MCP tools of a request: for each server, one group whose calls are executed at once, and
    one whose calls wait for approval.
    """
    names = function_names(tools, lists)
    hosted: list[HostedTool] = []
    for tool in tools:
        if isinstance(tool, McpTool):
            by_name = {names[tool.server_label, d.name]: d for d in allowed_tools(tool, lists)}
            for asks in (False, True):
                group = {n: d for n, d in by_name.items() if needs_approval(tool, d.name) is asks}
                hosted.append(McpServerTools(servers, tool.server_label, group, asks=asks))
    return hosted


@dataclass(frozen=True)
class McpServerTools:
    """The `HostedTool` that calls tools of an MCP server, or requests approval to call them."""

    kind = "mcp"
    is_repeatable = False

    servers: McpServers
    label: str
    tools: Mapping[str, McpToolDescription]
    """By function name."""
    asks: bool
    """Whether calls become approval requests."""

    @property
    def functions(self) -> Sequence[TurnTool]:
        """The tools that the model is shown."""
        return [
            TurnTool(name, tool.description, tool.input_schema_json)
            for name, tool in self.tools.items()
        ]

    @property
    def item_prefix(self) -> str:
        """Prefix of the ids of calls or of approval requests."""
        return ITEM_PREFIXES[McpApprovalRequest if self.asks else McpCall]

    def intent(self, call: HostedCall) -> Content:
        """The call, or the request to approve it."""
        name = self.tools[call.name].name
        if self.asks:
            return McpApprovalRequest(server_label=self.label, name=name, arguments=call.arguments)
        return McpCall(server_label=self.label, name=name, arguments=call.arguments)

    def handles(self, content: Content) -> bool:
        return isinstance(content, McpCall) and content.server_label == self.label

    async def run(self, project: str, intent: Item) -> Content:
        """Execute the call; return it with the tool's output, or with the problem."""
        call = intent.content
        if not isinstance(call, McpCall):
            return call
        arguments = _arguments(call.arguments)
        if arguments is None:
            return replace(call, problem="The arguments are not a JSON object.")
        try:
            output = await self.servers.call(self.label, call.name, arguments)
        except McpError as error:
            return replace(call, problem=str(error))
        return replace(call, output=output)

    def abandon(self, intent: Item) -> Content:
        """The interrupted call, with a problem that says so."""
        call = intent.content
        return replace(call, problem=_UNKNOWN) if isinstance(call, McpCall) else call


def _arguments(text: str) -> dict[str, Any] | None:
    try:
        parsed = orjson.loads(text or "{}")
    except orjson.JSONDecodeError:
        return None
    return parsed if isinstance(parsed, dict) else None
