"""Exact vector search in memory, for databases without pgvector: one matrix a store.

A matrix follows the revision of its store: before each search it drops deleted chunks and loads new
ones.
"""

import asyncio
import heapq
from collections import OrderedDict
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import Final, NamedTuple, Self
from weakref import WeakValueDictionary

import numpy as np

from control_svc.db.transaction import Transaction, Transactions
from control_svc.inference.embeddings import Vector, Vectors
from control_svc.vector_stores.model import VectorStore
from control_svc.vector_stores.queries import StoreFileQueries
from control_svc.vector_stores.search.chunk_queries import ChunkQueries
from control_svc.vector_stores.search.model import ChunkKey
from control_svc.vector_stores.search.ranking import meaning_scores

_ROWS_AT_ONCE: Final = 2000
_FLOAT_BYTES: Final = 4


class _Part(NamedTuple):
    """Consecutive vectors of one entry, and the number of the first."""

    first: int
    vectors: Vectors


@dataclass(frozen=True)
class _Matrix:
    """All vectors of a store at a revision, those of an entry in consecutive rows."""

    revision: int
    vectors: Vectors
    entries: tuple[str, ...]
    bounds: tuple[int, ...]
    """The first row of each entry, from which its passages are numbered; and the end."""

    @classmethod
    def of(cls, revision: int, parts: Mapping[str, Vectors]) -> Self:
        """The matrix of whole entries."""
        bounds = accumulate((len(vectors) for vectors in parts.values()), initial=0)
        stacked = np.concatenate([*parts.values()] or [np.empty((0, 0), np.float32)])
        return cls(revision, stacked, tuple(parts), tuple(bounds))

    def parts(self) -> dict[str, Vectors]:
        """Each entry's rows."""
        rows = zip(self.entries, pairwise(self.bounds), strict=True)
        return {entry: self.vectors[start:end] for entry, (start, end) in rows}

    def nearest(
        self, vector: Vector, limit: int, wanted: Collection[str] | None
    ) -> list[tuple[float, ChunkKey]]:
        """The best rows, with their cosines."""
        if not self.entries:
            return []
        cosines = meaning_scores(vector, self.vectors)
        if wanted is not None:
            is_wanted = np.array([entry in wanted for entry in self.entries])
            cosines[~np.repeat(is_wanted, np.diff(self.bounds))] = -np.inf
        rows = np.argsort(-cosines, kind="stable")[:limit]
        owners = np.searchsorted(self.bounds, rows, side="right") - 1
        return [
            (float(cosines[row]), ChunkKey(self.entries[owner], int(row) - self.bounds[owner]))
            for row, owner in zip(rows, owners, strict=True)
            if np.isfinite(cosines[row])
        ]


_NOTHING: Final = _Matrix.of(-1, {})


class VectorIndex:
    """The matrices of one process, of `max_bytes` in all."""

    def __init__(self, transactions: Transactions, max_bytes: int) -> None:
        self._transactions = transactions
        self._max_bytes = max_bytes
        self._matrices: OrderedDict[str, _Matrix] = OrderedDict()
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def nearest(
        self,
        project: str,
        store: VectorStore,
        vector: Vector,
        limit: int,
        entries: Collection[str] | None = None,
    ) -> list[ChunkKey]:
        """The passages of a store nearest to a vector; `entries` None: of all its files."""
        if store.num_chunks * store.dimensions * _FLOAT_BYTES > self._max_bytes:
            return await self._read_through(project, store, vector, limit, entries)
        matrix = await self._matrix(project, store)
        best = await asyncio.to_thread(matrix.nearest, vector, limit, entries)
        return [key for _, key in best]

    async def _matrix(self, project: str, store: VectorStore) -> _Matrix:
        """The store's vectors, at its revision or a later one."""
        lock = self._locks.setdefault(store.id, asyncio.Lock())
        async with lock:
            matrix = self._matrices.pop(store.id, _NOTHING)
            if matrix.revision < store.revision:
                matrix = await self._renewed(project, store, matrix)
            self._matrices[store.id] = matrix
        self._evict()
        return matrix

    async def _renewed(self, project: str, store: VectorStore, old: _Matrix) -> _Matrix:
        """The matrix without entries that are gone, and with those that are new."""
        completed = await self._completed(project, store)
        parts = {entry: rows for entry, rows in old.parts().items() if entry in completed}
        for entry in sorted(completed.keys() - parts.keys()):
            pages = [page.vectors async for page in self._pages(project, entry)]
            if pages:
                parts[entry] = np.concatenate(pages)
        return await asyncio.to_thread(_Matrix.of, store.revision, dict(sorted(parts.items())))

    async def _read_through(
        self,
        project: str,
        store: VectorStore,
        vector: Vector,
        limit: int,
        entries: Collection[str] | None,
    ) -> list[ChunkKey]:
        best: list[tuple[float, ChunkKey]] = []
        for entry in await self._completed(project, store):
            if entries is None or entry in entries:
                async for page in self._pages(project, entry):
                    cosines = meaning_scores(vector, page.vectors)
                    keys = (ChunkKey(entry, page.first + row) for row in range(len(cosines)))
                    found = zip(cosines.tolist(), keys, strict=True)
                    best = heapq.nsmallest(limit, [*best, *found], key=_order)
        return [key for _, key in best]

    async def _completed(self, project: str, store: VectorStore) -> dict[str, int]:
        return await self._transactions.read(
            lambda tx: StoreFileQueries(tx).completed(project, store.id)
        )

    async def _pages(self, project: str, entry: str) -> AsyncIterator[_Part]:
        """An entry's vectors, some at a time; it may be gone before the last."""
        first = 0
        while True:
            vectors = await self._transactions.read(partial(_page, project, entry, first))
            if not len(vectors):
                return
            yield _Part(first, vectors)
            first += len(vectors)

    def _evict(self) -> None:
        total = sum(matrix.vectors.nbytes for matrix in self._matrices.values())
        while total > self._max_bytes:
            _, oldest = self._matrices.popitem(last=False)
            total -= oldest.vectors.nbytes


def _order(found: tuple[float, ChunkKey]) -> tuple[float, ChunkKey]:
    """The nearest first; of those equally near the oldest, as everywhere else."""
    cosine, key = found
    return -cosine, key


async def _page(project: str, entry: str, first: int, tx: Transaction) -> Vectors:
    return await ChunkQueries(tx).vectors(project, entry, first, _ROWS_AT_ONCE)
