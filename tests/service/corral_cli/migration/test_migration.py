"""Imports to a real control service: repeated, interrupted, and of malicious exports."""

import json
from collections.abc import AsyncIterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import click
import pytest
from corral.control.v1 import (
    assistant_service_pb2,
    file_pb2,
    message_service_pb2,
    thread_service_pb2,
    vector_store_service_pb2,
)
from google.protobuf.message import Message

from corral_cli.migration.export_file import index_export
from corral_cli.migration.file_transfer import download
from corral_cli.migration.id_map import IdMap
from corral_cli.migration.importer import Importer
from corral_cli.migration.server import Server
from corral_cli.migration.translator import Translator
from tests.support.vectors import RunningVectors, run_vectors

STORE = {"id": "vs_old", "object": "vector_store", "created_at": 1, "name": "foxes"}
STORE_FILE = {
    "id": "file-old",
    "object": "vector_store.file",
    "created_at": 1,
    "vector_store_id": "vs_old",
    "status": "completed",
}
FILE = {"id": "file-old", "object": "file", "filename": "n.txt", "purpose": "assistants"}
ASSISTANT = {
    "id": "asst_old",
    "object": "assistant",
    "model": "m",
    "tool_resources": {"file_search": {"vector_store_ids": ["vs_old"]}},
}
THREAD = {"id": "thread_old", "object": "thread", "created_at": 2}


def make_message(number: int, **about: Any) -> dict[str, Any]:
    return {
        "id": f"msg_old{number}",
        "object": "thread.message",
        "created_at": number,
        "thread_id": "thread_old",
        "role": "user",
        "content": [{"type": "text", "text": {"value": f"number {number}"}}],
        **about,
    }


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[RunningVectors]:
    async with run_vectors(tmp_path) as opened:
        yield opened


class KilledError(Exception):
    """Simulates a kill of the import: an object was created, but is not in the map yet."""


class KillingIdMap(IdMap):
    """Raises KilledError after `adds_left` additions; never if None."""

    adds_left: int | None = None

    def add(self, pairs: dict[str, str]) -> None:
        if self.adds_left is not None:
            if not self.adds_left:
                raise KilledError
            self.adds_left -= 1
        super().add(pairs)


class Migration:
    """An export and the server to which it is imported."""

    def __init__(self, running: RunningVectors, folder: Path) -> None:
        self.client = running.control.client
        self.vectors = running.vectors
        self.export = folder / "export.jsonl"
        self.files = folder / "export.jsonl.files"
        self.files.mkdir()
        self.server = Server(self.client.channel)
        self.skipped: dict[str, list[str]] = {}

    async def run(
        self,
        *lines: dict[str, Any],
        id_map: str = "ids",
        adds_left: int | None = None,
        is_dry: bool = False,
    ) -> dict[str, int]:
        """Import the lines, all messages but the first singly. Return the counts by kind."""
        self.export.write_text("".join(json.dumps(line) + "\n" for line in lines))
        with KillingIdMap(self.map_path(id_map), "here", is_stored=not is_dry) as ids:
            ids.adds_left = adds_left
            translator = Translator({}, "", ids.get, with_search=True)
            importer = Importer(
                self.server,
                index_export(self.export),
                ids,
                translator,
                self.files,
                max_initial_messages=1,
            )
            _ = [step async for step in importer.steps()]
        self.skipped = {name: ids for name, ids in translator.skipped.items() if ids}
        return {kind: count for kind, count in importer.counts.items() if count}

    def new_id(self, old: str, id_map: str = "ids") -> str:
        new = IdMap(self.map_path(id_map), "here").get(old)
        assert new is not None
        return new

    async def num_objects(self) -> dict[str, int]:
        server = self.server
        requests: dict[str, Message] = {
            "vector_stores": vector_store_service_pb2.ListVectorStoresRequest(),
            "assistants": assistant_service_pb2.ListAssistantsRequest(),
            "threads": thread_service_pb2.ListThreadsRequest(),
        }
        listed = {
            field: len([each async for each in server.list_all(request, field)])
            for field, request in requests.items()
        }
        return {"files": len((await self.client.page()).files), **listed}

    def map_path(self, id_map: str) -> Path:
        return self.export.with_name(id_map)


@pytest.fixture
def migration(running: RunningVectors, tmp_path: Path) -> Migration:
    """Return an empty export and an empty server."""
    return Migration(running, tmp_path)


