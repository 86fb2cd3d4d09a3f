"""An import: what an export has, made here once, however often it is tried."""

import hashlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from corral.control.v1 import (
    file_pb2,
    file_service_pb2,
    message_pb2,
    message_service_pb2,
    thread_service_pb2,
)

from corral_cli.moving.export_file import Export, Json, naming, read
from corral_cli.moving.exporting import OLDEST
from corral_cli.moving.id_map import IdMap
from corral_cli.moving.server import CALL_S, Server, every
from corral_cli.moving.translating import Translator
from svc_kit.errors import FileNotFound
from svc_kit.rpc_client import translate_errors

FIRST_MESSAGES = 500
"""Messages that come with a new thread, all of them or none; later ones come one by one."""
_PURPOSES = {
    "vision": file_pb2.FILE_PURPOSE_VISION,
    "user_data": file_pb2.FILE_PURPOSE_USER_DATA,
}
"""Of files that messages name; what was made by an assistant is for assistants here."""
_CHUNK_BYTES = 256 * 1024


class Importer:
    """Brings one export here."""

    def __init__(
        self, server: Server, export: Export, ids: IdMap, translator: Translator, files: Path
    ) -> None:
        """`files` is the folder of files' bytes, each under its id; it need not be there."""
        self._server = server
        self._export = export
        self._ids = ids
        self._translator = translator
        self._files = files

    async def steps(self) -> AsyncIterator[str]:
        """Bring everything; after each file, assistant and thread, its old id."""
        for places, bring in (
            (self._export.files, self._bring_file),
            (self._export.assistants, self._bring_assistant),
            (self._export.threads, self._bring_thread),
        ):
            for place in places:
                found = read(place)
                with naming(found):
                    await bring(found)
                yield found["id"]

    async def _bring_file(self, found: Json) -> None:
        old = found["id"]
        if self._ids.get(old) is not None:
            return
        bytes_there = self._files / Path(old).name
        if bytes_there.is_file():
            purpose = str(found.get("purpose"))
            header = file_pb2.FileHeader(
                filename=found.get("filename") or old,
                purpose=_PURPOSES.get(purpose, file_pb2.FILE_PURPOSE_ASSISTANTS),
                request_id=_request_id(old),
            )
            answer = await self._server.files.CreateFile(_pieces(header, bytes_there))
            self._ids.add({old: answer.file.id})
        elif await self._is_here(old):
            self._ids.add({old: old})

    async def _is_here(self, file_id: str) -> bool:
        request = file_service_pb2.GetFileRequest(file_id=file_id)
        try:
            with translate_errors():
                await self._server.files.GetFile(request, timeout=CALL_S)
        except FileNotFound:
            return False
        return True

    async def _bring_assistant(self, found: Json) -> None:
        old = found["id"]
        if self._ids.get(old) is None:
            request = self._translator.assistant(found, _request_id(old))
            made = await self._server.assistants.CreateAssistant(request, timeout=CALL_S)
            self._ids.add({old: made.assistant.id})

    async def _bring_thread(self, found: Json) -> None:
        old = found["id"]
        messages = [
            (message["id"], new)
            for message in self._export.messages_of(old)
            if (new := self._translator.message(message)) is not None
        ]
        first, rest = messages[:FIRST_MESSAGES], messages[FIRST_MESSAGES:]
        if self._ids.get(old) is None:
            request = thread_service_pb2.CreateThreadRequest(
                thread=self._translator.thread(found),
                messages=[new for _, new in first],
                request_id=_request_id(old),
            )
            thread = (await self._server.threads.CreateThread(request, timeout=CALL_S)).thread
            made = await self._made_in(thread.id)
            self._ids.add(
                {old: thread.id, **dict(zip((each for each, _ in first), made, strict=False))}
            )
        for message_id, new in rest:
            await self._bring_message(str(self._ids.get(old)), message_id, new)

    async def _made_in(self, thread_id: str) -> Sequence[str]:
        request = message_service_pb2.ListMessagesRequest(
            thread_id=thread_id, page_size=100, order=OLDEST
        )
        found = every(self._server.messages.ListMessages, request, "messages")
        return [message.id async for message in found]

    async def _bring_message(self, thread_id: str, old: str, new: message_pb2.NewMessage) -> None:
        if self._ids.get(old) is not None:
            return
        request = message_service_pb2.CreateMessageRequest(
            thread_id=thread_id, message=new, request_id=_request_id(old)
        )
        made = await self._server.messages.CreateMessage(request, timeout=CALL_S)
        self._ids.add({old: made.message.id})


def _request_id(old: str) -> str:
    """Closes the gap between an object and its line in the map: one that was made is not made
    again."""
    return f"import {hashlib.sha256(old.encode()).hexdigest()}"


async def _pieces(header: file_pb2.FileHeader, file: Path) -> AsyncIterator[Any]:
    yield file_service_pb2.CreateFileRequest(header=header)
    with file.open("rb") as opened:
        while chunk := opened.read(_CHUNK_BYTES):
            yield file_service_pb2.CreateFileRequest(chunk=chunk)
