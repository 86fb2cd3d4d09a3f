"""Parameters and results of searches, and the interface `Search` that `file_search` uses."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from control_svc.base.validation import check_range
from control_svc.inference.embeddings import Vector
from control_svc.vector_stores.filters import Filter
from control_svc.vector_stores.model import AttributeValue, VectorStore
from svc_kit.errors import InvalidField


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchHit:
    """A chunk that matches a search, with its file."""

    file_id: str
    filename: str
    score: float
    """In [0, 1]; higher is better."""
    attributes: Mapping[str, AttributeValue]
    """Attributes of the file in the store."""
    texts: tuple[str, ...]
    """The text of the chunk. A file with several matching chunks has several hits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """Ranking options of a search. At least one weight must be above 0."""

    score_threshold: float = 0.0
    """Hits with a lower score are dropped."""
    vector_weight: float = 0.7
    """Weight of the vector similarity."""
    text_weight: float = 0.3
    """Weight of the word score."""

    def check(self) -> None:
        """Validate the options. Raises OutOfRange or InvalidField."""
        for name in ("score_threshold", "vector_weight", "text_weight"):
            check_range(f"ranking.{name}", getattr(self, name), 0, 1)
        if not self.vector_weight + self.text_weight:
            raise InvalidField(field="ranking.text_weight", problem="one weight must be above 0")


class Search(Protocol):
    def check_model(self) -> None:
        """Check that there is an embedding model. Raises EmbeddingModelMissing."""

    async def search(
        self,
        project: str,
        store_ids: Sequence[str],
        queries: Sequence[str],
        max_results: int,
        filters: Filter | None,
        ranking: Ranking,
    ) -> list[SearchHit]:
        """Search the chunks of completed files in all stores. Returns the best hits, best first.

        A chunk is returned once, with its best score for any of the queries. A search postpones the
        expiry of the stores.

        Raises VectorStoreNotFound, VectorStoreExpired, EmbeddingModelMissing,
        EmbeddingModelChanged, MissingField, InvalidField, TooLong or OutOfRange; Unavailable or
        ResourceExhausted if the inference service cannot embed the queries now.
        """


class ChunkKey(NamedTuple):
    """The id of a chunk."""

    entry: str
    number: int


@dataclass(frozen=True, slots=True)
class NewChunk:
    number: int
    text: str
    vector: Vector


class Chunk(NamedTuple):
    """A searchable chunk with its file."""

    key: ChunkKey
    file_id: str
    filename: str
    attributes: Mapping[str, AttributeValue]
    text: str
    vector: Vector


@dataclass(frozen=True, slots=True)
class SearchScope:
    """The files to search, of which only completed ones have results."""

    stores: Sequence[VectorStore]
    entries: Collection[str] | None = None
    """Entries of the files that match the filter; None if there is no filter."""

    @property
    def store_ids(self) -> list[str]:
        return [store.id for store in self.stores]
