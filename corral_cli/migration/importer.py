"""Imports an export: files, vector stores, assistants, threads, messages."""

from collections.abc import AsyncIterator, Callable, Sequence
from itertools import accumulate
from pathlib import Path

import click
from corral.control.v1 import (
    assistant_service_pb2,
    file_service_pb2,
    message_pb2,
    message_service_pb2,
    thread_service_pb2,
    vector_store_service_pb2,
)

from corral_cli.migration.export_file import COUNTED, Export, Json, naming, read
from corral_cli.migration.exporter import OLDEST
from corral_cli.migration.file_transfer import bytes_at, upload
from corral_cli.migration.id_map import IdMap
from corral_cli.migration.server import CALL_S, Server, created_once, every
from corral_cli.migration.translator import Translator
from svc_kit.errors import (
    AssistantNotFound,
    FileNotFound,
    MessageNotFound,
    ThreadNotFound,
    VectorStoreNotFound,
)
from svc_kit.rpc.client import translate_errors


class StoreImporter:
    """Brings the vector stores of one export."""

    def __init__(
        self,
        server: Server,
        export: Export,
        ids: IdMap,
        translator: Translator,
        note: Callable[[str, dict[str, str]], None],
    ) -> None:
        """`note` is called for each imported object with its kind, old id and new id."""
        self._server = server
        self._export = export
        self._ids = ids
        self._translator = translator
        self._note = note

    async def bring(self, found: Json) -> None:
        """Bring a store, unless stores are left out."""
        old = found["id"]
        request = self._translator.store(found)
        if request is None:
            return
        if self._ids.get(old) is None:
            create = self._server.stores.CreateVectorStore
            created = await created_once(create, request, old, VectorStoreNotFound)
            self._note("vector stores", {old: created.vector_store.id})
        for file in self._export.files_of(old):
            await self._put(str(self._ids.get(old)), f"{old}/{file['id']}", file)

    async def _put(self, store_id: str, old: str, found: Json) -> None:
        """Put a file into a store; the map knows it by both of their ids."""
        if self._ids.get(old) is not None:
            return
        request = self._translator.store_file(found, store_id)
        if request is not None:
            answer = await self._server.store_files.CreateVectorStoreFile(request, timeout=CALL_S)
            self._ids.add({old: answer.file.file_id})


FIRST_MESSAGES = 500
"""Messages that come with a new thread, all of them or none; later ones come one by one."""
FIRST_BYTES = 8 * 1024 * 1024
"""What they may have together: one request carries them."""
_THREAD = "thread_"
_STORE = "vs_"


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
        self._stores = StoreImporter(server, export, ids, translator, self._note)
        self.brought = dict.fromkeys(COUNTED, 0)
        """What was not here before."""

    async def steps(self) -> AsyncIterator[str]:
        """Bring everything; after each file, store, assistant and thread, its old id.

        Raises click.ClickException.
        """
        await self._check_map()
        for places, bring in (
            (self._export.files, self._bring_file),
            (self._export.stores, self._stores.bring),
            (self._export.assistants, self._bring_assistant),
            (self._export.threads, self._bring_thread),
        ):
            for place in places.values():
                found = read(place)
                with naming(found):
                    await bring(found)
                yield found["id"]

    async def _check_map(self) -> None:
        """That something of what the map says is here, is: else nothing would be brought.

        Raises click.ClickException.
        """
        export = self._export
        olds = (*export.assistants, *export.threads, *export.stores)
        known = [new for old in olds if (new := self._ids.get(old)) is not None]
        for new in known:
            if await self._has(new):
                return
        if known:
            raise click.ClickException(
                f"{self._ids.path} says that this export is here, but nothing of it is: it was "
                "brought to another project, or has been deleted. Name another map with --id-map."
            )

    async def _has(self, object_id: str) -> bool:
        """Whether an assistant, a thread or a vector store is here."""
        server = self._server
        try:
            with translate_errors():
                if object_id.startswith(_THREAD):
                    thread = thread_service_pb2.GetThreadRequest(thread_id=object_id)
                    await server.threads.GetThread(thread, timeout=CALL_S)
                elif object_id.startswith(_STORE):
                    store = vector_store_service_pb2.GetVectorStoreRequest(
                        vector_store_id=object_id
                    )
                    await server.stores.GetVectorStore(store, timeout=CALL_S)
                else:
                    assistant = assistant_service_pb2.GetAssistantRequest(assistant_id=object_id)
                    await server.assistants.GetAssistant(assistant, timeout=CALL_S)
        except (AssistantNotFound, ThreadNotFound, VectorStoreNotFound):
            return False
        return True

    async def _bring_file(self, found: Json) -> None:
        old = found["id"]
        if self._ids.get(old) is not None:
            return
        if await self._is_here(old):
            self._ids.add({old: old})
            return
        bytes_there = bytes_at(self._files, old)
        if bytes_there is None or not bytes_there.is_file():
            return
        if bytes_there.is_symlink():
            raise click.ClickException(f"{bytes_there} is a link: put the file itself there.")
        created = await upload(self._server.files, found, bytes_there)
        self._note("files", {old: created.id})

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
            request = self._translator.assistant(found, "")
            create = self._server.assistants.CreateAssistant
            created = await created_once(create, request, old, AssistantNotFound)
            self._note("assistants", {old: created.assistant.id})

    async def _bring_thread(self, found: Json) -> None:
        old = found["id"]
        messages = [
            (message["id"], new)
            for message in self._export.messages_of(old)
            if (new := self._translator.message(message)) is not None
        ]
        num_first = _num_first([new for _, new in messages])
        first, rest = messages[:num_first], messages[num_first:]
        if self._ids.get(old) is None:
            request = thread_service_pb2.CreateThreadRequest(
                thread=self._translator.thread(found),
                messages=[new for _, new in first],
            )
            create = self._server.threads.CreateThread
            thread = (await created_once(create, request, old, ThreadNotFound)).thread
            created = await self._made_in(thread.id)
            self._ids.add(
                {old: thread.id, **dict(zip((each for each, _ in first), created, strict=False))}
            )
            self.brought["threads"] += 1
            self.brought["messages"] += len(first)
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
        request = message_service_pb2.CreateMessageRequest(thread_id=thread_id, message=new)
        create = self._server.messages.CreateMessage
        created = await created_once(create, request, old, MessageNotFound)
        self._note("messages", {old: created.message.id})

    def _note(self, kind: str, pair: dict[str, str]) -> None:
        self._ids.add(pair)
        self.brought[kind] += 1


def _num_first(messages: Sequence[message_pb2.NewMessage]) -> int:
    sizes = accumulate(message.ByteSize() for message in messages[:FIRST_MESSAGES])
    return sum(size <= FIRST_BYTES for size in sizes)
