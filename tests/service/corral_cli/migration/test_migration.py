"""Imports at a real control service: again after what they had made is deleted, and what a hostile
export or server names."""

import json
from collections.abc import AsyncIterator
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
from corral.control.v1.assistant_service_pb2_grpc import AssistantServiceStub
from corral.control.v1.message_service_pb2_grpc import MessageServiceStub
from corral.control.v1.thread_service_pb2_grpc import ThreadServiceStub

from corral_cli.migration import importer
from corral_cli.migration.export_file import look_through
from corral_cli.migration.file_transfer import download
from corral_cli.migration.id_map import IdMap
from corral_cli.migration.importer import Importer
from corral_cli.migration.server import Server
from corral_cli.migration.translator import Translator
from tests.support.vectors import RunningVectors, running_vectors

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


def a_message(number: int, **about: Any) -> dict[str, Any]:
    """A message of the thread."""
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
    """A control service that can embed."""
    async with running_vectors(tmp_path) as opened:
        yield opened


class House:
    """An export, and the server that it is brought to."""

    def __init__(self, running: RunningVectors, folder: Path) -> None:
        self.client = running.control.client
        self.vectors = running.vectors
        self.export = folder / "export.jsonl"
        self.files = folder / "export.jsonl.files"
        self.files.mkdir()
        channel = self.client.channel
        self.server = Server(
            AssistantServiceStub(channel),
            ThreadServiceStub(channel),
            MessageServiceStub(channel),
            self.client.files,
            self.vectors.stores,
            self.vectors.files,
        )

    async def bring(self, *lines: dict[str, Any], id_map: str = "ids") -> dict[str, int]:
        """Import these lines; what was brought."""
        self.export.write_text("".join(json.dumps(line) + "\n" for line in lines))
        found = look_through(self.export)
        with IdMap(self.path_of(id_map), "here") as ids:
            translator = Translator({}, "", ids.get, with_search=True)
            importer = Importer(self.server, found, ids, translator, self.files)
            _ = [step async for step in importer.steps()]
        return {kind: count for kind, count in importer.brought.items() if count}

    def new(self, old: str, id_map: str = "ids") -> str:
        """What an object has become."""
        found = IdMap(self.path_of(id_map), "here").get(old)
        assert found is not None
        return found

    async def num_objects(self) -> dict[str, int]:
        """How many of each kind there are here."""
        server = self.server
        stores = await server.stores.ListVectorStores(
            vector_store_service_pb2.ListVectorStoresRequest()
        )
        assistants = await server.assistants.ListAssistants(
            assistant_service_pb2.ListAssistantsRequest()
        )
        threads = await server.threads.ListThreads(thread_service_pb2.ListThreadsRequest())
        return {
            "files": len((await self.client.page()).files),
            "stores": len(stores.vector_stores),
            "assistants": len(assistants.assistants),
            "threads": len(threads.threads),
        }

    def path_of(self, id_map: str) -> Path:
        """Where a map is."""
        return self.export.with_name(id_map)


@pytest.fixture
def house(running: RunningVectors, tmp_path: Path) -> House:
    """An empty one."""
    return House(running, tmp_path)


async def test_what_was_deleted_is_brought_anew(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With another map, at once: requests of the same names are remembered for a day."""
    monkeypatch.setattr(importer, "FIRST_MESSAGES", 1)
    (house.files / "file-old").write_text("The fox is called Zorbo.")
    attachments = [{"file_id": "file-old", "tools": []}]
    messages = (a_message(0, attachments=attachments), a_message(1))
    lines = (FILE, STORE, STORE_FILE, THREAD, *messages)
    first = await house.bring(*lines)
    thread_id = house.new("thread_old")
    await house.server.threads.DeleteThread(
        thread_service_pb2.DeleteThreadRequest(thread_id=thread_id)
    )
    await house.vectors.ask("DeleteVectorStore", vector_store_id=house.new("vs_old"))
    await house.client.delete(house.new("file-old"))
    again = await house.bring(*lines, id_map="others")
    store = await house.vectors.read(house.new("vs_old", "others"))
    there = await house.server.messages.ListMessages(
        message_service_pb2.ListMessagesRequest(thread_id=house.new("thread_old", "others"))
    )

    assert first == again == {"files": 1, "vector stores": 1, "threads": 1, "messages": 2}
    assert store.file_counts.completed == 1
    assert len(there.messages) == 2


class Killed(Exception):
    """The import is, with an object made that the map does not know."""


async def test_an_import_that_is_killed_anywhere_makes_everything_once(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind each object before its line in the map, and without any map at the next start."""
    monkeypatch.setattr(importer, "FIRST_MESSAGES", 1)
    (house.files / "file-old").write_text("The fox is called Zorbo.")
    lines: list[dict[str, Any]] = [FILE, STORE, STORE_FILE, ASSISTANT, THREAD]
    lines += map(a_message, range(3))
    add, num_left = IdMap.add, 0

    def add_some(ids: IdMap, pairs: dict[str, str]) -> None:
        nonlocal num_left
        if not num_left:
            raise Killed
        num_left -= 1
        add(ids, pairs)

    monkeypatch.setattr(IdMap, "add", add_some)
    num_kills = 0
    while True:
        num_left = num_kills
        try:
            await house.bring(*lines, id_map=f"ids{num_kills}")
        except Killed:
            num_kills += 1
        else:
            break
    thread_id = house.new("thread_old", f"ids{num_kills}")
    messages = message_service_pb2.ListMessagesRequest(thread_id=thread_id)
    store = await house.vectors.get(house.new("vs_old", f"ids{num_kills}"))

    assert num_kills == 7
    assert await house.num_objects() == {"files": 1, "stores": 1, "assistants": 1, "threads": 1}
    assert len((await house.server.messages.ListMessages(messages)).messages) == 3
    assert store.file_counts.total == 1


async def test_an_id_is_never_a_path(house: House, tmp_path: Path) -> None:
    """Nothing beside the folder is given away, and no server writes there."""
    (tmp_path / "secret").write_text("mine")
    absolute = str(tmp_path / "secret")
    ids = ["../secret", absolute, "..", ".", "", "a/../../secret", "a\0b", "x" * 300]
    brought = await house.bring(*({**FILE, "id": file_id} for file_id in ids))
    for file_id in ids:
        with pytest.raises(click.ClickException, match="no name"):
            await download(house.client.files, file_pb2.File(id=file_id), house.files)

    assert brought == {}
    assert (tmp_path / "secret").read_text() == "mine"
    assert not any(house.files.iterdir())


async def test_a_link_among_the_bytes_is_refused(house: House, tmp_path: Path) -> None:
    """Who packed an export does not choose which file of this machine is uploaded."""
    (tmp_path / "secret").write_text("mine")
    (house.files / "file-old").symlink_to(tmp_path / "secret")

    with pytest.raises(click.ClickException, match="is a link"):
        await house.bring(FILE)
    assert not (await house.client.page()).files


async def test_a_map_of_stores_that_are_not_here_is_refused(house: House) -> None:
    """Without a word nothing would be brought."""
    assert await house.bring(STORE) == {"vector stores": 1}
    await house.vectors.ask("DeleteVectorStore", vector_store_id=house.new("vs_old"))

    with pytest.raises(click.ClickException, match="--id-map"):
        await house.bring(STORE)
