"""Many files in few statements, for which a store is locked."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa

from control_svc.base.ids import FILE, VECTOR_STORE, IdSource
from control_svc.db.engine import Database
from control_svc.db.transaction import Transaction
from control_svc.files.model import File, FilePurpose
from control_svc.files.queries import FileQueries
from control_svc.vector_stores.membership import FileAdder, set_file_states
from control_svc.vector_stores.model import FileState, NewStoreFile, NewVectorStore, StoreFile
from control_svc.vector_stores.queries import StoreFileQueries, VectorStoreQueries
from control_svc.vector_stores.service import remove_deleted_files
from svc_kit.errors import FileNotFound
from tests.support.control import SetClock

NUM_FILES = 40


@contextmanager
def count_statements() -> Iterator[list[str]]:
    """Yield a list to which each statement that is sent to the database is added."""
    sent: list[str] = []

    def add(_: object, __: object, statement: str, *___: Any) -> None:
        sent.append(statement)

    sa.event.listen(sa.Engine, "before_cursor_execute", add)
    try:
        yield sent
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", add)


def make_file(file_id: str, now: datetime) -> File:
    return File(
        id=file_id,
        filename="a.txt",
        purpose=FilePurpose.USER_DATA,
        size_bytes=1,
        sha256="0" * 64,
        blob_key=file_id,
        created_at=now,
        expires_at=None,
    )


@pytest.fixture
def ids(clock: SetClock) -> IdSource:
    return IdSource(clock)


@pytest.fixture
def store_id(ids: IdSource) -> str:
    return ids.new(VECTOR_STORE)


@pytest.fixture
async def files(
    database: Database, clock: SetClock, ids: IdSource, store_id: str
) -> Sequence[NewStoreFile]:
    """Files that a new store can get."""
    created = [make_file(ids.new(FILE), clock()) for _ in range(NUM_FILES)]

    async def add(tx: Transaction) -> None:
        for file in created:
            await FileQueries(tx).add(file)
        await VectorStoreQueries(tx).add(NewVectorStore().make(store_id, clock()))

    await database.transactions.of("p").write(add)
    return [NewStoreFile(file_id=file.id) for file in created]


async def test_the_number_of_files_does_not_change_that_of_statements(
    database: Database,
    clock: SetClock,
    ids: IdSource,
    store_id: str,
    files: Sequence[NewStoreFile],
) -> None:
    """When they are added, join a batch, are replaced, and are cancelled."""
    adder = FileAdder(ids, clock, "embedder")

    async def change(some: Sequence[NewStoreFile], tx: Transaction) -> list[StoreFile]:
        added = await adder.add(tx, store_id, some)
        assert [file.batch_id for file in added] == [None] * len(some)
        joined = await adder.add(tx, store_id, some, "vsfb_1")
        assert [file.entry for file in joined] == [file.entry for file in added]
        changed = [replace(file, attributes={"year": 2026.0}) for file in some]
        replaced = await adder.add(tx, store_id, changed)
        assert not {file.entry for file in replaced} & {file.entry for file in added}
        store = await VectorStoreQueries(tx).lock(store_id)
        store = await set_file_states(tx, store, replaced, FileState.CANCELLED)
        await VectorStoreQueries(tx).update(store)
        return replaced

    async def find(file_ids: Sequence[str], tx: Transaction) -> dict[str, StoreFile]:
        return await StoreFileQueries(tx).find(store_id, file_ids)

    counts, transactions = list[int](), database.transactions.of("p")
    for some in (files[:2], files[2:]):
        with count_statements() as sent:
            joined = await transactions.write(partial(change, some))
        counts.append(len(sent))
        file_ids = [each.file_id for each in some]
        found = await transactions.read(partial(find, file_ids))
        assert found == {each.file_id: replace(each, state=FileState.CANCELLED) for each in joined}
    store = await transactions.read(lambda tx: VectorStoreQueries(tx).get(store_id))

    assert counts[0] == counts[1]
    assert (store.counts.cancelled, store.counts.in_progress) == (NUM_FILES, 0)


async def test_files_that_are_gone_leave_their_stores_together(
    database: Database,
    clock: SetClock,
    ids: IdSource,
    store_id: str,
    files: Sequence[NewStoreFile],
) -> None:
    """One transaction of the sweeper for each store, whatever the number of files."""
    adder, other_id = FileAdder(ids, clock, "embedder"), ids.new(VECTOR_STORE)
    transactions = database.transactions.of("p")

    async def add(tx: Transaction) -> None:
        await VectorStoreQueries(tx).add(NewVectorStore().make(other_id, clock()))
        for store, some in ((store_id, files), (other_id, files[:5])):
            await adder.add(tx, store, some)
        for file in files[1:]:
            await FileQueries(tx).delete(file.file_id, clock())

    await transactions.write(add)
    removed = []
    while True:
        step = partial(remove_deleted_files, _now=clock())
        removed.append((await database.across_projects.delete(step)).num_rows)
        if not removed[-1]:
            break
    stores = [
        await transactions.read(lambda tx: VectorStoreQueries(tx).get(store_id)),
        await transactions.read(lambda tx: VectorStoreQueries(tx).get(other_id)),
    ]

    assert sorted(removed) == [0, 4, NUM_FILES - 1]
    assert [store.counts.total for store in stores] == [1, 1]


async def test_the_first_file_that_is_missing_is_named(
    database: Database, clock: SetClock, files: Sequence[NewStoreFile]
) -> None:
    """With the field that it is in, also if its id is malformed; each is read once."""
    known = [file.file_id for file in files]
    missing = f"{FILE}{'9' * 24}"
    uses = [("a", known[0]), ("b", known[0]), ("c", missing), ("d", "\0"), ("e", missing)]
    transactions = database.transactions.of("p")

    async def find(some: Sequence[tuple[str, str]], tx: Transaction) -> dict[str, File]:
        return await FileQueries(tx).find(some, clock())

    assert set(await transactions.read(partial(find, uses[:2]))) == {known[0]}
    for start, field in ((0, "c"), (3, "d")):
        with pytest.raises(FileNotFound) as failed:
            await transactions.read(partial(find, uses[start:]))
        assert failed.value.field == field
