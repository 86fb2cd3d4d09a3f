"""The tools that the server carries out for responses: the search of files, and those of remote
servers."""

from collections.abc import Sequence

from control_svc.domain.hosted_tools import HostedTool
from control_svc.domain.items import Item
from control_svc.domain.mcp import McpServers, lists_of
from control_svc.domain.search import Search
from control_svc.domain.tools import FileSearchTool, McpTool, Tool
from control_svc.usecases.file_search import FileSearch
from control_svc.usecases.mcp_tools import mcp_tools
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
        """Those of a response; `items`, everything that was said, has what servers offer."""
        searches = [
            FileSearch(self._search, tool.vector_store_ids, tool)
            for tool in tools
            if isinstance(tool, FileSearchTool)
        ]
        return [*searches, *mcp_tools(self._servers, tools, lists_of(items))]
