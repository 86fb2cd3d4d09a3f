"""Files of vector stores, one by one and in batches: add, list, update, remove, read chunks."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from control_svc.base.idempotency import IdempotencyRecord, record_request
from control_svc.base.ids import FILE, VECTOR_STORE_BATCH, IdSource
from control_svc.base.pagination import Page, PageRequest, PageTokens
from control_svc.base.validation import check_request_id
from control_svc.db.transaction import Clock, Transaction, Transactions
from control_svc.vector_stores.membership import FileAdder, move, remove_file
from control_svc.vector_stores.model import (
    MAX_FILES_OF_BATCH,
    AttributeValue,
    FileBatch,
    FileState,
    NewStoreFile,
    StoreFile,
    check_attributes,
    check_files,
)
from control_svc.vector_stores.queries import FileBatchQueries, StoreFileQueries, VectorStoreQueries
from control_svc.vector_stores.search.chunk_queries import ChunkQueries
from control_svc.vector_stores.service import MAX_PAGE
from svc_kit.errors import MissingField, VectorStoreFileNotFound

DEFAULT_TEXTS: Final = 100
MAX_TEXTS: Final = 500
CREATE: Final = "CreateVectorStoreFile"
CREATE_BATCH: Final = "CreateVectorStoreFileBatch"


@dataclass(frozen=True)
class _Text:
    """A passage of a list that goes by number."""

    id: str
    text: str


class VectorFiles:
    """What callers do with the files of stores."""

    def __init__(
        self,
        transactions: Transactions,
        adder: FileAdder,
        ids: IdSource,
        tokens: PageTokens,
        clock: Clock,
    ) -> None:
        self._transactions = transactions
        self._adder = adder
        self._ids = ids
        self._tokens = tokens
        self._clock = clock

    async def create(
        self, project: str, store_id: str, new: NewStoreFile, request_id: str
    ) -> StoreFile:
        """Put a file into a store; a job reads it.

        Raises MissingField, InvalidField, OutOfRange, TooLong, VectorStoreNotFound,
        VectorStoreExpired, FileNotFound, EmbeddingModelMissing or RequestIdReused.
        """
        new.check()
        self._adder.check_model()
        request = IdempotencyRecord.of(
            CREATE, check_request_id(request_id), new.file_id, self._clock(), store_id, new
        )

        async def add(tx: Transaction) -> StoreFile:
            await record_request(tx, project, request)
            return (await self._adder.add(tx, project, store_id, [new]))[0]

        return await self._transactions.write(add)

    async def get(self, project: str, store_id: str, file_id: str) -> StoreFile:
        """Raises VectorStoreNotFound or VectorStoreFileNotFound."""

        async def find(tx: Transaction) -> StoreFile:
            await VectorStoreQueries(tx).get(project, store_id)
            return await _one(tx, project, store_id, file_id)

        return await self._transactions.read(find)

    async def page(
        self,
        project: str,
        store_id: str,
        page_request: PageRequest,
        batch_id: str = "",
        state: FileState | None = None,
    ) -> Page[StoreFile]:
        """A page of a store's files, or of a batch's. Raises VectorStoreNotFound,
        VectorStoreFileBatchNotFound, OutOfRange or InvalidField."""
        page_request.check_cursors(FILE, "a file")
        binding = (project, "vector_store_files", store_id, batch_id, state or "")
        window = self._tokens.window(page_request, binding, MAX_PAGE)

        async def find(tx: Transaction) -> list[StoreFile]:
            await VectorStoreQueries(tx).get(project, store_id)
            if batch_id:
                await FileBatchQueries(tx).get(project, store_id, batch_id)
            return await StoreFileQueries(tx).page(
                project, store_id, window, batch_id or None, state
            )

        found = await self._transactions.read(find)
        return self._tokens.page(found, window, page_request, binding)

    async def update(
        self, project: str, store_id: str, file_id: str, attributes: dict[str, AttributeValue]
    ) -> StoreFile:
        """Change the attributes of a file. Raises VectorStoreNotFound, VectorStoreFileNotFound,
        MissingField, InvalidField, OutOfRange or TooLong."""
        check_attributes(attributes)

        async def change(tx: Transaction) -> StoreFile:
            store = await VectorStoreQueries(tx).lock(project, store_id)
            file = await _one(tx, project, store_id, file_id)
            changed = replace(file, attributes=attributes)
            await StoreFileQueries(tx).update(project, changed)
            await VectorStoreQueries(tx).update(project, store.used(self._clock()))
            return changed

        return await self._transactions.write(change)

    async def delete(self, project: str, store_id: str, file_id: str) -> None:
        """Take a file out of a store. Raises VectorStoreNotFound or VectorStoreFileNotFound."""

        async def remove(tx: Transaction) -> None:
            store = await VectorStoreQueries(tx).lock(project, store_id)
            file = await _one(tx, project, store_id, file_id)
            left = await remove_file(tx, project, store, file)
            await VectorStoreQueries(tx).update(project, left)

        await self._transactions.write(remove)

    async def texts(
        self, project: str, store_id: str, file_id: str, page_request: PageRequest
    ) -> tuple[list[str], str]:
        """Passages of a file, and the token of the next page. Raises VectorStoreNotFound,
        VectorStoreFileNotFound, OutOfRange or InvalidField."""
        binding = (project, "vector_store_texts", store_id, file_id)
        window = self._tokens.window(page_request, binding, MAX_TEXTS)

        async def read(tx: Transaction) -> list[_Text]:
            await VectorStoreQueries(tx).get(project, store_id)
            file = await _one(tx, project, store_id, file_id)
            if file.state is not FileState.COMPLETED:
                return []
            first = int(window.after) + 1 if window.after else 0
            found = await ChunkQueries(tx).texts(project, file.entry, first, window.limit)
            return [_Text(str(number), text) for number, text in enumerate(found, first)]

        page = self._tokens.page(await self._transactions.read(read), window, page_request, binding)
        return [each.text for each in page.items], page.next_token

    # ---- batches

    async def create_batch(
        self, project: str, store_id: str, files: Sequence[NewStoreFile], request_id: str
    ) -> FileBatch:
        """Put files into a store together. Raises as `create`."""
        if not files:
            raise MissingField(field="files")
        check_files(files, "files", MAX_FILES_OF_BATCH)
        self._adder.check_model()
        now = self._clock()
        batch = FileBatch(id=self._ids.new(VECTOR_STORE_BATCH), store_id=store_id, created_at=now)
        request = IdempotencyRecord.of(
            CREATE_BATCH, check_request_id(request_id), batch.id, now, store_id, *files
        )

        async def add(tx: Transaction) -> FileBatch:
            created = await record_request(tx, project, request)
            if created == batch.id:
                await self._adder.add(tx, project, store_id, files, batch.id)
                await FileBatchQueries(tx).add(project, batch)
            return await FileBatchQueries(tx).get(project, store_id, created)

        return await self._transactions.write(add)

    async def get_batch(self, project: str, store_id: str, batch_id: str) -> FileBatch:
        """Raises VectorStoreNotFound or VectorStoreFileBatchNotFound."""

        async def find(tx: Transaction) -> FileBatch:
            await VectorStoreQueries(tx).get(project, store_id)
            return await FileBatchQueries(tx).get(project, store_id, batch_id)

        return await self._transactions.read(find)

    async def cancel_batch(self, project: str, store_id: str, batch_id: str) -> FileBatch:
        """Give up what of a batch is not complete; one that has ended stays as it is.

        Raises VectorStoreNotFound or VectorStoreFileBatchNotFound.
        """

        async def give_up(tx: Transaction) -> FileBatch:
            store = await VectorStoreQueries(tx).lock(project, store_id)
            batch = await FileBatchQueries(tx).get(project, store_id, batch_id)
            if not batch.counts.in_progress:
                return batch
            for file in await StoreFileQueries(tx).unfinished(project, batch_id):
                store = await move(tx, project, store, file, FileState.CANCELLED)
            await VectorStoreQueries(tx).update(project, store)
            await FileBatchQueries(tx).cancel(project, batch_id, self._clock())
            return await FileBatchQueries(tx).get(project, store_id, batch_id)

        return await self._transactions.write(give_up)


async def _one(tx: Transaction, project: str, store_id: str, file_id: str) -> StoreFile:
    found = await StoreFileQueries(tx).find(project, store_id, [file_id])
    if file_id not in found:
        raise VectorStoreFileNotFound(file=file_id)
    return found[file_id]
