"""Exports a project's assistants, threads, messages, vector stores and files as JSON lines."""

from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import orjson
from corral.control.v1 import (
    assistant_service_pb2,
    file_service_pb2,
    listing_pb2,
    message_service_pb2,
    thread_service_pb2,
    vector_store_file_service_pb2,
    vector_store_pb2,
    vector_store_service_pb2,
)

from corral_cli.migration.export_file import COUNTED
from corral_cli.migration.file_transfer import download
from corral_cli.migration.server import CALL_S, Server, every
from openai_wire.assistants.objects import assistant_object, message_object, thread_object
from openai_wire.resources.files import file_object
from openai_wire.resources.vector_stores import store_file_object, store_object
from svc_kit.errors import FileNotFound, ThreadNotFound, VectorStoreNotFound
from svc_kit.rpc.client import translate_errors

OLDEST = listing_pb2.LIST_ORDER_OLDEST_FIRST
_PAGE = 100


class Exporter:
    """Writes one export."""

    def __init__(self, server: Server, written: BinaryIO, files: Path | None) -> None:
        """`files` is the folder for the bytes of files; None: they stay where they are."""
        self._server = server
        self._written = written
        self._files = files
        if files is not None:
            files.mkdir(mode=0o700, exist_ok=True)
        self._file_ids: set[str] = set()
        self.counts = dict.fromkeys(COUNTED, 0)

    async def steps(self) -> AsyncIterator[str]:
        """Write everything; after each vector store, assistant and thread, its id."""
        stores = vector_store_service_pb2.ListVectorStoresRequest(page_size=_PAGE, order=OLDEST)
        async for store in every(self._server.stores.ListVectorStores, stores, "vector_stores"):
            with suppress(VectorStoreNotFound), translate_errors():  # deleted meanwhile
                await self._write_store(store)
            yield store.id
        request = assistant_service_pb2.ListAssistantsRequest(page_size=_PAGE, order=OLDEST)
        found = every(self._server.assistants.ListAssistants, request, "assistants")
        async for assistant in found:
            self._write("assistants", assistant_object(assistant))
            yield assistant.id
        listing = thread_service_pb2.ListThreadsRequest(page_size=_PAGE, order=OLDEST)
        async for thread in every(self._server.threads.ListThreads, listing, "threads"):
            with suppress(ThreadNotFound), translate_errors():  # deleted meanwhile
                await self._write_thread(thread)
            yield thread.id

    async def _write_thread(self, thread: Any) -> None:
        self._write("threads", thread_object(thread))
        request = message_service_pb2.ListMessagesRequest(
            thread_id=thread.id, page_size=_PAGE, order=OLDEST
        )
        async for message in every(self._server.messages.ListMessages, request, "messages"):
            for file_id in files_of(message):
                await self._write_file(file_id)
            self._write("messages", message_object(message))

    async def _write_store(self, store: vector_store_pb2.VectorStore) -> None:
        """A store with its files; of one that has expired there are none."""
        if store.state == vector_store_pb2.VectorStore.STATE_EXPIRED:
            return
        self._write("vector stores", store_object(store))
        listing = vector_store_file_service_pb2.ListVectorStoreFilesRequest(
            vector_store_id=store.id, page_size=_PAGE, order=OLDEST
        )
        method = self._server.store_files.ListVectorStoreFiles
        async for file in every(method, listing, "files"):
            await self._write_file(file.file_id)
            self._write_line(store_file_object(file))

    async def _write_file(self, file_id: str) -> None:
        """A file's line before the first that names it, and its bytes."""
        if file_id in self._file_ids:
            return
        self._file_ids.add(file_id)
        request = file_service_pb2.GetFileRequest(file_id=file_id)
        try:
            with translate_errors():
                found = (await self._server.files.GetFile(request, timeout=CALL_S)).file
                if self._files is not None:
                    await download(self._server.files, found, self._files)
        except FileNotFound:  # deleted since the message came
            return
        self._write("files", file_object(found))

    def _write(self, kind: str, written: dict[str, object]) -> None:
        self._write_line(written)
        self.counts[kind] += 1

    def _write_line(self, written: dict[str, object]) -> None:
        self._written.write(orjson.dumps(written) + b"\n")


def files_of(message: Any) -> list[str]:
    """The files that a message names."""
    pictures = [part.image.file_id for part in message.parts if part.image.file_id]
    return [*pictures, *(attachment.file_id for attachment in message.attachments)]
