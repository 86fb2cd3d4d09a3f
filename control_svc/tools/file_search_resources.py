"""Vector stores of `file_search`: those named by callers, those created with an assistant or a
thread, and the store of a thread for files attached to its messages.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Protocol, TypeVar

from control_svc.base.ids import VECTOR_STORE, IdSource
from control_svc.base.versioning import Versioned
from control_svc.db.transaction import Clock, Transaction
from control_svc.tools.model import FileSearchTool, Tool, ToolResources
from control_svc.vector_stores.membership import FileAdder
from control_svc.vector_stores.model import NewStoreFile, NewVectorStore, StoreState
from control_svc.vector_stores.queries import VectorStoreQueries
from svc_kit.errors import VectorStoreNotFound

THREAD_STORE_LIFE_DAYS: Final = 7
"""Days after its last use when the store of a thread expires, as in OpenAI's API."""
_SEARCH: Final = "tool_resources.file_search"


class ToolStores:
    """Creates and fills vector stores of an object, which the transaction has locked or creates."""

    def __init__(self, ids: IdSource, clock: Clock, embedding_model: str | None) -> None:
        """`embedding_model` is None if the installation has none; files cannot be searched then."""
        self._ids = ids
        self._clock = clock
        self._adder = FileAdder(ids, clock, embedding_model)

    async def create(
        self,
        tx: Transaction,
        resources: ToolResources,
        new_stores: Sequence[NewVectorStore],
        path: str = "",
    ) -> ToolResources:
        """Create the stores of a new object; return its resources with them.

        `path` is the prefix of field names in errors. Raises VectorStoreNotFound, FileNotFound or,
        if there are files, EmbeddingModelMissing.
        """
        await check_resource_stores(tx, resources, path)
        created = [await self._create_store(tx, new, path) for new in new_stores]
        return ToolResources(vector_store_ids=(*resources.vector_store_ids, *created))

    async def attach(
        self, tx: Transaction, resources: ToolResources, file_ids: Sequence[str]
    ) -> ToolResources:
        """Add files to the store of `resources`, or to a new store; return the resources.

        Raises EmbeddingModelMissing or FileNotFound.
        """
        if not file_ids:
            return resources
        self._adder.check_model()
        if not await self._has_store(tx, resources):
            store_id = await self._create_store(
                tx, NewVectorStore(life_days=THREAD_STORE_LIFE_DAYS)
            )
            resources = ToolResources(vector_store_ids=(store_id,))
        (store_id,) = resources.vector_store_ids
        files = [NewStoreFile(file_id=file_id) for file_id in file_ids]
        await self._adder.add(tx, store_id, files)
        return resources

    async def _has_store(self, tx: Transaction, resources: ToolResources) -> bool:
        """Whether the store of `resources` exists and accepts files."""
        for store_id in resources.vector_store_ids:
            try:
                store = await VectorStoreQueries(tx).get(store_id)
            except VectorStoreNotFound:
                return False
            return store.state(self._clock()) is not StoreState.EXPIRED
        return False

    async def _create_store(self, tx: Transaction, new: NewVectorStore, path: str = "") -> str:
        store = new.make(self._ids.new(VECTOR_STORE), self._clock())
        await VectorStoreQueries(tx).add(store)
        if new.files:
            self._adder.check_model()
            field = f"{path}{_SEARCH}.vector_stores[0].file_ids"
            await self._adder.add(tx, store.id, new.files, field=field)
        return store.id


async def check_resource_stores(tx: Transaction, resources: ToolResources, path: str = "") -> None:
    """Validate that the stores exist. Raises VectorStoreNotFound; `path` prefixes its field."""
    field = f"{path}{_SEARCH}.vector_store_ids"
    await _check_exist(tx, resources.vector_store_ids, field)


async def check_tool_stores(tx: Transaction, tools: Sequence[Tool]) -> None:
    """Validate that the stores named by tools exist. Raises VectorStoreNotFound."""
    for index, tool in enumerate(tools):
        if isinstance(tool, FileSearchTool):
            field = f"tools[{index}].vector_store_ids"
            await _check_exist(tx, tool.vector_store_ids, field)


async def _check_exist(tx: Transaction, store_ids: Sequence[str], field: str) -> None:
    for store_id in store_ids:
        try:
            await VectorStoreQueries(tx).get(store_id)
        except VectorStoreNotFound:
            raise VectorStoreNotFound(vector_store=store_id, field=field) from None


class _Settings(Protocol):
    @property
    def resources(self) -> ToolResources: ...

    def check(self) -> None: ...


EditableT = TypeVar("EditableT", bound=_Settings)
VersionedT = TypeVar("VersionedT", bound=Versioned[Any])


def settings_edit(
    edit: Callable[[EditableT], EditableT], etag: str
) -> Callable[[Transaction, VersionedT], Awaitable[VersionedT]]:
    """Return the change of a locked object: `edit` applied to its settings.

    It raises StaleGeneration, VectorStoreNotFound, and the errors of the settings' `check`.
    """

    async def change(tx: Transaction, current: VersionedT) -> VersionedT:
        current.check_etag(etag)
        settings = edit(current.settings)
        settings.check()
        if settings.resources != current.settings.resources:
            await check_resource_stores(tx, settings.resources)
        return current.with_settings(settings)

    return change
