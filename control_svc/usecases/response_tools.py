"""The tools that the server carries out for responses: the search of files."""

from collections.abc import Sequence

from control_svc.domain.hosted_tools import HostedTool
from control_svc.domain.search import Search
from control_svc.domain.tools import FileSearchTool, McpTool, Tool
from control_svc.usecases.file_search import FileSearch
from svc_kit.errors import MissingField, UnsupportedValue


class ResponseTools:
    """What responses may use."""

    def __init__(self, search: Search) -> None:
        self._search = search

    def check(self, tools: Sequence[Tool]) -> None:
        """Raises UnsupportedValue for a tool that is not had here, or MissingField."""
        for index, tool in enumerate(tools):
            path = f"tools[{index}]"
            if isinstance(tool, McpTool):
                raise UnsupportedValue(field=f"{path}.type", value=tool.kind)
            if isinstance(tool, FileSearchTool) and not tool.vector_store_ids:
                raise MissingField(field=f"{path}.vector_store_ids")

    def hosted(self, tools: Sequence[Tool]) -> Sequence[HostedTool]:
        """Those of a response."""
        return [
            FileSearch(self._search, tool.vector_store_ids, tool)
            for tool in tools
            if isinstance(tool, FileSearchTool)
        ]
