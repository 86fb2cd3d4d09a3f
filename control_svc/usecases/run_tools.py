"""The tools that the server carries out for runs: the search of files."""

from collections.abc import Sequence

from control_svc.domain.hosted_tools import HostedTool
from control_svc.domain.runs import Run
from control_svc.domain.search import Search
from control_svc.domain.tools import FileSearchTool
from control_svc.usecases.file_search import FileSearch


class RunTools:
    """What runs may use."""

    def __init__(self, search: Search) -> None:
        self._search = search

    def of_run(self, run: Run) -> Sequence[HostedTool]:
        """Those of a run; a search of no store is not offered to the model."""
        wanted = [tool for tool in run.settings.tools if isinstance(tool, FileSearchTool)]
        stores = run.settings.resources.vector_store_ids
        return [FileSearch(self._search, stores, tool) for tool in wanted if stores]
