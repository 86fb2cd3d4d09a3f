"""What a response does with remote servers before its model begins: it asks them what they offer,
once in a chain of responses, and takes up the calls that a person has allowed."""

from collections.abc import Sequence
from typing import NamedTuple

from control_svc.domain.ids import IdSource
from control_svc.domain.items import ITEM_PREFIXES, Content, Item, ItemStatus, McpListTools
from control_svc.domain.mcp import McpFailed, McpServers, allowed_calls, lists_of
from control_svc.domain.ports import Clock
from control_svc.domain.tools import McpTool, Tool
from control_svc.usecases.response_narrating import ResponseNarrator
from svc_kit.errors import InvalidField


class Prepared(NamedTuple):
    """Items that are told and kept."""

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
        self, narrator: ResponseNarrator, items: Sequence[Item], own: Sequence[Item]
    ) -> Prepared:
        """Ask and take up what has not been yet. Raises InvalidField for an allowed call of a
        server that the response does not name."""
        tools = narrator.response.settings.tools
        calls = allowed_calls(items, own)
        labels = [tool.server_label for tool in tools if isinstance(tool, McpTool)]
        for call in calls:
            if call.server_label not in labels:
                problem = f"the call that was allowed needs the server '{call.server_label}'"
                raise InvalidField(field="tools", problem=problem)
        prepared = Prepared([], [])
        for label in _unasked(tools, items, own):
            await narrator.begin()
            listed = self._item(await self._list(label), ItemStatus.COMPLETED)
            await narrator.made(listed)
            prepared.lists.append(listed)
        if calls:
            prepared.calls.extend(self._item(call, ItemStatus.IN_PROGRESS) for call in calls)
            await narrator.begin()
            await narrator.made(*prepared.calls)
        return prepared

    async def _list(self, label: str) -> McpListTools:
        try:
            tools = await self._servers.tools(label)
        except McpFailed as failed:
            return McpListTools(server_label=label, problem=str(failed))
        return McpListTools(server_label=label, tools=tuple(tools))

    def _item(self, content: Content, status: ItemStatus) -> Item:
        new_id = self._ids.new(ITEM_PREFIXES[type(content)])
        return Item(id=new_id, status=status, created_at=self._clock(), content=content)


def _unasked(tools: Sequence[Tool], items: Sequence[Item], own: Sequence[Item]) -> list[str]:
    """The servers that have not said what they offer. One that could not be asked is asked again
    by the next response, not by the same one."""
    known = {label for label, listed in lists_of(items).items() if not listed.problem}
    known |= set(lists_of(own))
    return [t.server_label for t in tools if isinstance(t, McpTool) and t.server_label not in known]
