"""Exports a project's assistants, threads, messages, vector stores and files as JSON lines."""

from collections.abc import AsyncIterator, Mapping
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

from corral_cli.migration.export_file import COUNTED_KINDS
from corral_cli.migration.file_transfer import download
from corral_cli.migration.server import Server
from dialects.openai.assistants.objects import assistant_object, message_object, thread_object
from dialects.openai.resources.files import file_object
from dialects.openai.resources.vector_stores import store_file_object, store_object
from svc_kit.errors import FileNotFound, ThreadNotFound, VectorStoreNotFound
from svc_kit.rpc.client import translate_errors

OLDEST = listing_pb2.LIST_ORDER_OLDEST_FIRST
_PAGE = 100


class Exporter:
    def __init__(self, server: Server, output: BinaryIO, folder: Path | None) -> None:
        """`folder` is for the bytes of files; None to export no bytes."""
        self._server = server
        self._output = output
        self._folder = folder
        if folder is not None:
            folder.mkdir(mode=0o700, exist_ok=True)
        self._file_ids: set[str] = set()
        self.counts = dict.fromkeys(COUNTED_KINDS, 0)

    async def steps(self) -> AsyncIterator[str]:
        """Write everything. Yields the id of each vector store, assistant and thread."""
        stores = vector_store_service_pb2.ListVectorStoresRequest(page_size=_PAGE, order=OLDEST)
        async for store in self._server.list_all(stores, "vector_stores"):
            with suppress(VectorStoreNotFound), translate_errors():  # deleted meanwhile
                await self._write_store(store)
            yield store.id
        request = assistant_service_pb2.ListAssistantsRequest(page_size=_PAGE, order=OLDEST)
        async for assistant in self._server.list_all(request, "assistants"):
            self._write("assistants", assistant_object(assistant))
            yield assistant.id
        listing = thread_service_pb2.ListThreadsRequest(page_size=_PAGE, order=OLDEST)
        async for thread in self._server.list_all(listing, "threads"):
            with suppress(ThreadNotFound), translate_errors():  # deleted meanwhile
                await self._write_thread(thread)
            yield thread.id

    async def _write_thread(self, thread: Any) -> None:
        self._write("threads", thread_object(thread))
        request = message_service_pb2.ListMessagesRequest(
            thread_id=thread.id, page_size=_PAGE, order=OLDEST
        )
        async for message in self._server.list_all(request, "messages"):
            for file_id in _file_ids(message):
                await self._write_file(file_id)
            self._write("messages", message_object(message))

    async def _write_store(self, store: vector_store_pb2.VectorStore) -> None:
        """Write a vector store with its files. An expired store has no files and is skipped."""
        if store.state == vector_store_pb2.VectorStore.STATE_EXPIRED:
            return
        self._write("vector stores", store_object(store))
        listing = vector_store_file_service_pb2.ListVectorStoreFilesRequest(
            vector_store_id=store.id, page_size=_PAGE, order=OLDEST
        )
        async for file in self._server.list_all(listing, "files"):
            await self._write_file(file.file_id)
            self._write_line(store_file_object(file))

    async def _write_file(self, file_id: str) -> None:
        """Write a file's line before the first line that refers to it, and its bytes."""
        if file_id in self._file_ids:
            return
        self._file_ids.add(file_id)
        request = file_service_pb2.GetFileRequest(file_id=file_id)
        try:
            with translate_errors():
                reply = await self._server.call(request, file_service_pb2.GetFileResponse)
                if self._folder is not None:
                    await download(self._server, reply.file, self._folder)
        except FileNotFound:  # deleted meanwhile
            return
        self._write("files", file_object(reply.file))

    def _write(self, kind: str, obj: Mapping[str, object]) -> None:
        self._write_line(obj)
        self.counts[kind] += 1

    def _write_line(self, obj: Mapping[str, object]) -> None:
        self._output.write(orjson.dumps(obj) + b"\n")


def _file_ids(message: Any) -> list[str]:
    images = [part.image.file_id for part in message.parts if part.image.file_id]
    return [*images, *(attachment.file_id for attachment in message.attachments)]
