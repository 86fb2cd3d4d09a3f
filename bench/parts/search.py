"""Filtered vector search: what an attribute filter costs, by the number of chunks of a store."""

import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import numpy as np
import sqlalchemy as sa

from bench.measurement import CORRAL, Measurement, Result, median
from bench.stage import Part, Stage
from control_svc.base.ids import FILE, VECTOR_STORE, VECTOR_STORE_ENTRY, IdSource
from control_svc.db import migrations
from control_svc.db.engine import Database, open_database
from control_svc.db.transaction import Transaction
from control_svc.files.model import File, FilePurpose
from control_svc.files.queries import FileQueries
from control_svc.inference.embeddings import EmbeddingModel, EmbeddingResult
from control_svc.vector_stores.filters import Comparator, Comparison, Compound, Filter, Junction
from control_svc.vector_stores.membership import FileAdder
from control_svc.vector_stores.model import FileState, StoreFile, VectorStore
from control_svc.vector_stores.queries import StoreFileQueries, VectorStoreQueries
from control_svc.vector_stores.search.chunk_queries import ChunkQueries
from control_svc.vector_stores.search.model import NewChunk, Ranking
from control_svc.vector_stores.search.service import VectorSearch
from control_svc.vector_stores.search.vector_index import VectorIndex
from tools.postgres import create_database, run_postgres

CHUNKS, QUICK_CHUNKS = (1, 100_000, 1_000_000), (1, 2_000)
SEARCHES, QUICK_SEARCHES = 15, 3
CHUNKS_OF_FILE: Final = 100
FILES_AT_ONCE: Final = 50
DIMENSIONS: Final = 64
INDEX_BYTES: Final = 1 << 30
DATABASES: Final = ("SQLite", "PostgreSQL")
MODEL, PROJECT = "bench", "bench"
UNFILTERED, FILTERED = "no filter", "filter"
MAX_COST: Final = 1.5
FILTER: Final[Filter] = Compound(
    Junction.AND,
    (
        Comparison("topic", Comparator.IN, ("topic 0", "topic 1", "topic 2")),
        Comparison("year", Comparator.GTE, 2010.0),
    ),
)
"""Matches 15 % of the files of a large store, and the only file of the smallest one."""


