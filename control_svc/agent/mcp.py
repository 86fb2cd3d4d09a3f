"""Tools of MCP servers: the interface to configured servers, names of tools, approvals."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

import orjson

from control_svc.agent.model import HostedCall, HostedTool
from control_svc.inference.turns import TurnTool
from control_svc.items.model import (
    ITEM_PREFIXES,
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

APPROVAL_KINDS: Final = ("mcp_approval_request", "mcp_approval_response")
"""What `check_approvals` looks at."""
MAX_NAME_CHARACTERS: Final = 64
"""The name of the function that the model is shown."""
_NO_NAME: Final = re.compile(r"[^A-Za-z0-9_-]")


class McpFailed(Exception):
    """A remote server did not do what it was asked; the text is for the model and the caller."""


class McpServers(Protocol):
    """The remote servers that the operator has named; no others are ever called."""

    @property
    def labels(self) -> Collection[str]:
        """Their names."""

    async def tools(self, label: str) -> Sequence[McpToolDescription]:
        """What a server offers now. Raises McpFailed."""

    async def call(self, label: str, name: str, arguments: Mapping[str, object]) -> str:
        """What a tool answers. Called once, never tried again. Raises McpFailed."""


def needs_approval(tool: McpTool, name: str) -> bool:
    """Whether a person has to allow each call of a server's tool."""
    return (tool.require_approval == "always") is not (name in tool.approval_exempt)


def function_names(
    tools: Sequence[Tool], lists: Mapping[str, McpListTools]
) -> Mapping[tuple[str, str], str]:
    """What the model calls each tool that it may call of a server, by label and name.

    A tool keeps its name where no other tool of the request has it; the same request has the same
    names in every turn.
    """
    taken = {t.name for t in tools if isinstance(t, FunctionTool | CustomTool)}
    taken |= {t.kind for t in tools if isinstance(t, FileSearchTool)}
    names: dict[tuple[str, str], str] = {}
    for tool in tools:
        if isinstance(tool, McpTool):
            for described in offered(tool, lists):
                name = next(n for n in _names(tool.server_label, described.name) if n not in taken)
                names[tool.server_label, described.name] = name
                taken.add(name)
    return names


def offered(tool: McpTool, lists: Mapping[str, McpListTools]) -> list[McpToolDescription]:
    """Those of a server's tools that the caller allows."""
    listed = lists.get(tool.server_label, McpListTools(server_label=tool.server_label))
    allowed = tool.allowed_tools
    by_name = {each.name: each for each in listed.tools}
    return [each for name, each in by_name.items() if allowed is None or name in allowed]


def _names(label: str, name: str) -> Iterator[str]:
    """What a tool may be called, the best first."""
    yield _NO_NAME.sub("_", name)[:MAX_NAME_CHARACTERS] or "_"
    long = _NO_NAME.sub("_", f"{label}_{name}")
    yield long[:MAX_NAME_CHARACTERS]
    number = 2
    while True:
        suffix = f"_{number}"
        yield long[: MAX_NAME_CHARACTERS - len(suffix)] + suffix
        number += 1


def lists_of(items: Sequence[Item]) -> dict[str, McpListTools]:
    """The latest list of tools of each server."""
    contents = (item.content for item in items)
    return {c.server_label: c for c in contents if isinstance(c, McpListTools)}


def check_approvals(before: Sequence[Item], given: Sequence[Item]) -> None:
    """That a person's words are about calls that wait for them, each once; a caller who keeps the
    list himself gives the question with the word. Raises InvalidField."""
    waiting = {item.id for item in before if isinstance(item.content, McpApprovalRequest)}
    contents = [item.content for item in before]
    answers = (McpApprovalResponse, McpCall)
    waiting -= {c.approval_request_id for c in contents if isinstance(c, answers)}
    for index, item in enumerate(given):
        if isinstance(item.content, McpApprovalRequest):
            waiting.add(item.id)
        if isinstance(item.content, McpApprovalResponse):
            request = item.content.approval_request_id
            if request not in waiting:
                raise InvalidField(
                    field=f"input[{index}].approval_request_id",
                    problem=f"no call waits for a word about '{request}'",
                )
            waiting.remove(request)


def allowed_calls(items: Sequence[Item], own: Sequence[Item]) -> list[McpCall]:
    """The approved calls of a response that have not started. `items` are all items, `own` those of
    the response.
    """
    wanted = {i.id: i.content for i in items if isinstance(i.content, McpApprovalRequest)}
    contents = [item.content for item in own]
    started = {c.approval_request_id for c in contents if isinstance(c, McpCall)}
    words = [c for c in contents if isinstance(c, McpApprovalResponse) and c.approve]
    return [
        McpCall(
            server_label=request.server_label,
            name=request.name,
            arguments=request.arguments,
            approval_request_id=word.approval_request_id,
        )
        for word in words
        if word.approval_request_id not in started
        and (request := wanted.get(word.approval_request_id)) is not None
    ]


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
        """The description that the model is shown."""
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
