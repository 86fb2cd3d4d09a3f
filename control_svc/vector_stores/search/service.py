"""Search: indexes propose chunks by vectors and by words, and `ranking.py` scores each."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from control_svc.db.transaction import Clock, Transaction, Transactions
from control_svc.inference.embeddings import Embedder, Vector
from control_svc.vector_stores.filters import Filter, check_filter
from control_svc.vector_stores.membership import FileAdder
from control_svc.vector_stores.model import VectorStore
from control_svc.vector_stores.queries import StoreFileQueries, VectorStoreQueries
from control_svc.vector_stores.search.chunk_queries import ChunkQueries
from control_svc.vector_stores.search.model import ChunkKey, Lookup, Passage, Ranking, SearchHit
from control_svc.vector_stores.search.ranking import (
    combined,
    meaning_scores,
    query_terms,
    search_terms,
    word_scores,
)
from control_svc.vector_stores.search.vector_index import VectorIndex
from svc_kit.errors import (
    ContextLengthExceeded,
    EmbeddingModelChanged,
    MissingField,
    ModelNotFound,
    OutOfRange,
    TooLong,
)

MAX_QUERIES: Final = 16
MAX_QUERY_CHARACTERS: Final = 4096
MAX_RESULTS: Final = 50
MAX_STORES: Final = 16
_PROPOSED: Final = 4
"""How many passages each index proposes for one that is wanted, and at least as many as"""
_PROPOSED_AT_LEAST: Final = 50


@dataclass(frozen=True)
class _Query:
    """A question, in both of its forms."""

    words: tuple[str, ...]
    vector: Vector


class VectorSearch:
    """Implements `domain.search.Search`."""

    def __init__(
        self,
        transactions: Transactions,
        embedder: Embedder,
        index: VectorIndex,
        adder: FileAdder,
        clock: Clock,
    ) -> None:
        self._transactions = transactions
        self._embedder = embedder
        self._index = index
        self._adder = adder
        self._clock = clock

    def check_model(self) -> None:
        """See the port."""
        self._adder.check_model()

    async def search(
        self,
        project: str,
        store_ids: Sequence[str],
        queries: Sequence[str],
        max_results: int,
        filters: Filter | None,
        ranking: Ranking,
    ) -> list[SearchHit]:
        """The best passages for any of the queries; see the port."""
        _check(store_ids, queries, max_results)
        ranking.check()
        if filters is not None:
            check_filter(filters)
        self.check_model()
        stores = await self._used(project, store_ids)
        best: dict[ChunkKey, tuple[float, Passage]] = {}
        for model, group in _by_model(stores).items():
            request = await self._asked(project, model, group, queries)
            lookup = await self._lookup(project, group, filters)
            for query in request:
                for passage, score in await self._found(query, lookup, group, max_results, ranking):
                    known = best.get(passage.key)
                    if known is None or known[0] < score:
                        best[passage.key] = (score, passage)
        ordered = sorted(best.values(), key=lambda each: (-each[0], each[1].key))
        wanted = [each for each in ordered if each[0] >= ranking.score_threshold]
        return [_hit(score, passage) for score, passage in wanted[:max_results]]

    async def _used(self, project: str, store_ids: Sequence[str]) -> list[VectorStore]:
        """The stores, their use noted. Raises VectorStoreNotFound or VectorStoreExpired."""
        now, wanted = self._clock(), dict.fromkeys(store_ids)

        async def find(tx: Transaction) -> list[VectorStore]:
            stores = [await VectorStoreQueries(tx).get(project, each) for each in wanted]
            for store in stores:
                store.check_alive(now)
            return stores

        async def note(tx: Transaction) -> None:
            for store_id in sorted(wanted):
                store = await VectorStoreQueries(tx).lock(project, store_id)
                store.check_alive(now)
                await VectorStoreQueries(tx).update(project, store.used(now))

        stores = await self._transactions.read(find)
        if any(store.needs_note(now) for store in stores):
            await self._transactions.write(note)
        return stores

    async def _asked(
        self, project: str, model: str, stores: Sequence[VectorStore], queries: Sequence[str]
    ) -> list[_Query]:
        """The questions as the model of some stores sees them."""
        try:
            request = await self._embedder.embed(project, model, queries, is_background=False)
        except ModelNotFound as error:
            raise EmbeddingModelChanged(vector_store=stores[0].id, model=model) from error
        except ContextLengthExceeded as error:
            raise ContextLengthExceeded(
                field="queries",
                prompt_tokens=error.prompt_tokens,
                context_tokens=error.context_tokens,
            ) from error
        for store in stores:
            store.check_space(model, request.digest, request.vectors.shape[1])
        words = [query_terms(query) for query in queries]
        return [_Query(each, vector) for each, vector in zip(words, request.vectors, strict=True)]

    async def _lookup(
        self, project: str, stores: Sequence[VectorStore], filters: Filter | None
    ) -> Lookup:
        store_ids = [store.id for store in stores]
        if filters is None:
            return Lookup(project, store_ids)
        found = await self._transactions.read(
            lambda tx: StoreFileQueries(tx).attributes(project, store_ids)
        )
        left = frozenset(entry for entry, each in found.items() if filters.matches(each))
        return Lookup(project, store_ids, left)

    async def _found(
        self,
        query: _Query,
        lookup: Lookup,
        stores: Sequence[VectorStore],
        max_results: int,
        ranking: Ranking,
    ) -> list[tuple[Passage, float]]:
        """What the indexes propose for a question, scored."""
        limit = max(_PROPOSED * max_results, _PROPOSED_AT_LEAST)
        proposed = await self._nearest(query.vector, lookup, stores, limit)

        async def read(tx: Transaction) -> list[Passage]:
            chunks = ChunkQueries(tx)
            keys = set(proposed)
            if query.words:
                keys.update(await chunks.by_words(lookup, query.words, limit))
            return await chunks.passages(lookup.project, keys, await tx.now())

        passages = await self._transactions.read(read)
        return await asyncio.to_thread(_scored, query, passages, ranking)

    async def _nearest(
        self, vector: Vector, lookup: Lookup, stores: Sequence[VectorStore], limit: int
    ) -> list[ChunkKey]:
        """By the database where it can, else by the matrices in memory."""
        found = await self._transactions.read(
            lambda tx: ChunkQueries(tx).by_vector(lookup, vector, limit)
        )
        if found is not None:
            return found
        return [
            key
            for store in stores
            for key in await self._index.nearest(
                lookup.project, store, vector, limit, lookup.entries
            )
        ]


def _check(store_ids: Sequence[str], queries: Sequence[str], max_results: int) -> None:
    for field, values, most in (
        ("vector_store_ids", store_ids, MAX_STORES),
        ("queries", queries, MAX_QUERIES),
    ):
        if not values:
            raise MissingField(field=field)
        if len(values) > most:
            raise TooLong(field=field, length=len(values), limit=most)
    for query in queries:
        if not query.strip():
            raise MissingField(field="queries")
        if len(query) > MAX_QUERY_CHARACTERS:
            raise TooLong(
                field="queries", length=len(query), limit=MAX_QUERY_CHARACTERS, unit="characters"
            )
    if not 1 <= max_results <= MAX_RESULTS:
        raise OutOfRange(field="max_results", value=max_results, minimum=1, maximum=MAX_RESULTS)


def _by_model(stores: Sequence[VectorStore]) -> Mapping[str, list[VectorStore]]:
    """Stores that have something to find, by the model of their vectors."""
    groups: dict[str, list[VectorStore]] = {}
    for store in stores:
        if store.num_chunks:
            groups.setdefault(store.embedding_model, []).append(store)
    return groups


def _scored(
    query: _Query, passages: Sequence[Passage], ranking: Ranking
) -> list[tuple[Passage, float]]:
    if not passages:
        return []
    vectors = np.stack([passage.vector for passage in passages])
    meaning = meaning_scores(query.vector, vectors)
    words = word_scores(query.words, [set(search_terms(each.text)) for each in passages])
    scores = combined(meaning, words, ranking)
    return list(zip(passages, scores.tolist(), strict=True))


def _hit(score: float, passage: Passage) -> SearchHit:
    return SearchHit(
        file_id=passage.file_id,
        filename=passage.filename,
        score=round(score, 6),
        attributes=passage.attributes,
        texts=(passage.text,),
    )
