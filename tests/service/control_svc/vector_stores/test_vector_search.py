"""Search on all databases, with several processes and stores, and after a change of the model."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, cast

import pytest
import sqlalchemy as sa
from pydantic import SecretStr

from control_svc.app import upgrade_database, utc_now
from control_svc.base.ids import IdSource
from control_svc.config import ControlSettings
from control_svc.db.engine import open_database
from control_svc.vector_stores.membership import FileAdder
from control_svc.vector_stores.search.chunk_index import HAS_VECTORS
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
    WordInference,
    run_vectors,
)

LETTERS = {
    "red.txt": "The red fox sleeps in the old barn.",
    "blue.txt": "A blue whale swims in the cold sea.",
    "green.txt": "Green apples hang on the old tree.",
    "tokyo.txt": "東京 has a tower; Straße means street, naïve or not.",
}
QUERIES = ("old tree", "fox in the barn", "cold blue sea", "京", "STRASSE", "nothing of it", "?!")
WITHOUT_PGVECTOR = "ALTER TABLE vector_chunk_index DROP COLUMN IF EXISTS embedding"
WITH_PGVECTOR = (
    "ALTER TABLE vector_chunk_index ADD COLUMN IF NOT EXISTS embedding vector,"
    " ALTER COLUMN embedding SET NOT NULL"
)


@pytest.fixture
async def bare_postgres_url(postgres_url: str) -> AsyncIterator[str]:
    """A PostgreSQL without pgvector."""
    await execute(postgres_url, WITHOUT_PGVECTOR)
    yield postgres_url
    await execute(postgres_url, "DELETE FROM vector_chunk_index", WITH_PGVECTOR)


async def search_all(folder: Path, url: str | None, **settings: object) -> list[list[object]]:
    """The filenames and scores of the hits of each query."""
    async with run_vectors(folder, url, vector_stores=settings) as running:
        store_id, _ = await running.vectors.create_with_files(LETTERS)
        return [
            [(hit.filename, hit.score) for hit in await running.vectors.search(store_id, query)]
            for query in QUERIES
        ]


async def test_all_databases_return_equal_hits_and_scores(
    tmp_path: Path, postgres_url: str
) -> None:
    """SQLite with and without the index in memory, PostgreSQL with and without pgvector."""
    folders = [tmp_path / name for name in ("memory", "scan", "pgvector", "bare")]
    for folder in folders:
        folder.mkdir()
    expected = await search_all(folders[0], None)

    assert await search_all(folders[1], None, index_bytes=0) == expected
    await execute(postgres_url, WITH_PGVECTOR)
    assert await search_all(folders[2], postgres_url) == expected
    await execute(postgres_url, WITHOUT_PGVECTOR)
    assert await search_all(folders[3], postgres_url) == expected
    await execute(postgres_url, "DELETE FROM vector_chunk_index", WITH_PGVECTOR)
    first = [hits[0] for hits in expected]
    assert [cast("tuple[str, float]", hit)[0] for hit in first[:5]] == [
        *("green.txt", "red.txt", "blue.txt", "tokyo.txt", "tokyo.txt")
    ]


async def test_pgvector_can_be_installed_and_removed_later(
    tmp_path: Path, bare_postgres_url: str
) -> None:
    """An upgrade adds the chunks that are there; without the column they are found in memory."""
    settings = ControlSettings(database_url=SecretStr(bare_postgres_url))
    async with run_vectors(tmp_path, bare_postgres_url) as running:
        vectors = running.vectors
        store_id, _ = await vectors.create_with_files(LETTERS)
        expected = [await vectors.search(store_id, query) for query in QUERIES]

        await upgrade_database(settings)
        assert await indexed_chunks(bare_postgres_url) == len(LETTERS)
        assert [await vectors.search(store_id, query) for query in QUERIES] == expected
        await vectors.add_file(store_id, "the red fox", "late.txt")
        await vectors.wait_for_files(store_id)
        assert await indexed_chunks(bare_postgres_url) == len(LETTERS) + 1
        await execute(bare_postgres_url, WITHOUT_PGVECTOR)
        names = await vectors.search_names(store_id, "fox in the barn")

    assert "late.txt" in names


async def indexed_chunks(url: str) -> int:
    """The number of vectors that PostgreSQL can search."""
    async with open_database(url, Path("unused")) as database, database.writer.connect() as reader:
        is_complete = (await reader.execute(HAS_VECTORS)).first() is not None
        query = sa.text("SELECT count(embedding) FROM vector_chunk_index")
        return int(await reader.scalar(query) or 0) if is_complete else 0


async def test_processes_see_each_others_changes(tmp_path: Path, bare_postgres_url: str) -> None:
    """Although each has its own index in memory."""
    async with AsyncExitStack() as stack:
        both: list[RunningVectors] = []
        for _ in range(2):
            running = run_vectors(tmp_path, bare_postgres_url)
            both.append(await stack.enter_async_context(running))
        one, two = (running.vectors for running in both)
        store_id, ids = await one.create_with_files({"a": "the red fox", "b": "the red deer"})
        assert await two.search_names(store_id, "red fox") == ["a", "b"]
        await one.add_file(store_id, "red fox, red fox", "c")
        await one.wait_for_files(store_id)
        assert "c" in await two.search_names(store_id, "red fox")
        await one.call("DeleteVectorStoreFile", vector_store_id=store_id, file_id=ids["a"])
        assert "a" not in await two.search_names(store_id, "red fox")


async def test_equal_chunks_are_ordered_by_age(tmp_path: Path) -> None:
    """Even if there are more of them than candidates, with and without the index in memory."""
    texts = {f"{number:02}.txt": "the red fox" for number in range(60)}
    async with run_vectors(tmp_path, None) as running:
        store_id, _ = await running.vectors.create_with_files(texts)
    names = []
    for index_bytes in (1 << 20, 0):
        settings = {"index_bytes": index_bytes}
        async with run_vectors(tmp_path, None, vector_stores=settings) as running:
            ranking = {"vector_weight": 1, "text_weight": 0}
            hits = await running.vectors.search(store_id, "fox", max_results=5, ranking=ranking)
            names.append([hit.filename for hit in hits])

    assert names[0] == sorted(texts)[:5]
    assert names[1] == names[0]


async def test_several_stores_are_searched_together(
    tmp_path: Path, database_url: str | None
) -> None:
    """Each chunk is returned once, with its best score."""
    async with run_vectors(tmp_path, database_url) as running:
        one, _ = await running.vectors.create_with_files({"a": "the red fox", "b": "the old tree"})
        two, _ = await running.vectors.create_with_files({"c": "the red fox and the deer"})
    async with open_database(database_url, tmp_path / "control") as database:
        search = VectorSearch(
            database.transactions,
            WordEmbedder(),
            VectorIndex(1 << 20),
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
async def test_another_model_with_the_same_name_is_rejected(
    tmp_path: Path, database_url: str | None, other: dict[str, Any]
) -> None:
    """By searches and by ingestion, even if the dimensions are equal."""
    async with run_vectors(tmp_path, database_url) as first:
        store_id, _ = await first.vectors.create_with_files({"a": "the red fox"})
    replaced = WordInference()
    vars(replaced).update(other)
    async with run_vectors(tmp_path, database_url, replaced) as second:
        with pytest.raises(EmbeddingModelChanged):
            await second.vectors.search(store_id, "fox")
        file_id = await second.vectors.add_file(store_id, "the blue fox")
        await second.vectors.wait_for_files(store_id)
        file = await second.vectors.get_file(store_id, file_id)

    assert "no longer serves, or serves from another file" in file.error.message
