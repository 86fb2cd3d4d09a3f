"""Exact vector search in memory, for databases without pgvector, with one matrix per store.

If the revision of the store has changed, a search first drops deleted chunks and loads new ones.
"""

import asyncio
import heapq
from collections import OrderedDict
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final, NamedTuple, Self
from weakref import WeakValueDictionary

import numpy as np

from control_svc.db.transaction import ProjectTransactions, Transaction
from control_svc.inference.embeddings import Vector, Vectors
from control_svc.vector_stores.model import VectorStore
from control_svc.vector_stores.queries import StoreFileQueries
from control_svc.vector_stores.search.chunk_queries import ChunkQueries
from control_svc.vector_stores.search.model import ChunkKey
from control_svc.vector_stores.search.ranking import vector_scores

_PAGE_ROWS: Final = 2000
_FLOAT_BYTES: Final = 4


class _Page(NamedTuple):
    """Consecutive vectors of one entry; `first` is the number of the first chunk."""

    first: int
    vectors: Vectors


@dataclass(frozen=True)
class _Matrix:
    """All vectors of a store at a revision. Those of an entry are consecutive rows."""

    revision: int
    vectors: Vectors
    entries: tuple[str, ...]
    bounds: tuple[int, ...]
    """The first row of each entry, and the number of rows."""

    @classmethod
    def build(cls, revision: int, vectors: Mapping[str, Vectors]) -> Self:
        bounds = accumulate(map(len, vectors.values()), initial=0)
        stacked = np.concatenate([*vectors.values()] or [np.empty((0, 0), np.float32)])
        return cls(revision, stacked, tuple(vectors), tuple(bounds))

    def by_entry(self) -> dict[str, Vectors]:
        """The rows of each entry."""
        rows = zip(self.entries, pairwise(self.bounds), strict=True)
        return {entry: self.vectors[start:end] for entry, (start, end) in rows}

    def search(self, vector: Vector, limit: int, entries: Collection[str] | None) -> list[ChunkKey]:
        """Find the nearest rows, of all entries if `entries` is None."""
        if not self.entries:
            return []
        scores = vector_scores(vector, self.vectors)
        if entries is not None:
            is_included = np.array([entry in entries for entry in self.entries])
            scores[~np.repeat(is_included, np.diff(self.bounds))] = -np.inf
        rows = np.argsort(-scores, kind="stable")[:limit]
        indexes = np.searchsorted(self.bounds, rows, side="right") - 1
        return [
            ChunkKey(self.entries[index], int(row) - self.bounds[index])
            for row, index in zip(rows, indexes, strict=True)
            if np.isfinite(scores[row])
        ]


_EMPTY: Final = _Matrix.build(-1, {})


class VectorIndex:
    """An LRU cache of matrices, of at most `max_bytes` in total."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._matrices: OrderedDict[str, _Matrix] = OrderedDict()
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def search(
        self,
        transactions: ProjectTransactions,
        store: VectorStore,
        vector: Vector,
        limit: int,
        entries: Collection[str] | None = None,
    ) -> list[ChunkKey]:
        """Find the chunks of a store nearest to a vector, in all files if `entries` is None."""
        if store.num_chunks * store.dimensions * _FLOAT_BYTES > self._max_bytes:
            return await self._scan(transactions, store, vector, limit, entries)
        matrix = await self._get_matrix(transactions, store)
        return await asyncio.to_thread(matrix.search, vector, limit, entries)

    async def _get_matrix(self, transactions: ProjectTransactions, store: VectorStore) -> _Matrix:
        """Get the vectors of a store, at its revision or a later one."""
        lock = self._locks.setdefault(store.id, asyncio.Lock())
        async with lock:
            matrix = self._matrices.pop(store.id, _EMPTY)
            if matrix.revision < store.revision:
                matrix = await self._refresh(transactions, store, matrix)
            self._matrices[store.id] = matrix
        self._evict()
        return matrix

    async def _refresh(
        self, transactions: ProjectTransactions, store: VectorStore, old: _Matrix
    ) -> _Matrix:
        """Drop entries that are not completed any more, and load new ones."""
        completed = await self._list_completed(transactions, store)
        vectors = {entry: rows for entry, rows in old.by_entry().items() if entry in completed}
        for entry in sorted(completed - vectors.keys()):
            pages = [page.vectors async for page in self._read_vectors(transactions, entry)]
            if pages:
                vectors[entry] = np.concatenate(pages)
        return await asyncio.to_thread(_Matrix.build, store.revision, dict(sorted(vectors.items())))

    async def _scan(
        self,
        transactions: ProjectTransactions,
        store: VectorStore,
        vector: Vector,
        limit: int,
        entries: Collection[str] | None,
    ) -> list[ChunkKey]:
        """Read all vectors, for a store that exceeds the cache."""
        best: list[tuple[float, ChunkKey]] = []
        for entry in await self._list_completed(transactions, store):
            if entries is None or entry in entries:
                async for page in self._read_vectors(transactions, entry):
                    scores = vector_scores(vector, page.vectors)
                    keys = (ChunkKey(entry, page.first + row) for row in range(len(scores)))
                    # Negated, so that chunks with equal scores are ordered by age.
                    candidates = zip((-scores).tolist(), keys, strict=True)
                    best = heapq.nsmallest(limit, [*best, *candidates])
        return [key for _, key in best]

    async def _list_completed(
        self, transactions: ProjectTransactions, store: VectorStore
    ) -> set[str]:
        return await transactions.read(lambda tx: StoreFileQueries(tx).list_completed(store.id))

    async def _read_vectors(
        self, transactions: ProjectTransactions, entry: str
    ) -> AsyncIterator[_Page]:
        """Read the vectors of an entry, which may be deleted in the meantime."""
        first = 0

        async def read(tx: Transaction) -> Vectors:
            return await ChunkQueries(tx).list_vectors(entry, first, _PAGE_ROWS)

        while len(vectors := await transactions.read(read)):
            yield _Page(first, vectors)
            first += len(vectors)

    def _evict(self) -> None:
        total = sum(matrix.vectors.nbytes for matrix in self._matrices.values())
        while total > self._max_bytes:
            _, oldest = self._matrices.popitem(last=False)
            total -= oldest.vectors.nbytes
