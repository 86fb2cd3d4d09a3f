"""An export: everything of a project's assistants, a line for each object, as OpenAI writes it."""

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, BinaryIO

import orjson
from corral.control.v1 import (
    assistant_service_pb2,
    file_service_pb2,
    listing_pb2,
    message_service_pb2,
    thread_service_pb2,
)

from corral_cli.moving.server import CALL_S, Server, every
from openai_wire.assistants.objects import assistant_object, message_object, thread_object
from openai_wire.files import file_object
from svc_kit.errors import FileNotFound, ThreadNotFound
from svc_kit.rpc_client import translate_errors

OLDEST = listing_pb2.LIST_ORDER_OLDEST_FIRST
_PAGE = 100


class Exporter:
    """Writes one export."""

    def __init__(self, server: Server, written: BinaryIO) -> None:
        self._server = server
        self._written = written
        self._file_ids: set[str] = set()
        self.counts = {"assistants": 0, "threads": 0, "messages": 0, "files": 0}

    async def steps(self) -> AsyncIterator[str]:
        """Write everything; after each assistant and each thread, its id."""
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

    async def _write_file(self, file_id: str) -> None:
        """A file's line before the first that names it; its bytes stay where they are."""
        if file_id in self._file_ids:
            return
        self._file_ids.add(file_id)
        request = file_service_pb2.GetFileRequest(file_id=file_id)
        try:
            with translate_errors():
                found = (await self._server.files.GetFile(request, timeout=CALL_S)).file
        except FileNotFound:  # deleted since the message came
            return
        self._write("files", file_object(found))

    def _write(self, kind: str, written: dict[str, object]) -> None:
        self._written.write(orjson.dumps(written) + b"\n")
        self.counts[kind] += 1


def files_of(message: Any) -> list[str]:
    """The files that a message names."""
    pictures = [part.image.file_id for part in message.parts if part.image.file_id]
    return [*pictures, *(attachment.file_id for attachment in message.attachments)]
