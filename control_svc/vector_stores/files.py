"""Operations on files of vector stores and on file batches; reading of chunks."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from control_svc.base.idempotency import IdempotencyRecord, record_request
from control_svc.base.ids import FILE, VECTOR_STORE_BATCH, IdSource
from control_svc.base.pagination import Page, PageRequest, PageTokens
from control_svc.base.validation import check_request_id
from control_svc.db.transaction import Clock, Transaction, Transactions
from control_svc.vector_stores.membership import FileAdder, remove_file, set_file_state
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
class _ChunkText:
    """The text of a chunk; `id`, the page cursor, is its number."""

    id: str
    text: str


class VectorFiles:
    """The operations of VectorStoreFileService."""

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
        """Add a file to a store. A job ingests it.

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
        """Get a file. Raises VectorStoreNotFound or VectorStoreFileNotFound."""

        async def read(tx: Transaction) -> StoreFile:
            await VectorStoreQueries(tx).get(project, store_id)
            return await _get_file(tx, project, store_id, file_id)

        return await self._transactions.read(read)

    async def page(
        self,
        project: str,
        store_id: str,
        page_request: PageRequest,
        batch_id: str = "",
        state: FileState | None = None,
    ) -> Page[StoreFile]:
        """List the files of a store or of a batch.

        Raises VectorStoreNotFound, VectorStoreFileBatchNotFound, OutOfRange or InvalidField.
        """
        page_request.check_cursors(FILE, "a file")
        binding = (project, "vector_store_files", store_id, batch_id, state or "")
        window = self._tokens.window(page_request, binding, MAX_PAGE)

        async def read(tx: Transaction) -> list[StoreFile]:
            await VectorStoreQueries(tx).get(project, store_id)
            if batch_id:
                await FileBatchQueries(tx).get(project, store_id, batch_id)
            return await StoreFileQueries(tx).page(
                project, store_id, window, batch_id or None, state
            )

        files = await self._transactions.read(read)
        return self._tokens.page(files, window, page_request, binding)

    async def update(
        self,
        project: str,
        store_id: str,
        file_id: str,
        attributes: dict[str, AttributeValue] | None,
    ) -> StoreFile:
        """Replace the attributes of a file, unless None.

        Raises VectorStoreNotFound, VectorStoreFileNotFound, MissingField, InvalidField, OutOfRange
        or TooLong.
        """
        check_attributes(attributes or {})

        async def change(tx: Transaction) -> StoreFile:
            store = await VectorStoreQueries(tx).lock(project, store_id)
            file = await _get_file(tx, project, store_id, file_id)
            if attributes is None:
                return file
            changed = replace(file, attributes=attributes)
            await StoreFileQueries(tx).update(project, changed)
            await VectorStoreQueries(tx).update(project, store.touch(self._clock()))
            return changed

        return await self._transactions.write(change)

    async def delete(self, project: str, store_id: str, file_id: str) -> None:
        """Remove a file from a store. Raises VectorStoreNotFound or VectorStoreFileNotFound."""

        async def remove(tx: Transaction) -> None:
            store = await VectorStoreQueries(tx).lock(project, store_id)
            file = await _get_file(tx, project, store_id, file_id)
            store = await remove_file(tx, project, store, file)
            await VectorStoreQueries(tx).update(project, store)

        await self._transactions.write(remove)

    async def list_texts(
        self, project: str, store_id: str, file_id: str, page_request: PageRequest
    ) -> tuple[list[str], str]:
        """List the texts of a file's chunks. Returns them and the token of the next page.

        Raises VectorStoreNotFound, VectorStoreFileNotFound, OutOfRange or InvalidField.
        """
        binding = (project, "vector_store_texts", store_id, file_id)
        window = self._tokens.window(page_request, binding, MAX_TEXTS)

        async def read(tx: Transaction) -> list[_ChunkText]:
            await VectorStoreQueries(tx).get(project, store_id)
            file = await _get_file(tx, project, store_id, file_id)
            if file.state is not FileState.COMPLETED:
                return []
            first = int(window.after) + 1 if window.after else 0
            texts = await ChunkQueries(tx).list_texts(project, file.entry, first, window.limit)
            return [_ChunkText(str(number), text) for number, text in enumerate(texts, first)]

        page = self._tokens.page(await self._transactions.read(read), window, page_request, binding)
        return [chunk.text for chunk in page.items], page.next_token

    # ---- batches

    async def create_batch(
        self, project: str, store_id: str, files: Sequence[NewStoreFile], request_id: str
    ) -> FileBatch:
        """Add files to a store as a batch. Raises as `create`."""
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
            recorded_id = await record_request(tx, project, request)
            if recorded_id == batch.id:
                await self._adder.add(tx, project, store_id, files, batch.id)
                await FileBatchQueries(tx).add(project, batch)
            return await FileBatchQueries(tx).get(project, store_id, recorded_id)

        return await self._transactions.write(add)

    async def get_batch(self, project: str, store_id: str, batch_id: str) -> FileBatch:
        """Get a batch. Raises VectorStoreNotFound or VectorStoreFileBatchNotFound."""

        async def read(tx: Transaction) -> FileBatch:
            await VectorStoreQueries(tx).get(project, store_id)
            return await FileBatchQueries(tx).get(project, store_id, batch_id)

        return await self._transactions.read(read)

    async def cancel_batch(self, project: str, store_id: str, batch_id: str) -> FileBatch:
        """Cancel the files of a batch that are in progress, if any.

        Raises VectorStoreNotFound or VectorStoreFileBatchNotFound.
        """

        async def cancel(tx: Transaction) -> FileBatch:
            store = await VectorStoreQueries(tx).lock(project, store_id)
            batch = await FileBatchQueries(tx).get(project, store_id, batch_id)
            if not batch.counts.in_progress:
                return batch
            for file in await StoreFileQueries(tx).list_in_progress(project, batch_id):
                store = await set_file_state(tx, project, store, file, FileState.CANCELLED)
            await VectorStoreQueries(tx).update(project, store)
            await FileBatchQueries(tx).cancel(project, batch_id, self._clock())
            return await FileBatchQueries(tx).get(project, store_id, batch_id)

        return await self._transactions.write(cancel)


async def _get_file(tx: Transaction, project: str, store_id: str, file_id: str) -> StoreFile:
    files = await StoreFileQueries(tx).find(project, store_id, [file_id])
    if file_id not in files:
        raise VectorStoreFileNotFound(file=file_id)
    return files[file_id]
