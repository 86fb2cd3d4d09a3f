"""Hosted tools of responses: `file_search` and MCP servers, with approvals."""

from collections.abc import Sequence
from typing import NamedTuple

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
    McpListTools,
)
from control_svc.responses.model import Response
from control_svc.responses.queries import ResponseQueries
from control_svc.responses.recorder import ResponseRecorder
from control_svc.tools.model import FileSearchTool, McpTool, Tool
from control_svc.vector_stores.search.model import Search
from svc_kit.errors import InvalidField, MissingField, UnsupportedValue


class ResponseTools:
    """What responses may use."""

    def __init__(self, search: Search, servers: McpServers) -> None:
        self._search = search
        self._servers = servers

    def check(self, tools: Sequence[Tool]) -> None:
        """Raises UnsupportedValue for a server that the operator has not named, InvalidField,
        MissingField or, for a search without a model for it, EmbeddingModelMissing."""
        labels: set[str] = set()
        for index, tool in enumerate(tools):
            path = f"tools[{index}]"
            if isinstance(tool, McpTool):
                label = tool.server_label
                if label not in self._servers.labels:
                    raise UnsupportedValue(field=f"{path}.server_label", value=label)
                if label in labels:
                    problem = f"there is another tool with the server '{label}'"
                    raise InvalidField(field=f"{path}.server_label", problem=problem)
                labels.add(label)
            if isinstance(tool, FileSearchTool):
                if not tool.vector_store_ids:
                    raise MissingField(field=f"{path}.vector_store_ids")
                self._search.check_model()

    def hosted(self, tools: Sequence[Tool], items: Sequence[Item]) -> Sequence[HostedTool]:
        """The tools of a response; `items` has the lists of tools of MCP servers."""
        searches = [
            FileSearch(self._search, tool.vector_store_ids, tool)
            for tool in tools
            if isinstance(tool, FileSearchTool)
        ]
        return [*searches, *mcp_tools(self._servers, tools, latest_tool_lists(items))]


async def check_approvals_once(
    tx: Transaction,
    project: str,
    response: Response,
    before: Sequence[Item],
    given: Sequence[Item],
    *,
    locks: bool,
) -> None:
    """Validate that approvals of a new response refer to calls that still wait for them. `locks`
    serializes other responses with such approvals until the end of the transaction. Raises
    InvalidField.
    """
    spent: Sequence[Item] = ()
    if response.previous_id and any(map(_allows, given)):
        if locks:
            await ResponseQueries(tx).lock(project, response.previous_id)
        spent = await ResponseQueries(tx).words_after(project, response.previous_id)
    check_approvals([*before, *spent], given)


def _allows(item: Item) -> bool:
    return isinstance(item.content, McpApprovalResponse) and item.content.approve


class Prepared(NamedTuple):
    """Items to record."""

    lists: list[Item]
    calls: list[Item]
    """In progress: they have not been begun."""

    @property
    def items(self) -> list[Item]:
        """All of them."""
        return [*self.lists, *self.calls]


class McpPreparing:
    """Prepares the remote tools of responses."""

    def __init__(self, servers: McpServers, ids: IdSource, clock: Clock) -> None:
        self._servers = servers
        self._ids = ids
        self._clock = clock

    async def prepare(
        self, recorder: ResponseRecorder, items: Sequence[Item], own: Sequence[Item]
    ) -> Prepared:
        """Ask and take up what has not been yet. Raises InvalidField for an allowed call of a
        server that the response does not name."""
        tools = recorder.response.settings.tools
        calls = approved_calls(items, own)
        labels = [tool.server_label for tool in tools if isinstance(tool, McpTool)]
        for call in calls:
            if call.server_label not in labels:
                problem = f"the call that was allowed needs the server '{call.server_label}'"
                raise InvalidField(field="tools", problem=problem)
        prepared = Prepared([], [])
        for label in _unasked(tools, items, own):
            await recorder.begin()
            listed = self._item(await self._list(label), ItemStatus.COMPLETED)
            await recorder.made(listed)
            prepared.lists.append(listed)
        if calls:
            prepared.calls.extend(self._item(call, ItemStatus.IN_PROGRESS) for call in calls)
            await recorder.begin()
            await recorder.made(*prepared.calls)
        return prepared

    async def _list(self, label: str) -> McpListTools:
        try:
            tools = await self._servers.tools(label)
        except McpError as failed:
            return McpListTools(server_label=label, problem=str(failed))
        return McpListTools(server_label=label, tools=tuple(tools))

    def _item(self, content: Content, status: ItemStatus) -> Item:
        new_id = self._ids.new(ITEM_PREFIXES[type(content)])
        return Item(id=new_id, status=status, created_at=self._clock(), content=content)


def _unasked(tools: Sequence[Tool], items: Sequence[Item], own: Sequence[Item]) -> list[str]:
    """The servers whose tools are not listed yet. One that failed is asked again by the next
    response.
    """
    known = {label for label, listed in latest_tool_lists(items).items() if not listed.problem}
    known |= set(latest_tool_lists(own))
    return [t.server_label for t in tools if isinstance(t, McpTool) and t.server_label not in known]
