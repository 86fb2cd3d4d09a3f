"""Vector stores of an export: made here, with their files, for this server to read."""

from collections.abc import Callable

from corral_cli.moving.export_file import Export, Json
from corral_cli.moving.id_map import IdMap
from corral_cli.moving.making import made_once
from corral_cli.moving.server import CALL_S, Server
from corral_cli.moving.translating import Translator
from svc_kit.errors import VectorStoreNotFound


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
        """`note` hears what has been brought: its kind, and its old and new id."""
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
            made = await made_once(create, request, old, VectorStoreNotFound)
            self._note("vector stores", {old: made.vector_store.id})
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
