"""Vector stores of `file_search`: those named by callers, those created with an assistant or a
thread, and the store of a thread for files attached to its messages.
"""

from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeVar

from control_svc.base.ids import VECTOR_STORE, IdSource
from control_svc.base.versioning import Versioned
from control_svc.db.transaction import Clock, Transaction
from control_svc.tools.model import FileSearchTool, Tool, ToolResources
from control_svc.vector_stores.membership import FileAdder
from control_svc.vector_stores.model import NewStoreFile, NewVectorStore, StoreState
from control_svc.vector_stores.queries import VectorStoreQueries
from svc_kit.errors import FileNotFound, VectorStoreNotFound

LIFE_DAYS: Final = 7
"""How long the store of a thread outlives its last use, as at OpenAI."""
_SEARCH: Final = "tool_resources.file_search"


class ToolStores:
    """Works within a transaction that has locked the object, or makes it."""

    def __init__(self, ids: IdSource, clock: Clock, embedding_model: str | None) -> None:
        """`embedding_model` None: the installation has none, and no file can be searched."""
        self._ids = ids
        self._clock = clock
        self._adder = FileAdder(ids, clock, embedding_model)

    async def made(
        self,
        tx: Transaction,
        project: str,
        resources: ToolResources,
        new_stores: Sequence[NewVectorStore],
        path: str = "",
    ) -> ToolResources:
        """The resources of a new object, with the stores that are made with it.

        `path` is where in the request the object stands. Raises VectorStoreNotFound, FileNotFound
        or, where there are files, EmbeddingModelMissing.
        """
        await check_stores(tx, project, resources, path)
        created = [await self._begin(tx, project, new, path) for new in new_stores]
        return ToolResources(vector_store_ids=(*resources.vector_store_ids, *created))

    async def attach(
        self, tx: Transaction, project: str, resources: ToolResources, file_ids: Sequence[str]
    ) -> ToolResources:
        """Add files to the store of `resources`, or to a new store; return the resources.

        Raises EmbeddingModelMissing or FileNotFound.
        """
        if not file_ids:
            return resources
        self._adder.check_model()
        if not await self._has_store(tx, project, resources):
            store_id = await self._begin(tx, project, NewVectorStore(life_days=LIFE_DAYS))
            resources = ToolResources(vector_store_ids=(store_id,))
        (store_id,) = resources.vector_store_ids
        files = [NewStoreFile(file_id=file_id) for file_id in file_ids]
        await self._adder.add(tx, project, store_id, files)
        return resources

    async def _has_store(self, tx: Transaction, project: str, resources: ToolResources) -> bool:
        """Whether there is a store that accepts files: one may be deleted or expired."""
        for store_id in resources.vector_store_ids:
            try:
                store = await VectorStoreQueries(tx).get(project, store_id)
            except VectorStoreNotFound:
                return False
            return store.state(self._clock()) is not StoreState.EXPIRED
        return False

    async def _begin(
        self, tx: Transaction, project: str, new: NewVectorStore, path: str = ""
    ) -> str:
        store = new.make(self._ids.new(VECTOR_STORE), self._clock())
        await VectorStoreQueries(tx).add(project, store)
        if new.files:
            self._adder.check_model()
            try:
                await self._adder.add(tx, project, store.id, new.files)
            except FileNotFound as error:
                field = f"{path}{_SEARCH}.vector_stores[0].file_ids"
                raise FileNotFound(file=error.file, field=field) from None
        return store.id


async def check_stores(
    tx: Transaction, project: str, resources: ToolResources, path: str = ""
) -> None:
    """That the stores are there. Raises VectorStoreNotFound, with the field behind `path`."""
    field = f"{path}{_SEARCH}.vector_store_ids"
    await _check_there(tx, project, resources.vector_store_ids, field)


async def check_tool_stores(tx: Transaction, project: str, tools: Sequence[Tool]) -> None:
    """That the stores which tools name themselves are there. Raises VectorStoreNotFound."""
    for index, tool in enumerate(tools):
        if isinstance(tool, FileSearchTool):
            field = f"tools[{index}].vector_store_ids"
            await _check_there(tx, project, tool.vector_store_ids, field)


async def _check_there(tx: Transaction, project: str, store_ids: Sequence[str], field: str) -> None:
    for store_id in store_ids:
        try:
            await VectorStoreQueries(tx).get(project, store_id)
        except VectorStoreNotFound:
            raise VectorStoreNotFound(vector_store=store_id, field=field) from None


class _Settings(Protocol):
    @property
    def resources(self) -> ToolResources: ...

    def check(self) -> None: ...


EditableT = TypeVar("EditableT", bound=_Settings)


async def apply_update(
    tx: Transaction,
    project: str,
    found: Versioned[EditableT],
    edit: Callable[[EditableT], EditableT],
    etag: str,
) -> EditableT:
    """The settings that `edit` makes of those of an object, which is locked.

    Raises StaleGeneration, VectorStoreNotFound, and what the settings' check does.
    """
    found.check_etag(etag)
    settings = edit(found.settings)
    settings.check()
    if settings.resources != found.settings.resources:
        await check_stores(tx, project, settings.resources)
    return settings
