"""Hosted tools of responses: `file_search` and MCP servers with approvals."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from control_svc.agent.file_search import FileSearch
from control_svc.agent.mcp import (
    McpError,
    McpServers,
    approved_calls,
    check_approvals,
    latest_tool_lists,
    mcp_tools,
)
from control_svc.agent.model import HostedTool
from control_svc.base.ids import IdSource
from control_svc.db.transaction import Clock, Transaction
from control_svc.items.model import (
    ITEM_PREFIXES,
    Content,
    Item,
    ItemStatus,
    McpApprovalResponse,
    McpCall,
    McpListTools,
)
from control_svc.responses.model import Response
from control_svc.responses.queries import ResponseQueries
from control_svc.responses.recorder import ResponseRecorder
from control_svc.tools.model import FileSearchTool, McpTool, Tool
from control_svc.vector_stores.search.model import Search
from svc_kit.errors import InvalidField, MissingField, UnsupportedValue


@dataclass(frozen=True)
class ResponseTools:
    """The hosted tools that responses may use."""

    search: Search
    servers: McpServers

    def check(self, tools: Sequence[Tool]) -> None:
        """Validate the tools of a request.

        Raises UnsupportedValue for an MCP server that is not configured, EmbeddingModelMissing for
        a search without an embedding model, InvalidField or MissingField.
        """
        labels: set[str] = set()
        for index, tool in enumerate(tools):
            path = f"tools[{index}]"
            if isinstance(tool, McpTool):
                label = tool.server_label
                if label not in self.servers.labels:
                    raise UnsupportedValue(field=f"{path}.server_label", value=label)
                if label in labels:
                    problem = f"another tool already uses the server '{label}'"
                    raise InvalidField(field=f"{path}.server_label", problem=problem)
                labels.add(label)
            if isinstance(tool, FileSearchTool):
                if not tool.vector_store_ids:
                    raise MissingField(field=f"{path}.vector_store_ids")
                self.search.check_model()

    def hosted(self, tools: Sequence[Tool], items: Sequence[Item]) -> Sequence[HostedTool]:
        """Return the hosted tools. `items` contain the tool lists of MCP servers."""
        searches = [
            FileSearch(self.search, tool.vector_store_ids, tool)
            for tool in tools
            if isinstance(tool, FileSearchTool)
        ]
        return [*searches, *mcp_tools(self.servers, tools, latest_tool_lists(items))]


async def check_new_approvals(
    tx: Transaction,
    response: Response,
    history: Sequence[Item],
    input_items: Sequence[Item],
    *,
    lock: bool,
) -> None:
    """Validate that approvals in the input of a new response refer to calls that wait for them.

    `lock` serializes responses with approvals of the same calls until the end of the transaction.
    Raises InvalidField.
    """
    later: Sequence[Item] = ()
    if response.previous_id and any(map(_is_approval, input_items)):
        if lock:
            await ResponseQueries(tx).lock(response.previous_id)
        later = await ResponseQueries(tx).later_approvals(response.previous_id)
    check_approvals([*history, *later], input_items)


def _is_approval(item: Item) -> bool:
    return isinstance(item.content, McpApprovalResponse) and item.content.approve


class PreparedItems(NamedTuple):
    """Items that were added before the first turn."""

    tool_lists: Sequence[Item] = ()
    calls: Sequence[Item] = ()
    """Approved calls, in progress and not executed yet."""


NO_ITEMS: Final = PreparedItems()


@dataclass(frozen=True)
class McpPreparer:
    servers: McpServers
    ids: IdSource
    clock: Clock

    async def prepare(
        self, recorder: ResponseRecorder, items: Sequence[Item], own: Sequence[Item]
    ) -> PreparedItems:
        """Add missing tool lists and newly approved calls.

        Raises InvalidField for an approved call of a server or a tool that is not among the tools.
        """
        tools = recorder.response.settings.tools
        calls = approved_calls(items, own)
        for call in calls:
            _check_allowed(call, tools)
        tool_lists: list[Item] = []
        for label in _unlisted_servers(tools, items, own):
            await recorder.begin()
            tool_lists.append(self._item(await self._list_tools(label), ItemStatus.COMPLETED))
            await recorder.add_items(tool_lists[-1])
        call_items = [self._item(call, ItemStatus.IN_PROGRESS) for call in calls]
        if call_items:
            await recorder.begin()
            await recorder.add_items(*call_items)
        return PreparedItems(tool_lists, call_items)

    async def _list_tools(self, label: str) -> McpListTools:
        try:
            tools = await self.servers.tools(label)
        except McpError as failed:
            return McpListTools(server_label=label, problem=str(failed))
        return McpListTools(server_label=label, tools=tuple(tools))

    def _item(self, content: Content, status: ItemStatus) -> Item:
        new_id = self.ids.new(ITEM_PREFIXES[type(content)])
        return Item(id=new_id, status=status, created_at=self.clock(), content=content)


def _check_allowed(call: McpCall, tools: Sequence[Tool]) -> None:
    """Raise InvalidField unless the request allows an approved call: its item may be the caller's,
    or of an earlier response with other tools."""
    servers = {tool.server_label: tool for tool in tools if isinstance(tool, McpTool)}
    server = servers.get(call.server_label)
    if server is None:
        problem = f"the approved call needs the server '{call.server_label}'"
        raise InvalidField(field="tools", problem=problem)
    if server.allowed_tools is not None and call.name not in server.allowed_tools:
        problem = (
            f"the approved call needs '{call.name}' in allowed_tools of '{server.server_label}'"
        )
        raise InvalidField(field="tools", problem=problem)


def _unlisted_servers(
    tools: Sequence[Tool], items: Sequence[Item], own: Sequence[Item]
) -> list[str]:
    """Return the servers whose tools are not listed yet, or failed to be in earlier responses."""
    known = {label for label, listed in latest_tool_lists(items).items() if not listed.problem}
    known |= set(latest_tool_lists(own))
    return [t.server_label for t in tools if isinstance(t, McpTool) and t.server_label not in known]
