"""Documents are stored as JSON of both databases, and nothing in them is lost."""

import asyncio
import json
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import example, given, settings
from hypothesis import strategies as st

from control_svc.assistants.queries import AssistantRow
from control_svc.db.documents import OLD_SUFFIX, ConversionRow, convert_rows
from control_svc.db.engine import Database
from control_svc.db.transaction import CrossProjectTransaction
from tests.support.examples import examples, timeout
from tests.support.jobs import open_test_database
from tests.support.postgres import create_database, run_test_postgres

TEXTS = st.text(st.characters(exclude_categories=[])) | st.text("\\u01d8\0\1\ud800\ue000")
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
)  # fmt: skip
DOCUMENTS = st.lists(VALUES, max_size=4) | st.dictionaries(TEXTS, VALUES, max_size=4)


def equal(value: Any, expected: Any) -> bool:
    """Whether a value was read as it was written. Floats may be written without exponents."""
    if isinstance(expected, float):
        return float(value) == expected
    if isinstance(expected, list):
        return len(value) == len(expected) and all(map(equal, value, expected))
    if isinstance(expected, dict):
        return value.keys() == expected.keys() and all(
            equal(value[key], each) for key, each in expected.items()
        )
    return type(value) is type(expected) and value == expected


async def replace_document(database: Database, document: bytes, *, old: bool) -> None:
    """Store a document as the only one, as this release does or as release 0.1 did."""

    async def write(tx: CrossProjectTransaction) -> None:
        for each in (AssistantRow, ConversionRow):
            await tx.session.execute(sa.delete(each))
        values = {"project": "p", "id": "a", "created_at": datetime.now(UTC), "revision": 0}
        new = {} if old else {"document": document}
        await tx.session.execute(sa.insert(AssistantRow).values(**values, **new, options=b""))
        if old:
            name = f"document{OLD_SUFFIX}" if database.is_shared else "document"
            rows = sa.table("assistants", sa.column(name, sa.LargeBinary))
            await tx.session.execute(sa.update(rows).values({name: document}))
            await tx.session.execute(
                sa.insert(ConversionRow).values(name="assistants", last_key="[]")
            )

    await database.across_projects.write(write)


async def read_document(database: Database) -> Any:
    async def read(tx: CrossProjectTransaction) -> bytes:
        return (await tx.session.execute(sa.select(AssistantRow.document))).scalar_one()

    return json.loads(await database.across_projects.read(read))


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> Iterator[str | None]:
    """The URL of an empty database; None for SQLite."""
    if request.param == "sqlite":
        yield None
        return
    with run_test_postgres() as server:
        yield create_database(server)


@timeout(120)  # the server starts
def test_documents_are_read_as_they_were_written(url: str | None) -> None:
    """Also those of release 0.1, before and after their conversion."""

    async def check(database: Database, document: bytes) -> None:
        expected = json.loads(document)
        await replace_document(database, document, old=False)
        assert equal(await read_document(database), expected)
        await replace_document(database, document, old=True)
        assert equal(await read_document(database), expected)
        converted = await database.across_projects.write(convert_rows)
        assert converted
        assert equal(await read_document(database), expected)

    with tempfile.TemporaryDirectory() as folder, asyncio.Runner() as runner:
        opened = open_test_database(Path(folder), url)
        database = runner.run(opened.__aenter__())

        @settings(deadline=None, max_examples=examples(25))
        @example([1e308, 5e-324, -0.0, 2**70, 10**400])
        @example({"a\0": ["\\u0000", "\\\0", "\1" + "0000", "\0\1\0"]})
        @given(DOCUMENTS)
        def check_document(document: Any) -> None:
            runner.run(check(database, json.dumps(document).encode()))
            written = json.dumps(document, ensure_ascii=False)
            if not any("\ud800" <= character <= "\udfff" for character in written):
                runner.run(check(database, written.encode()))

        check_document()
        runner.run(opened.__aexit__(None, None, None))
