"""Lists of files, whatever is in them: a purpose and a cursor find what a plain list would."""

import asyncio
import itertools
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from control_svc.base.ids import FILE, IdSource
from control_svc.base.pagination import PageRequest, PageTokens
from control_svc.blobs.local import FolderBlobs
from control_svc.db.engine import Database
from control_svc.db.transaction import Transaction
from control_svc.files.model import File, FileLimits, FilePurpose
from control_svc.files.queries import FileQueries
from control_svc.files.service import Files
from tests.support.examples import examples
from tests.support.jobs import open_test_database

NOW = datetime(2026, 11, 22, tzinfo=UTC)
FILES = st.lists(st.tuples(st.sampled_from(FilePurpose), st.booleans()), max_size=12)
"""Of each: what it is for, and whether it has expired."""
numbers = itertools.count()


@dataclass(frozen=True)
class World:
    """A database with its loop: every example has a project of its own."""

    runner: asyncio.Runner
    database: Database
    files: Files
    ids: IdSource

    def add(self, project: str, described: list[tuple[FilePurpose, bool]]) -> list[File]:
        """Files in the order of their ids."""
        made = [self._file(purpose, has_expired) for purpose, has_expired in described]

        async def add(tx: Transaction) -> None:
            for file in made:
                await FileQueries(tx).add(project, file)

        self.runner.run(self.database.transactions.write(add))
        return made

    def _file(self, purpose: FilePurpose, has_expired: bool) -> File:
        return File(
            id=self.ids.new(FILE),
            filename="a",
            purpose=purpose,
            size_bytes=1,
            sha256="0" * 64,
            blob_key=f"{next(numbers):032x}",
            created_at=NOW,
            expires_at=NOW if has_expired else None,
        )


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """SQLite in a folder."""
    with asyncio.Runner() as runner, tempfile.TemporaryDirectory() as folder:
        opening = open_test_database(Path(folder))
        database = runner.run(opening.__aenter__())
        ids, tokens = IdSource(lambda: NOW - timedelta(days=1)), PageTokens(b"key")
        blobs, limits = FolderBlobs(Path(folder)), FileLimits(1, 1)
        files = Files(database.transactions, blobs, ids, tokens, limits, lambda: NOW)
        yield World(runner, database, files, ids)
        runner.run(opening.__aexit__(None, None, None))


@settings(max_examples=examples(60), deadline=None)
@given(
    described=FILES,
    purpose=st.none() | st.sampled_from(FilePurpose),
    size=st.integers(1, 5),
    newest_first=st.booleans(),
    by_token=st.booleans(),
    deleted=st.sets(st.integers(0, 11)),
)
def test_pages_of_a_purpose_are_what_a_plain_list_holds(
    world: World,
    described: list[tuple[FilePurpose, bool]],
    purpose: FilePurpose | None,
    size: int,
    newest_first: bool,
    by_token: bool,
    deleted: set[int],
) -> None:
    """Once each and in order, by tokens or by ids, also where what was shown last is gone."""
    project, other = f"p{next(numbers)}", f"p{next(numbers)}"
    files = world.add(project, described)
    world.add(other, described)
    alive = [file for file in files if file.expires_at is None]
    wanted = [file.id for file in alive if purpose in (None, file.purpose)]
    walked: list[str] = []
    asked = PageRequest(size, newest_first=newest_first)
    while True:
        page = world.runner.run(world.files.page(project, asked, purpose))
        walked += [file.id for file in page.items]
        for file in page.items:  # what was shown may go at once
            if files.index(file) in deleted:
                world.runner.run(world.files.delete(project, file.id))
        if not page.next_token:
            break
        assert len(page.items) == size
        cursor = {"token": page.next_token} if by_token else {"after": page.items[-1].id}
        asked = PageRequest(size, newest_first=newest_first, **cursor)

    assert walked == (wanted[::-1] if newest_first else wanted)
