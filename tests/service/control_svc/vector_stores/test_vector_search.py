"""Search: alike on every database, between processes, over stores, and with another model."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, cast

import pytest

from control_svc.app import utc_now
from control_svc.base.ids import IdSource
from control_svc.db.engine import open_database
from control_svc.vector_stores.membership import FileAdder
from control_svc.vector_stores.search.model import Ranking
from control_svc.vector_stores.search.service import VectorSearch
from control_svc.vector_stores.search.vector_index import VectorIndex
from svc_kit.auth.principal import DEFAULT_PROJECT
from svc_kit.errors import EmbeddingModelChanged
from tests.support.batches import MODEL
from tests.support.postgres import execute
from tests.support.vectors import (
    RunningVectors,
    WordEmbedder,
    WordVectors,
    running_vectors,
)

LETTERS = {
    "red.txt": "The red fox sleeps in the old barn.",
    "blue.txt": "A blue whale swims in the cold sea.",
    "green.txt": "Green apples hang on the old tree.",
    "tokyo.txt": "東京 has a tower; Straße means street, naïve or not.",
}
QUERIES = ("old tree", "fox in the barn", "cold blue sea", "京", "STRASSE", "nothing of it", "?!")
WITHOUT_PGVECTOR = "ALTER TABLE vector_chunk_index DROP COLUMN IF EXISTS embedding"
WITH_PGVECTOR = "ALTER TABLE vector_chunk_index ADD COLUMN IF NOT EXISTS embedding vector"


@pytest.fixture
async def bare_postgres_url(postgres_url: str) -> AsyncIterator[str]:
    """A PostgreSQL whose tables have no column of pgvector's."""
    await execute(postgres_url, WITHOUT_PGVECTOR)
    yield postgres_url
    await execute(postgres_url, "DELETE FROM vector_chunk_index", WITH_PGVECTOR)


async def answers(folder: Path, url: str | None, **settings: object) -> list[list[object]]:
    """What each question finds, with scores."""
    async with running_vectors(folder, url, vector_stores=settings) as running:
        store_id, _ = await running.vectors.library(LETTERS)
        return [
            [(hit.filename, hit.score) for hit in await running.vectors.search(store_id, query)]
            for query in QUERIES
        ]


async def test_every_database_answers_alike(
    tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite from memory, SQLite read through, PostgreSQL with pgvector and without: the same
    passages in the same order with the same scores."""
    folders = [tmp_path / name for name in ("memory", "through", "pgvector", "bare")]
    for folder in folders:
        folder.mkdir()
    expected = await answers(folders[0], None)

    assert await answers(folders[1], None, index_bytes=0) == expected
    await execute(postgres_url, WITH_PGVECTOR)
    assert await answers(folders[2], postgres_url) == expected
    await execute(postgres_url, WITHOUT_PGVECTOR)
    assert await answers(folders[3], postgres_url) == expected
    await execute(postgres_url, "DELETE FROM vector_chunk_index", WITH_PGVECTOR)
    first = [found[0] for found in expected]
    assert [cast("tuple[str, float]", hit)[0] for hit in first[:5]] == [
        *("green.txt", "red.txt", "blue.txt", "tokyo.txt", "tokyo.txt")
    ]


async def test_what_one_process_changes_another_finds(
    tmp_path: Path, bare_postgres_url: str
) -> None:
    """And does not find any more, although each keeps vectors in its own memory. Either may read
    what is added: both have the bytes."""
    async with AsyncExitStack() as stack:
        both: list[RunningVectors] = []
        for _ in range(2):
            running = running_vectors(tmp_path, bare_postgres_url)
            both.append(await stack.enter_async_context(running))
        one, two = (running.vectors for running in both)
        store_id, ids = await one.library({"a": "the red fox", "b": "the red deer"})
        assert await two.found(store_id, "red fox") == ["a", "b"]
        await one.put(store_id, "red fox, red fox", "c")
        await one.read(store_id)
        assert "c" in await two.found(store_id, "red fox")
        await one.ask("DeleteVectorStoreFile", vector_store_id=store_id, file_id=ids["a"])
        assert "a" not in await two.found(store_id, "red fox")


async def test_of_passages_that_are_alike_the_oldest_come_first(tmp_path: Path) -> None:
    """Also where there are more of them than are looked at, in whatever order they were read."""
    texts = {f"{number:02}.txt": "the red fox" for number in range(60)}
    async with running_vectors(tmp_path, None) as running:
        store_id, _ = await running.vectors.library(texts)
    found = []
    for index_bytes in (1 << 20, 0):
        settings = {"index_bytes": index_bytes}
        async with running_vectors(tmp_path, None, vector_stores=settings) as running:
            ranking = {"vector_weight": 1, "text_weight": 0}
            hits = await running.vectors.search(store_id, "fox", max_results=5, ranking=ranking)
            found.append([hit.filename for hit in hits])

    assert found[0] == sorted(texts)[:5]
    assert found[1] == found[0]


async def test_several_stores_are_searched_at_once(
    tmp_path: Path, database_url: str | None
) -> None:
    """By the port that runs and responses hold: each passage once, with its best score."""
    async with running_vectors(tmp_path, database_url) as running:
        one, _ = await running.vectors.library({"a": "the red fox", "b": "the old tree"})
        two, _ = await running.vectors.library({"c": "the red fox and the deer"})
    async with open_database(database_url, tmp_path / "control") as database:
        search = VectorSearch(
            database.transactions,
            WordEmbedder(),
            VectorIndex(database.transactions, 1 << 20),
            FileAdder(IdSource(utc_now), utc_now, MODEL),
            utc_now,
        )
        ranking = Ranking(score_threshold=0.3)
        hits = await search.search(
            DEFAULT_PROJECT, [one, two, one], ["red fox", "deer"], 10, None, ranking
        )
        best = await search.search(DEFAULT_PROJECT, [two, one], ["tree"], 1, None, Ranking())

    assert [hit.filename for hit in hits] == ["a", "c"]
    assert hits[0].texts == ("the red fox",)
    assert [hit.filename for hit in best] == ["b"]


@pytest.mark.parametrize("other", [{"dimensions": 32}, {"digest": "b" * 64}], ids=str)
async def test_another_model_of_the_name_is_refused(
    tmp_path: Path, database_url: str | None, other: dict[str, Any]
) -> None:
    """Its vectors cannot be compared with those that are there, nor stand beside them, though they
    may be as long."""
    async with running_vectors(tmp_path, database_url) as first:
        store_id, _ = await first.vectors.library({"a": "the red fox"})
    replaced = WordVectors()
    vars(replaced).update(other)
    async with running_vectors(tmp_path, database_url, replaced) as second:
        with pytest.raises(EmbeddingModelChanged):
            await second.vectors.search(store_id, "fox")
        file_id = await second.vectors.put(store_id, "the blue fox")
        await second.vectors.read(store_id)
        file = await second.vectors.file(store_id, file_id)

    assert "no longer serves, or serves from another file" in file.error.message
