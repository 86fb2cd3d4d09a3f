"""Search: indexes propose candidates by vectors and by words, and `ranking.py` scores them."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from control_svc.base.validation import check_length, check_range
from control_svc.db.transaction import Clock, ProjectTransactions, Transaction, Transactions
from control_svc.inference.embeddings import Embedder, Vector
from control_svc.vector_stores.filters import Filter, check_filter
from control_svc.vector_stores.membership import FileAdder
from control_svc.vector_stores.model import VectorStore
from control_svc.vector_stores.queries import StoreFileQueries, VectorStoreQueries
from control_svc.vector_stores.search.chunk_queries import ChunkQueries
from control_svc.vector_stores.search.model import Chunk, ChunkKey, Ranking, SearchHit, SearchScope
from control_svc.vector_stores.search.ranking import (
    combine_scores,
    query_terms,
    search_terms,
    vector_scores,
    word_scores,
)
from control_svc.vector_stores.search.vector_index import VectorIndex
from svc_kit.errors import (
    ContextLengthExceeded,
    EmbeddingModelChanged,
    MissingField,
    ModelNotFound,
)

MAX_QUERIES: Final = 16
MAX_QUERY_CHARACTERS: Final = 4096
MAX_RESULTS: Final = 50
MAX_STORES: Final = 16
_CANDIDATES_PER_RESULT: Final = 4
_MIN_CANDIDATES: Final = 50
"""Number of chunks that each index proposes."""


@dataclass(frozen=True)
class _Query:
    words: tuple[str, ...]
    vector: Vector


@dataclass(frozen=True)
class VectorSearch:
    """Implements `Search`."""

    transactions: Transactions
    embedder: Embedder
    index: VectorIndex
    adder: FileAdder
    clock: Clock

    def check_model(self) -> None:
        """See `Search`."""
        self.adder.check_model()

    async def search(
        self,
        project: str,
        store_ids: Sequence[str],
        queries: Sequence[str],
        max_results: int,
        filters: Filter | None,
        ranking: Ranking,
    ) -> list[SearchHit]:
        """See `Search`."""
        _check(store_ids, queries, max_results)
        ranking.check()
        if filters is not None:
            check_filter(filters)
        self.check_model()
        transactions = self.transactions.of(project)
        stores = await self._touch_stores(transactions, store_ids)
        best: dict[ChunkKey, tuple[float, Chunk]] = {}
        for model, group in _group_by_model(stores).items():
            embedded = await self._embed(project, model, group, queries)
            scope = await self._resolve_scope(transactions, group, filters)
            for query in embedded:
                chunks = await self._find_chunks(transactions, query, scope, max_results)
                for score, chunk in await asyncio.to_thread(_score, query, chunks, ranking):
                    if chunk.key not in best or best[chunk.key][0] < score:
                        best[chunk.key] = (score, chunk)
        ordered = sorted(best.values(), key=lambda each: (-each[0], each[1].key))
        return [
            _hit(score, chunk)
            for score, chunk in ordered[:max_results]
            if score >= ranking.score_threshold
        ]

    async def _touch_stores(
        self, transactions: ProjectTransactions, store_ids: Sequence[str]
    ) -> list[VectorStore]:
        """Get stores and record their use. Raises VectorStoreNotFound or VectorStoreExpired."""
        now, distinct_ids = self.clock(), dict.fromkeys(store_ids)

        async def read(tx: Transaction) -> list[VectorStore]:
            stores = [await VectorStoreQueries(tx).get(each) for each in distinct_ids]
            for store in stores:
                store.check_not_expired(now)
            return stores

        async def touch(tx: Transaction) -> None:
            for store_id in sorted(distinct_ids):
                store = await VectorStoreQueries(tx).lock(store_id)
                store.check_not_expired(now)
                await VectorStoreQueries(tx).update(store.touch(now))

        stores = await transactions.read(read)
        if any(store.needs_touch(now) for store in stores):
            await transactions.write(touch)
        return stores

    async def _embed(
        self, project: str, model: str, stores: Sequence[VectorStore], queries: Sequence[str]
    ) -> list[_Query]:
        """Embed queries with the model of `stores`. Raises EmbeddingModelChanged."""
        try:
            result = await self.embedder.embed(project, model, queries, is_background=False)
        except ModelNotFound as error:
            raise EmbeddingModelChanged(vector_store=stores[0].id, model=model) from error
        except ContextLengthExceeded as error:
            raise ContextLengthExceeded(
                field="queries",
                prompt_tokens=error.prompt_tokens,
                context_tokens=error.context_tokens,
            ) from error
        for store in stores:
            store.check_embedding(model, result.digest, result.vectors.shape[1])
        return [
            _Query(query_terms(query), vector)
            for query, vector in zip(queries, result.vectors, strict=True)
        ]

    async def _resolve_scope(
        self,
        transactions: ProjectTransactions,
        stores: Sequence[VectorStore],
        filters: Filter | None,
    ) -> SearchScope:
        if filters is None:
            return SearchScope(stores)
        store_ids = SearchScope(stores).store_ids
        entries = await transactions.read(
            lambda tx: StoreFileQueries(tx).list_matching(store_ids, filters)
        )
        return SearchScope(stores, entries)

    async def _find_chunks(
        self, transactions: ProjectTransactions, query: _Query, scope: SearchScope, max_results: int
    ) -> list[Chunk]:
        """Read the chunks that the indexes propose for a query."""
        limit = max(_CANDIDATES_PER_RESULT * max_results, _MIN_CANDIDATES)
        nearest = await self._search_vector(transactions, query.vector, scope, limit)

        async def read(tx: Transaction) -> list[Chunk]:
            chunks = ChunkQueries(tx)
            keys = set(nearest)
            if query.words:
                keys.update(await chunks.search_words(scope, query.words, limit))
            return await chunks.get_searchable(keys, await tx.now())

        return await transactions.read(read)

    async def _search_vector(
        self, transactions: ProjectTransactions, vector: Vector, scope: SearchScope, limit: int
    ) -> list[ChunkKey]:
        """Search in the database if it has vectors, else in memory."""
        keys = await transactions.read(
            lambda tx: ChunkQueries(tx).search_vector(scope, vector, limit)
        )
        if keys is not None:
            return keys
        return [
            key
            for store in scope.stores
            for key in await self.index.search(transactions, store, vector, limit, scope.entries)
        ]


def _check(store_ids: Sequence[str], queries: Sequence[str], max_results: int) -> None:
    for field, values, limit in (
        ("vector_store_ids", store_ids, MAX_STORES),
        ("queries", queries, MAX_QUERIES),
    ):
        if not values:
            raise MissingField(field=field)
        check_length(field, values, limit)
    for query in queries:
        if not query.strip():
            raise MissingField(field="queries")
        check_length("queries", query, MAX_QUERY_CHARACTERS)
    check_range("max_results", max_results, 1, MAX_RESULTS)


def _group_by_model(stores: Sequence[VectorStore]) -> Mapping[str, list[VectorStore]]:
    """Group the stores that are not empty by their embedding model."""
    groups: dict[str, list[VectorStore]] = {}
    for store in stores:
        if store.num_chunks:
            groups.setdefault(store.embedding_model, []).append(store)
    return groups


def _score(query: _Query, chunks: Sequence[Chunk], ranking: Ranking) -> list[tuple[float, Chunk]]:
    if not chunks:
        return []
    by_vector = vector_scores(query.vector, np.stack([chunk.vector for chunk in chunks]))
    by_words = word_scores(query.words, [set(search_terms(chunk.text)) for chunk in chunks])
    scores = combine_scores(by_vector, by_words, ranking)
    return list(zip(scores.tolist(), chunks, strict=True))


def _hit(score: float, chunk: Chunk) -> SearchHit:
    return SearchHit(
        file_id=chunk.file_id,
        filename=chunk.filename,
        score=round(score, 6),
        attributes=chunk.attributes,
        texts=(chunk.text,),
    )
