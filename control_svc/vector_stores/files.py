"""Operations on files of vector stores and on file batches; reading of chunks."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from corral.control.v1 import vector_store_file_service_pb2 as pb
from corral.control.v1 import vector_store_pb2

from control_svc.base.idempotency import IdempotencyRecord, record_request
from control_svc.base.ids import FILE, VECTOR_STORE_BATCH
from control_svc.base.pagination import Page
from control_svc.base.proto import changed_values, page_request
from control_svc.base.resource import MAX_PAGE, Methods
from control_svc.db.transaction import (
    Transaction,
    delete_transaction,
    read_transaction,
    write_transaction,
)
from control_svc.vector_stores import proto as convert
from control_svc.vector_stores.membership import FileAdder, set_file_state, set_file_states
from control_svc.vector_stores.model import (
    FileBatch,
    FileState,
    StoreFile,
    check_attributes,
    check_files,
)
from control_svc.vector_stores.queries import FileBatchQueries, StoreFileQueries, VectorStoreQueries
from control_svc.vector_stores.search.chunk_queries import ChunkQueries
from control_svc.vector_stores.service import CallerLimits
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
class VectorFiles(Methods[StoreFile]):
    """Files of vector stores, their texts, and batches of them."""

    service = pb.DESCRIPTOR.services_by_name["VectorStoreFileService"]
    message, noun, plural = convert.FILE, "a file", "files"

    adder: FileAdder
    caller_limits: CallerLimits

    def to_message(self, value: StoreFile) -> vector_store_pb2.VectorStoreFile:
        return convert.file_to_pb(value)

    async def CreateVectorStoreFile(
        self, project: str, request: pb.CreateVectorStoreFileRequest
    ) -> pb.CreateVectorStoreFileResponse:
        """Add a file to a store. A job ingests it.

        Raises MissingField, InvalidField, OutOfRange, TooLong, VectorStoreNotFound,
        VectorStoreExpired, FileNotFound, EmbeddingModelMissing or RequestIdReused.
        """
        store_id, new = request.vector_store_id, convert.NEW_SINGLE_FILE.from_message(request)
        new.check()
        self.adder.check_model()
        record = IdempotencyRecord.of(
            CREATE, request.request_id, new.file_id, self.clock(), store_id, new
        )

        async def add(tx: Transaction) -> StoreFile:
            await record_request(tx, record)
            return (await self.adder.add(tx, store_id, [new]))[0]

        file = await self.transactions.of(project).write(add)
        return pb.CreateVectorStoreFileResponse(
            file=self.to_message(file), rate_limits=await self.caller_limits()
        )

    @read_transaction
    async def GetVectorStoreFile(
        self, tx: Transaction, request: pb.GetVectorStoreFileRequest
    ) -> StoreFile:
        """Get a file. Raises VectorStoreNotFound or VectorStoreFileNotFound."""
        await VectorStoreQueries(tx).get(request.vector_store_id)
        return await _get_file(tx, request)

    @read_transaction
    async def ListVectorStoreFiles(
        self, tx: Transaction, request: pb.ListVectorStoreFilesRequest
    ) -> Page[StoreFile]:
        """List the files of a store or of a batch.

        Raises VectorStoreNotFound, VectorStoreFileBatchNotFound, OutOfRange or InvalidField.
        """
        wanted, store_id, batch_id = (
            page_request(request),
            request.vector_store_id,
            request.batch_id,
        )
        state = convert.FILE_STATE.decode_optional(request.state, "state")
        wanted.check_cursors(FILE, self.noun)
        binding = (tx.project, "vector_store_files", store_id, batch_id, state or "")
        window = self.tokens.window(wanted, binding, MAX_PAGE)
        await VectorStoreQueries(tx).get(store_id)
        if batch_id:
            await FileBatchQueries(tx).get(store_id, batch_id)
        return window.page(
            await StoreFileQueries(tx).page(store_id, window, batch_id or None, state)
        )

    async def UpdateVectorStoreFile(
        self, project: str, request: pb.UpdateVectorStoreFileRequest
    ) -> StoreFile:
        """Replace the attributes of a file, unless the mask is empty.

        Raises VectorStoreNotFound, VectorStoreFileNotFound, MissingField, InvalidField, OutOfRange
        or TooLong.
        """
        is_changed = bool(changed_values(request, "vector_store_id", "file_id"))
        attributes = convert.read_attributes(request.attributes) if is_changed else {}
        check_attributes(attributes)

        async def change(tx: Transaction) -> StoreFile:
            store = await VectorStoreQueries(tx).lock(request.vector_store_id)
            file = await _get_file(tx, request)
            if not is_changed:
                return file
            changed = replace(file, attributes=attributes)
            await StoreFileQueries(tx).update(changed)
            await VectorStoreQueries(tx).update(store.touch(self.clock()))
            return changed

        return await self.transactions.of(project).write(change)

    @delete_transaction
    async def DeleteVectorStoreFile(
        self, tx: Transaction, request: pb.DeleteVectorStoreFileRequest
    ) -> None:
        """Remove a file from a store. Raises VectorStoreNotFound or VectorStoreFileNotFound."""
        store = await VectorStoreQueries(tx).lock(request.vector_store_id)
        file = await _get_file(tx, request)
        store = await set_file_state(tx, store, file, FileState.DELETED)
        await VectorStoreQueries(tx).update(store)

    @read_transaction
    async def ListVectorStoreFileContents(
        self, tx: Transaction, request: pb.ListVectorStoreFileContentsRequest
    ) -> pb.ListVectorStoreFileContentsResponse:
        """List the texts of a file's chunks.

        Raises VectorStoreNotFound, VectorStoreFileNotFound, OutOfRange or InvalidField.
        """
        wanted, store_id = (
            page_request(request, DEFAULT_TEXTS, newest_first=False),
            request.vector_store_id,
        )
        binding = (tx.project, "vector_store_texts", store_id, request.file_id)
        window = self.tokens.window(wanted, binding, MAX_TEXTS)
        await VectorStoreQueries(tx).get(store_id)
        file = await _get_file(tx, request)
        texts: Sequence[str] = ()
        first = int(window.after) + 1 if window.after else 0
        if file.state is FileState.COMPLETED:
            texts = await ChunkQueries(tx).list_texts(file.entry, first, window.limit)
        page = window.page(
            [ChunkText(str(number), text) for number, text in enumerate(texts, first)]
        )
        return pb.ListVectorStoreFileContentsResponse(
            texts=[chunk.text for chunk in page.items], next_page_token=page.next_token
        )

    async def CreateVectorStoreFileBatch(
        self, project: str, request: pb.CreateVectorStoreFileBatchRequest
    ) -> pb.CreateVectorStoreFileBatchResponse:
        """Add files to a store as a batch. Raises as `CreateVectorStoreFile`."""
        files = [
            convert.NEW_FILE.from_message(file, f"files[{index}]")
            for index, file in enumerate(request.files)
        ]
        if not files:
            raise MissingField(field="files")
        check_files(files, "files")
        self.adder.check_model()
        now, store_id = self.clock(), request.vector_store_id
        batch = FileBatch(id=self.ids.new(VECTOR_STORE_BATCH), store_id=store_id, created_at=now)
        record = IdempotencyRecord.of(
            CREATE_BATCH, request.request_id, batch.id, now, store_id, *files
        )

        async def add(tx: Transaction) -> FileBatch:
            recorded_id = await record_request(tx, record)
            if recorded_id == batch.id:
                await self.adder.add(tx, store_id, files, batch.id)
                await FileBatchQueries(tx).add(batch)
            return await FileBatchQueries(tx).get(store_id, recorded_id)

        created = await self.transactions.of(project).write(add)
        return pb.CreateVectorStoreFileBatchResponse(
            batch=convert.BATCH.to_message(created), rate_limits=await self.caller_limits()
        )

    @read_transaction
    async def GetVectorStoreFileBatch(
        self, tx: Transaction, request: pb.GetVectorStoreFileBatchRequest
    ) -> pb.GetVectorStoreFileBatchResponse:
        """Get a batch. Raises VectorStoreNotFound or VectorStoreFileBatchNotFound."""
        await VectorStoreQueries(tx).get(request.vector_store_id)
        batch = await FileBatchQueries(tx).get(request.vector_store_id, request.batch_id)
        return pb.GetVectorStoreFileBatchResponse(batch=convert.BATCH.to_message(batch))

    @write_transaction
    async def CancelVectorStoreFileBatch(
        self, tx: Transaction, request: pb.CancelVectorStoreFileBatchRequest
    ) -> pb.CancelVectorStoreFileBatchResponse:
        """Cancel the files of a batch that are in progress, if any.

        Raises VectorStoreNotFound or VectorStoreFileBatchNotFound.
        """
        store_id, batch_id = request.vector_store_id, request.batch_id
        store = await VectorStoreQueries(tx).lock(store_id)
        batch = await FileBatchQueries(tx).get(store_id, batch_id)
        if batch.counts.in_progress:
            files = await StoreFileQueries(tx).list_in_progress(batch_id)
            store = await set_file_states(tx, store, files, FileState.CANCELLED)
            await VectorStoreQueries(tx).update(store)
            await FileBatchQueries(tx).cancel(batch_id, self.clock())
            batch = await FileBatchQueries(tx).get(store_id, batch_id)
        return pb.CancelVectorStoreFileBatchResponse(batch=convert.BATCH.to_message(batch))


class _OfFile(Protocol):
    vector_store_id: str
    file_id: str


async def _get_file(tx: Transaction, request: _OfFile) -> StoreFile:
    file_id = request.file_id
    files = await StoreFileQueries(tx).find(request.vector_store_id, [file_id])
    if file_id not in files:
        raise VectorStoreFileNotFound(file=file_id)
    return files[file_id]
