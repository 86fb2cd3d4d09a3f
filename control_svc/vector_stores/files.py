"""Operations on files of vector stores and on file batches; reading of chunks."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from control_svc.base.idempotency import IdempotencyRecord, record_request
from control_svc.base.ids import FILE, VECTOR_STORE_BATCH, IdSource
from control_svc.base.pagination import Page, PageRequest, PageTokens
from control_svc.db.transaction import (
    Clock,
    Transaction,
    Transactions,
    delete_transaction,
    read_transaction,
    write_transaction,
)
from control_svc.vector_stores.membership import FileAdder, remove_file, set_file_state
from control_svc.vector_stores.model import (
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
class ChunkText:
    """The text of a chunk; `id`, the page cursor, is its number."""

    id: str
    text: str


@dataclass(frozen=True)
class VectorFiles:
    """The operations of VectorStoreFileService."""

    transactions: Transactions
    adder: FileAdder
    ids: IdSource
    tokens: PageTokens
    clock: Clock

    @write_transaction
    async def create(
        self, tx: Transaction, store_id: str, new: NewStoreFile, request_id: str
    ) -> StoreFile:
        """Add a file to a store. A job ingests it.

        Raises MissingField, InvalidField, OutOfRange, TooLong, VectorStoreNotFound,
        VectorStoreExpired, FileNotFound, EmbeddingModelMissing or RequestIdReused.
        """
        new.check()
        self.adder.check_model()
        request = IdempotencyRecord.of(CREATE, request_id, new.file_id, self.clock(), store_id, new)
        await record_request(tx, request)
        return (await self.adder.add(tx, store_id, [new]))[0]

    @read_transaction
    async def get(self, tx: Transaction, store_id: str, file_id: str) -> StoreFile:
        """Get a file. Raises VectorStoreNotFound or VectorStoreFileNotFound."""
        await VectorStoreQueries(tx).get(store_id)
        return await _get_file(tx, store_id, file_id)

    @read_transaction
    async def page(
        self,
        tx: Transaction,
        store_id: str,
        page_request: PageRequest,
        batch_id: str = "",
        state: FileState | None = None,
    ) -> Page[StoreFile]:
        """List the files of a store or of a batch.

        Raises VectorStoreNotFound, VectorStoreFileBatchNotFound, OutOfRange or InvalidField.
        """
        page_request.check_cursors(FILE, "a file")
        binding = (tx.project, "vector_store_files", store_id, batch_id, state or "")
        window = self.tokens.window(page_request, binding, MAX_PAGE)
        await VectorStoreQueries(tx).get(store_id)
        if batch_id:
            await FileBatchQueries(tx).get(store_id, batch_id)
        return window.page(
            await StoreFileQueries(tx).page(store_id, window, batch_id or None, state)
        )

    @write_transaction
    async def update(
        self,
        tx: Transaction,
        store_id: str,
        file_id: str,
        attributes: dict[str, AttributeValue] | None,
    ) -> StoreFile:
        """Replace the attributes of a file, unless None.

        Raises VectorStoreNotFound, VectorStoreFileNotFound, MissingField, InvalidField, OutOfRange
        or TooLong.
        """
        check_attributes(attributes or {})
        store = await VectorStoreQueries(tx).lock(store_id)
        file = await _get_file(tx, store_id, file_id)
        if attributes is None:
            return file
        changed = replace(file, attributes=attributes)
        await StoreFileQueries(tx).update(changed)
        await VectorStoreQueries(tx).update(store.touch(self.clock()))
        return changed

    @delete_transaction
    async def delete(self, tx: Transaction, store_id: str, file_id: str) -> None:
        """Remove a file from a store. Raises VectorStoreNotFound or VectorStoreFileNotFound."""
        store = await VectorStoreQueries(tx).lock(store_id)
        file = await _get_file(tx, store_id, file_id)
        store = await remove_file(tx, store, file)
        await VectorStoreQueries(tx).update(store)

    @read_transaction
    async def list_texts(
        self, tx: Transaction, store_id: str, file_id: str, page_request: PageRequest
    ) -> Page[ChunkText]:
        """List the texts of a file's chunks.

        Raises VectorStoreNotFound, VectorStoreFileNotFound, OutOfRange or InvalidField.
        """
        binding = (tx.project, "vector_store_texts", store_id, file_id)
        window = self.tokens.window(page_request, binding, MAX_TEXTS)
        await VectorStoreQueries(tx).get(store_id)
        file = await _get_file(tx, store_id, file_id)
        if file.state is not FileState.COMPLETED:
            return window.page([])
        first = int(window.after) + 1 if window.after else 0
        texts = await ChunkQueries(tx).list_texts(file.entry, first, window.limit)
        return window.page(
            [ChunkText(str(number), text) for number, text in enumerate(texts, first)]
        )

    # ---- batches

    async def create_batch(
        self, project: str, store_id: str, files: Sequence[NewStoreFile], request_id: str
    ) -> FileBatch:
        """Add files to a store as a batch. Raises as `create`."""
        if not files:
            raise MissingField(field="files")
        check_files(files, "files")
        self.adder.check_model()
        now = self.clock()
        batch = FileBatch(id=self.ids.new(VECTOR_STORE_BATCH), store_id=store_id, created_at=now)
        request = IdempotencyRecord.of(CREATE_BATCH, request_id, batch.id, now, store_id, *files)

        async def add(tx: Transaction) -> FileBatch:
            recorded_id = await record_request(tx, request)
            if recorded_id == batch.id:
                await self.adder.add(tx, store_id, files, batch.id)
                await FileBatchQueries(tx).add(batch)
            return await FileBatchQueries(tx).get(store_id, recorded_id)

        return await self.transactions.of(project).write(add)

    @read_transaction
    async def get_batch(self, tx: Transaction, store_id: str, batch_id: str) -> FileBatch:
        """Get a batch. Raises VectorStoreNotFound or VectorStoreFileBatchNotFound."""
        await VectorStoreQueries(tx).get(store_id)
        return await FileBatchQueries(tx).get(store_id, batch_id)

    @write_transaction
    async def cancel_batch(self, tx: Transaction, store_id: str, batch_id: str) -> FileBatch:
        """Cancel the files of a batch that are in progress, if any.

        Raises VectorStoreNotFound or VectorStoreFileBatchNotFound.
        """
        store = await VectorStoreQueries(tx).lock(store_id)
        batch = await FileBatchQueries(tx).get(store_id, batch_id)
        if not batch.counts.in_progress:
            return batch
        for file in await StoreFileQueries(tx).list_in_progress(batch_id):
            store = await set_file_state(tx, store, file, FileState.CANCELLED)
        await VectorStoreQueries(tx).update(store)
        await FileBatchQueries(tx).cancel(batch_id, self.clock())
        return await FileBatchQueries(tx).get(store_id, batch_id)


async def _get_file(tx: Transaction, store_id: str, file_id: str) -> StoreFile:
    files = await StoreFileQueries(tx).find(store_id, [file_id])
    if file_id not in files:
        raise VectorStoreFileNotFound(file=file_id)
    return files[file_id]
