"""Imports an export: files, vector stores, assistants, threads, messages."""

from collections.abc import AsyncIterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import click
from corral.control.v1 import (
    assistant_service_pb2,
    file_service_pb2,
    message_pb2,
    message_service_pb2,
    thread_service_pb2,
    vector_store_file_service_pb2,
    vector_store_service_pb2,
)
from google.protobuf.message import Message

from corral_cli.migration.export_file import (
    COUNTED_KINDS,
    Export,
    InvalidObject,
    Json,
    explain_object_errors,
    read,
)
from corral_cli.migration.exporter import OLDEST
from corral_cli.migration.file_transfer import file_path, upload
from corral_cli.migration.id_map import IdMap
from corral_cli.migration.server import Server
from corral_cli.migration.translator import Translator
from svc_kit.errors import (
    AssistantNotFound,
    MessageNotFound,
    NotFound,
    ThreadNotFound,
    VectorStoreNotFound,
)

MAX_INITIAL_MESSAGES = 500
"""Maximum number of messages in the request that creates a thread. The others follow singly."""
_MAX_INITIAL_BYTES = 8 * 1024 * 1024
_THREAD = "thread_"
_STORE = "vs_"


class Importer:
    def __init__(
        self,
        server: Server,
        export: Export,
        ids: IdMap,
        translator: Translator,
        folder: Path,
        max_initial_messages: int = MAX_INITIAL_MESSAGES,
    ) -> None:
        """`folder` has the bytes of files, each named by its id. It need not exist. With ids that
        are not stored it is a dry run: nothing is created, and each new id is the old one."""
        self._server = server
        self._export = export
        self._ids = ids
        self._translator = translator
        self._folder = folder
        self._max_initial_messages = max_initial_messages
        self.is_dry_run = not ids.is_stored
        self.counts = dict.fromkeys(COUNTED_KINDS, 0)
        """Numbers of imported objects."""
        self.refused: list[str] = []
        """The problems of objects that are not valid, with their ids."""

    async def steps(self) -> AsyncIterator[str]:
        """Import everything but invalid objects. Yields the old id of each file, store, assistant
        and thread.

        Raises click.ClickException.
        """
        await self._check_map()
        for locations, import_object in (
            (self._export.files, self._import_file),
            (self._export.stores, self._import_store),
            (self._export.assistants, self._import_assistant),
            (self._export.threads, self._import_thread),
        ):
            for location in locations.values():
                exported = read(location)
                try:
                    with explain_object_errors(exported):
                        await import_object(exported)
                except InvalidObject as error:
                    self.refused.append(error.message)
                yield exported["id"]

    async def _check_map(self) -> None:
        """Raise click.ClickException if the server has no object of the map: nothing would be
        imported.
        """
        export = self._export
        olds = (*export.assistants, *export.threads, *export.stores)
        imported = [new for old in olds if (new := self._ids.get(old)) is not None]
        for new in imported:
            if await self._exists(new):
                return
        if imported:
            raise click.ClickException(
                f"According to {self._ids.path} this export has been imported, but the server has "
                "none of it: it was imported to another project, or has been deleted. Give another "
                "map with --id-map."
            )

    async def _exists(self, object_id: str) -> bool:
        """Whether an assistant, a thread or a vector store exists on the server."""
        request: Message = assistant_service_pb2.GetAssistantRequest(assistant_id=object_id)
        if object_id.startswith(_THREAD):
            request = thread_service_pb2.GetThreadRequest(thread_id=object_id)
        if object_id.startswith(_STORE):
            request = vector_store_service_pb2.GetVectorStoreRequest(vector_store_id=object_id)
        return await self._server.has(request)

    async def _import_file(self, exported: Json) -> None:
        old = exported["id"]
        if self._ids.get(old) is not None:
            return
        if await self._server.has(file_service_pb2.GetFileRequest(file_id=old)):
            self._ids.add({old: old})
            return
        path = file_path(self._folder, old)
        if path is None or not path.is_file():
            self._translator.skipped["files without their content"].append(old)
            return
        if path.is_symlink():
            raise click.ClickException(f"{path} is a link: replace it by the file itself.")
        new = old if self.is_dry_run else (await upload(self._server, exported, path)).id
        self._record("files", {old: new})

    async def _import_store(self, exported: Json) -> None:
        """Import a vector store with its files, unless stores are skipped."""
        old = exported["id"]
        request = self._translator.store(exported)
        if request is None:
            return
        if self._ids.get(old) is None:
            created = await self._create(request, old, VectorStoreNotFound)
            self._record("vector stores", {old: created.vector_store.id if created else old})
        for file in self._export.files_of(old):
            await self._import_store_file(str(self._ids.get(old)), f"{old}/{file['id']}", file)

    async def _import_store_file(self, store_id: str, old: str, exported: Json) -> None:
        """Attach a file to a store. `old` is the pair of both ids in the export."""
        if self._ids.get(old) is not None:
            return
        request = self._translator.store_file(exported, store_id)
        if request is not None and not self.is_dry_run:
            reply = vector_store_file_service_pb2.CreateVectorStoreFileResponse
            response = await self._server.call(request, reply)
            self._ids.add({old: response.file.file_id})

    async def _import_assistant(self, exported: Json) -> None:
        old = exported["id"]
        if self._ids.get(old) is None:
            request = self._translator.assistant(exported, "")
            created = await self._create(request, old, AssistantNotFound)
            self._record("assistants", {old: created.assistant.id if created else old})

    async def _import_thread(self, exported: Json) -> None:
        old = exported["id"]
        messages = [
            (message["id"], new)
            for message in self._export.messages_of(old)
            if (new := self._translator.message(message)) is not None
        ]
        num_initial = self._num_initial([new for _, new in messages])
        initial, rest = messages[:num_initial], messages[num_initial:]
        if self._ids.get(old) is None:
            request = thread_service_pb2.CreateThreadRequest(
                thread=self._translator.thread(exported),
                messages=[new for _, new in initial],
            )
            created = await self._create(request, old, ThreadNotFound)
            new = created.thread.id if created else old
            olds = [message_id for message_id, _ in initial]
            news = await self._message_ids(new) if created else olds
            self._ids.add({old: new, **dict(zip(olds, news, strict=False))})
            self.counts["threads"] += 1
            self.counts["messages"] += len(initial)
        for message_id, new in rest:
            await self._import_message(str(self._ids.get(old)), message_id, new)

    async def _message_ids(self, thread_id: str) -> list[str]:
        request = message_service_pb2.ListMessagesRequest(
            thread_id=thread_id, page_size=100, order=OLDEST
        )
        return [each.id async for each in self._server.list_all(request, "messages")]

    async def _import_message(self, thread_id: str, old: str, new: message_pb2.NewMessage) -> None:
        if self._ids.get(old) is not None:
            return
        request = message_service_pb2.CreateMessageRequest(thread_id=thread_id, message=new)
        created = await self._create(request, old, MessageNotFound)
        self._record("messages", {old: created.message.id if created else old})

    async def _create(self, request: Any, old: str, missing: type[NotFound]) -> Any:
        """Create an object once; None in a dry run."""
        return None if self.is_dry_run else await self._server.create_once(request, old, missing)

    def _record(self, kind: str, pair: dict[str, str]) -> None:
        self._ids.add(pair)
        self.counts[kind] += 1

    def _num_initial(self, messages: Sequence[message_pb2.NewMessage]) -> int:
        candidates = messages[: self._max_initial_messages]
        sizes = accumulate(message.ByteSize() for message in candidates)
        return sum(size <= _MAX_INITIAL_BYTES for size in sizes)
