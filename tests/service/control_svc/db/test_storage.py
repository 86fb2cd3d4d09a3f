"""The database and the folder of bytes: that they belong together, and what each does alone."""

from datetime import timedelta
from pathlib import Path

import pytest
from asyncpg import InternalClientError  # type: ignore[import-untyped]
from sqlalchemy.exc import DBAPIError

from control_svc.app import build, upgrade_database
from control_svc.blobs.local import FolderBlobs
from control_svc.config import ControlSettings
from control_svc.db.engine import open_database
from control_svc.db.transaction import Transaction
from control_svc.files.queries import delete_expired_files
from control_svc.schema import BLOB_COLUMNS
from control_svc.sweeper import Sweeper
from svc_kit.errors import StorageFailed, UpstreamUnavailable
from svc_kit.lifecycle import StartupError
from tests.support.control import SetClock


async def start(data_dir: Path, url: str | None = None) -> None:
    """Start a control service over its own folder of bytes, and stop it."""
    settings = ControlSettings(
        listen="127.0.0.1:0", management_listen=None, data_dir=data_dir, database_url=url
    )
    async with build(settings):
        pass


async def store(blobs: FolderBlobs, content: bytes = b"kept") -> str:
    """Complete bytes; their key."""
    async with blobs.create() as sink:
        await sink.write(content)
        return (await sink.commit()).key


async def everything(blobs: FolderBlobs) -> list[str]:
    """All keys in a store."""
    groups = blobs.keys()
    return [stored.key async for group in groups for stored in group]


@pytest.fixture
def blobs(tmp_path: Path) -> FolderBlobs:
    """An empty store, where a control service with `tmp_path` for its data has it."""
    blobs = FolderBlobs(tmp_path / "control" / "blobs")
    blobs.prepare()
    return blobs


async def test_a_folder_is_one_databases(tmp_path: Path, blobs: FolderBlobs) -> None:
    """To another one all of its files would be orphans."""
    await start(tmp_path)
    await store(blobs)
    await start(tmp_path)

    with pytest.raises(StartupError, match="files of another database"):
        await start(tmp_path, f"sqlite:///{tmp_path / 'other' / 'db.sqlite3'}")


async def test_files_of_nobody_known_are_left_alone(tmp_path: Path, blobs: FolderBlobs) -> None:
    """Until the operator says whose they are, in the words of the refusal."""
    await store(blobs)
    with pytest.raises(StartupError, match="does not say of which database") as refusal:
        await start(tmp_path)

    installation = str(refusal.value).partition("write ")[2].split()[0]
    (tmp_path / "control" / "blobs" / "INSTALLATION").write_text(f"{installation}\n")
    await start(tmp_path)


async def test_one_data_folder_is_one_process_s(tmp_path: Path) -> None:
    """Also where each has a SQLite file of its own elsewhere."""
    one, two = (f"sqlite:///{tmp_path / name / 'db.sqlite3'}" for name in ("one", "two"))
    async with open_database(one, tmp_path / "data"):
        with pytest.raises(StartupError, match="another control process"):
            async with open_database(two, tmp_path / "data"):
                pass


async def test_what_is_no_folder_holds_no_bytes(tmp_path: Path, blobs: FolderBlobs) -> None:
    """File managers leave things of their own."""
    key = await store(blobs)
    folder = tmp_path / "control" / "blobs"
    shard = "ab" if not key.startswith("ab") else "cd"  # keys are random
    for name in (".DS_Store", shard):
        (folder / name).write_bytes(b"")

    assert await everything(blobs) == [key]


async def test_small_chunks_do_not_pile_up(tmp_path: Path, blobs: FolderBlobs) -> None:
    """Each is an object many times its size; empty ones are nothing at all."""

    def written() -> list[int]:
        incoming = tmp_path / "control" / "blobs" / "incoming"
        return [path.stat().st_size for path in incoming.iterdir()]

    async with blobs.create() as sink:
        for _ in range(1000):
            await sink.write(b"")
        assert written() == []
        for _ in range(512):  # the second batch waits for the first
            await sink.write(b"x")
        assert written()[0] >= 256
        assert sink.size_bytes == 512


async def test_orphans_go_while_the_database_has_no_room(
    tmp_path: Path, blobs: FolderBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are the room that the rest of the round needs."""

    async def refuse(_: object) -> None:
        raise StorageFailed(problem="the database's disk is full")

    await upgrade_database(ControlSettings(data_dir=tmp_path))
    await store(blobs)
    clock = SetClock()
    clock.advance(days=1)
    async with open_database(None, tmp_path / "control") as database:
        monkeypatch.setattr(database.transactions, "write", refuse)
        sweeper = Sweeper(
            database.transactions,
            blobs,
            clock,
            timedelta(hours=1),
            [delete_expired_files],
            BLOB_COLUMNS,
        )
        with pytest.raises(StorageFailed):
            await sweeper.sweep()

    assert await everything(blobs) == []


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("sslmode=require", "cannot be used"),
        ("sslmode=perhaps", "sslmode in database_url is one of disable"),
        ("sslrootcert=a&connect_timeout=3", "not known: connect_timeout, sslrootcert"),
    ],
)
async def test_options_of_a_url_work_or_are_named(tmp_path: Path, query: str, words: str) -> None:
    """Nobody listens there, so what is understood gets as far as that."""
    with pytest.raises(StartupError, match=words):
        await start(tmp_path, f"postgresql://nobody@127.0.0.1:1/x?{query}")


@pytest.mark.parametrize("state", ["55P03", "57014"])
async def test_a_database_that_lets_us_wait_too_long_is_unavailable(
    tmp_path: Path, state: str
) -> None:
    """A lock that was not to be had and a statement that ran out of time: come back later."""

    class Refusal(Exception):
        sqlstate = state

    async def work(_: Transaction) -> None:
        raise DBAPIError("UPDATE", {}, Refusal())

    async with open_database(None, tmp_path) as database:
        with pytest.raises(UpstreamUnavailable):
            await database.transactions.write(work)


async def test_an_answer_that_was_cut_off_is_unavailable(tmp_path: Path) -> None:
    """The driver of PostgreSQL then raises an error about itself."""

    async def work(_: Transaction) -> None:
        raise InternalClientError("got result for unknown protocol state 3")

    async with open_database(None, tmp_path) as database:
        for run in (database.transactions.write, database.transactions.read):
            with pytest.raises(UpstreamUnavailable):
                await run(work)