async def test_deleted_objects_are_imported_again_with_another_map(migration: Migration) -> None:
    """Although the server remembers the request ids for a day."""
    (migration.files / "file-old").write_text("The fox is called Zorbo.")
    attachments = [{"file_id": "file-old", "tools": []}]
    messages = (make_message(0, attachments=attachments), make_message(1))
    lines = (FILE, STORE, STORE_FILE, THREAD, *messages)
    first = await migration.run(*lines)
    thread_id = migration.new_id("thread_old")
    deletion = thread_service_pb2.DeleteThreadRequest(thread_id=thread_id)
    await migration.server.call(deletion, Message)
    await migration.vectors.call("DeleteVectorStore", vector_store_id=migration.new_id("vs_old"))
    await migration.client.delete(migration.new_id("file-old"))
    again = await migration.run(*lines, id_map="others")
    store = await migration.vectors.wait_for_files(migration.new_id("vs_old", "others"))
    request = message_service_pb2.ListMessagesRequest(
        thread_id=migration.new_id("thread_old", "others")
    )
    there = [each async for each in migration.server.list_all(request, "messages")]

    assert first == again == {"files": 1, "vector stores": 1, "threads": 1, "messages": 2}
    assert store.file_counts.completed == 1
    assert len(there) == 2


async def test_a_dry_run_says_what_the_import_does(migration: Migration) -> None:
    """With what is skipped, by its ids: a file that is missing, and what refers to it."""
    (migration.files / "file-old").write_text("The fox is called Zorbo.")
    missing = {**FILE, "id": "file-gone"}
    attachments: Any = [{"file_id": each, "tools": []} for each in ("file-old", "file-gone")]
    messages = (make_message(0, attachments=attachments), make_message(1, content=[]))
    expired = {**STORE, "id": "vs_gone", "status": "expired"}
    lines = (FILE, missing, STORE, STORE_FILE, expired, ASSISTANT, THREAD, *messages)
    planned = await migration.run(*lines, is_dry=True), migration.skipped
    before = await migration.num_objects()
    done = await migration.run(*lines), migration.skipped

    assert planned == done
    assert before == {"files": 0, "vector_stores": 0, "assistants": 0, "threads": 0}
    assert done == (
        {"files": 1, "vector stores": 1, "assistants": 1, "threads": 1, "messages": 1},
        {
            "files without their content": ["file-gone"],
            "references to files that were not imported": ["file-gone"],
            "expired vector stores": ["vs_gone"],
            "messages without content": ["msg_old1"],
        },
    )
    assert (await migration.run(*lines, is_dry=True)) == {}


async def test_an_interrupted_import_creates_everything_once(migration: Migration) -> None:
    """Killed after each object, before it is in the map, and repeated with an empty map."""
    (migration.files / "file-old").write_text("The fox is called Zorbo.")
    lines: list[dict[str, Any]] = [FILE, STORE, STORE_FILE, ASSISTANT, THREAD]
    lines += map(make_message, range(3))
    for num_kills in count():
        with suppress(KilledError):
            await migration.run(*lines, id_map=f"ids{num_kills}", adds_left=num_kills)
            break
    thread_id = migration.new_id("thread_old", f"ids{num_kills}")
    messages = message_service_pb2.ListMessagesRequest(thread_id=thread_id)
    store = await migration.vectors.get(migration.new_id("vs_old", f"ids{num_kills}"))

    assert num_kills == 7
    assert await migration.num_objects() == {
        "files": 1,
        "vector_stores": 1,
        "assistants": 1,
        "threads": 1,
    }
    assert len([each async for each in migration.server.list_all(messages, "messages")]) == 3
    assert store.file_counts.total == 1


async def test_an_id_cannot_be_a_path(migration: Migration, tmp_path: Path) -> None:
    """Files outside the folder are neither uploaded nor written."""
    (tmp_path / "secret").write_text("mine")
    absolute = str(tmp_path / "secret")
    ids = ["../secret", absolute, "..", ".", "", "a/../../secret", "a\0b", "x" * 300]
    counts = await migration.run(*({**FILE, "id": file_id} for file_id in ids))
    for file_id in ids:
        with pytest.raises(click.ClickException, match="no file name"):
            await download(migration.server, file_pb2.File(id=file_id), migration.files)

    assert counts == {}
    assert (tmp_path / "secret").read_text() == "mine"
    assert not any(migration.files.iterdir())


async def test_a_link_instead_of_a_file_is_refused(migration: Migration, tmp_path: Path) -> None:
    """An export cannot cause other files to be uploaded."""
    (tmp_path / "secret").write_text("mine")
    (migration.files / "file-old").symlink_to(tmp_path / "secret")

    with pytest.raises(click.ClickException, match="is a link"):
        await migration.run(FILE)
    assert not (await migration.client.page()).files


async def test_a_map_of_deleted_objects_is_refused(migration: Migration) -> None:
    """Otherwise nothing would be imported, without an error."""
    assert await migration.run(STORE) == {"vector stores": 1}
    await migration.vectors.call("DeleteVectorStore", vector_store_id=migration.new_id("vs_old"))

    with pytest.raises(click.ClickException, match="--id-map"):
        await migration.run(STORE)