class RandomEmbedder:
    """Embeds a text as random numbers, so that no model is measured."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(1)

    async def model(self, project: str, name: str) -> EmbeddingModel:
        """Look up the only model."""
        return EmbeddingModel(MODEL, 1_000)

    async def count_tokens(
        self, project: str, model: EmbeddingModel, texts: Sequence[str]
    ) -> list[int]:
        """Count words."""
        return [len(each.split()) for each in texts]

    async def embed(
        self, project: str, model: str, texts: Sequence[str], *, is_background: bool
    ) -> EmbeddingResult:
        """Return normalized random vectors."""
        vectors = self._random.standard_normal((len(texts), DIMENSIONS), np.float32)
        return EmbeddingResult(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), "")


def measure(stage: Stage) -> Iterator[Measurement]:
    """Search stores of growing size, with and without a filter, on both databases."""
    with run_postgres() as postgres:
        for name in DATABASES:
            for chunks in stage.sizes(CHUNKS, QUICK_CHUNKS):
                url = create_database(postgres.url) if name == "PostgreSQL" else None
                searches = stage.sizes(SEARCHES, QUICK_SEARCHES)
                with tempfile.TemporaryDirectory() as folder:
                    times = stage.runner.run(_search_times(Path(folder), url, chunks, searches))
                for system, seconds in times.items():
                    value = round(median(seconds) * 1000, 3)
                    yield Measurement(_load(name, chunks), 0, f"{CORRAL}, {system}", value)


def _load(database: str, chunks: int) -> str:
    return f"{database}, {chunks:,} chunk{'s' * (chunks > 1)}"


async def _search_times(
    folder: Path, url: str | None, chunks: int, searches: int
) -> dict[str, list[float]]:
    """Fill a store and search it in turns. Returns the seconds of each search after the first."""
    ids, embedder = IdSource(_now), RandomEmbedder()
    async with open_database(url, folder) as database:
        await migrations.upgrade(database.migrator)
        store_id = await _fill(database, ids, embedder, chunks)
        search = VectorSearch(
            database.transactions,
            embedder,
            VectorIndex(INDEX_BYTES),
            FileAdder(ids, _now, MODEL),
            _now,
        )
        times: dict[str, list[float]] = {UNFILTERED: [], FILTERED: []}
        for number in range(searches + 1):
            for system, condition in ((UNFILTERED, None), (FILTERED, FILTER)):
                started = time.perf_counter()
                hits = await search.search(
                    PROJECT, [store_id], [f"word{number}"], 10, condition, Ranking()
                )
                if number:  # the first search reads the vectors into memory
                    times[system].append(time.perf_counter() - started)
                if not hits:
                    raise RuntimeError(f"a search with {system} found nothing")
        return times


def _now() -> datetime:
    return datetime.now(UTC)


async def _fill(database: Database, ids: IdSource, embedder: RandomEmbedder, chunks: int) -> str:
    """Create a store of completed files. Returns its id."""
    now = _now()
    store = VectorStore(
        id=ids.new(VECTOR_STORE),
        name="bench",
        embedding_model=MODEL,
        dimensions=DIMENSIONS,
        created_at=now,
        active_at=now,
    )
    files = [
        StoreFile(
            entry=ids.new(VECTOR_STORE_ENTRY),
            file_id=ids.new(FILE),
            store_id=store.id,
            attributes={"topic": f"topic {number % 10}", "year": 2000.0 + number // 10 % 20}
            if number
            else {"topic": "topic 0", "year": 2020.0},
            state=FileState.COMPLETED,
            num_chunks=min(CHUNKS_OF_FILE, chunks - number * CHUNKS_OF_FILE),
            created_at=now,
        )
        for number in range(-(-chunks // CHUNKS_OF_FILE))
    ]
    for file in files:
        store = store.update_counts(file, None)
    await database.transactions.of(PROJECT).write(lambda tx: VectorStoreQueries(tx).add(store))
    for start in range(0, len(files), FILES_AT_ONCE):
        group = files[start : start + FILES_AT_ONCE]

        async def add(tx: Transaction, group: Sequence[StoreFile] = group) -> None:
            await StoreFileQueries(tx).add(group)
            for file in group:
                await FileQueries(tx).add(_file(file, now))
                await ChunkQueries(tx).add(file, await _chunks(file, embedder))

        await database.transactions.of(PROJECT).write(add)
    if database.is_shared:  # as autovacuum does
        async with database.migrator.begin() as connection:
            await connection.execute(sa.text("ANALYZE"))
    return store.id


def _file(file: StoreFile, now: datetime) -> File:
    return File(
        id=file.file_id,
        filename="bench.txt",
        purpose=FilePurpose.ASSISTANTS,
        size_bytes=1,
        sha256="",
        blob_key=file.file_id,
        created_at=now,
        expires_at=None,
    )


async def _chunks(file: StoreFile, embedder: RandomEmbedder) -> list[NewChunk]:
    texts = [f"word{number % 50} of a chunk" for number in range(file.num_chunks)]
    embedded = await embedder.embed(PROJECT, MODEL, texts, is_background=True)
    return [
        NewChunk(number, content, vector)
        for number, (content, vector) in enumerate(zip(texts, embedded.vectors, strict=True))
    ]


def conclude(measurements: Sequence[Measurement]) -> list[Result]:
    """Compare each filtered search with the same search without a filter."""
    times = {(each.load, each.system): each.value for each in measurements}
    results = []
    for load in dict.fromkeys(each.load for each in measurements):
        own, peer = (times.get((load, f"{CORRAL}, {each}")) for each in (FILTERED, UNFILTERED))
        if own is not None and peer:
            results.append(
                Result(
                    load, (own / peer,), MAX_COST, own, peer, UNFILTERED, unit="ms", bound="at most"
                )
            )
    return results


PART = Part(
    name="search",
    title="Filtered vector search",
    text=(
        "The time of a search for one query in one store, with and without a filter of two"
        f" conditions that 15 % of the files meet; a file has {CHUNKS_OF_FILE} chunks of"
        f" {DIMENSIONS} dimensions. The vectors are in memory, as without pgvector. The filter may"
        f" add at most {round((MAX_COST - 1) * 100)} %."
    ),
    measure=measure,
    conclude=conclude,
)
