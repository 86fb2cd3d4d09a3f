"""Pages of files by purpose contain the same files as an in-memory filter."""

import asyncio
import itertools
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from corral.control.v1 import file_service_pb2 as pb
from corral.control.v1 import listing_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

from control_svc.base.ids import FILE, IdSource
from control_svc.base.pagination import PageTokens
from control_svc.blobs.local import FolderBlobs
from control_svc.db.engine import Database
from control_svc.db.transaction import Transaction
from control_svc.files.model import File, FileLimits, FilePurpose
from control_svc.files.proto import PURPOSES
from control_svc.files.queries import FileQueries
from control_svc.files.service import Files
from svc_kit.fair_semaphore import FairSemaphore
from tests.support.examples import examples
from tests.support.jobs import open_test_database

NOW = datetime(2026, 11, 22, tzinfo=UTC)
FILES = st.lists(st.tuples(st.sampled_from(FilePurpose), st.booleans()), max_size=12)
"""Purpose of each file, and whether it has expired."""
numbers = itertools.count()


@dataclass(frozen=True)
class FileStore:
    """A database with its event loop. Each example uses a new project."""

    runner: asyncio.Runner
    database: Database
    files: Files
    ids: IdSource

    def add(self, project: str, specs: list[tuple[FilePurpose, bool]]) -> list[File]:
        """Add files and return them in order of their ids."""
        files = [self._file(purpose, has_expired) for purpose, has_expired in specs]

        async def add(tx: Transaction) -> None:
            for file in files:
                await FileQueries(tx).add(file)

        self.runner.run(self.database.transactions.of(project).write(add))
        return files

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
def store() -> Iterator[FileStore]:
    """Open an SQLite database in a folder."""
    with asyncio.Runner() as runner, tempfile.TemporaryDirectory() as folder:
        opening = open_test_database(Path(folder))
        database = runner.run(opening.__aenter__())
        ids, tokens = IdSource(lambda: NOW - timedelta(days=1)), PageTokens(b"key")
        blobs, limits = FolderBlobs(Path(folder)), FileLimits(1, 1)
        files = Files(
            database.transactions, ids, tokens, lambda: NOW, blobs, limits, FairSemaphore(1)
        )
        yield FileStore(runner, database, files, ids)
        runner.run(opening.__aexit__(None, None, None))


@settings(max_examples=examples(60), deadline=None)
@given(
    specs=FILES,
    purpose=st.none() | st.sampled_from(FilePurpose),
    size=st.integers(1, 5),
    newest_first=st.booleans(),
    by_token=st.booleans(),
    deleted=st.sets(st.integers(0, 11)),
)
def test_pages_contain_each_file_of_a_purpose_once_in_order(
    store: FileStore,
    specs: list[tuple[FilePurpose, bool]],
    purpose: FilePurpose | None,
    size: int,
    newest_first: bool,
    by_token: bool,
    deleted: set[int],
) -> None:
    """With tokens or ids as cursors, also if listed files are deleted between pages."""
    project, other = f"p{next(numbers)}", f"p{next(numbers)}"
    files = store.add(project, specs)
    store.add(other, specs)
    unexpired = [file for file in files if file.expires_at is None]
    expected = [file.id for file in unexpired if purpose in (None, file.purpose)]
    listed: list[str] = []
    wanted: dict[str, Any] = {
        "page_size": size,
        "order": listing_pb2.LIST_ORDER_NEWEST_FIRST
        if newest_first
        else listing_pb2.LIST_ORDER_OLDEST_FIRST,
        "purpose": 0 if purpose is None else PURPOSES.encode(purpose),
    }
    request = pb.ListFilesRequest(**wanted)
    while True:
        page = store.runner.run(store.files.ListFiles(project, request))
        listed += [file.id for file in page.items]
        for file in page.items:
            if files.index(file) in deleted:
                store.runner.run(
                    store.files.DeleteFile(project, pb.DeleteFileRequest(file_id=file.id))
                )
        if not page.next_token:
            break
        assert len(page.items) == size
        cursor: dict[str, Any] = (
            {"page_token": page.next_token} if by_token else {"after": page.items[-1].id}
        )
        request = pb.ListFilesRequest(**wanted, **cursor)

    assert listed == (expected[::-1] if newest_first else expected)
