"""Requests and results of searches, and the interface `Search` that the tool `file_search` uses."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from control_svc.inference.embeddings import Vector
from control_svc.vector_stores.filters import Filter
from control_svc.vector_stores.model import AttributeValue
from svc_kit.errors import InvalidField, OutOfRange


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchHit:
    """A passage that was found, with the file that it is of."""

    file_id: str
    filename: str
    score: float
    """In [0, 1]: 1 is the most that a passage can agree with a query."""
    attributes: Mapping[str, AttributeValue]
    """Of the file within the store."""
    texts: tuple[str, ...]
    """The passage; one text a hit, so a file with several passages has several hits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """How what is found is ordered, and what is left out."""

    score_threshold: float = 0.0
    """Hits below are left out."""
    vector_weight: float = 0.7
    """How much the meaning counts, beside the words."""
    text_weight: float = 0.3
    """How much the words count, beside the meaning; one of the weights is above 0."""

    def check(self) -> None:
        """Raises OutOfRange or InvalidField."""
        for name in ("score_threshold", "vector_weight", "text_weight"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise OutOfRange(field=f"ranking.{name}", value=value, minimum=0, maximum=1)
        if not self.vector_weight + self.text_weight:
            raise InvalidField(field="ranking.text_weight", problem="one weight must be above 0")


class Search(Protocol):
    """Finds passages in the files of vector stores."""

    def check_model(self) -> None:
        """That there is a model for vectors. Raises EmbeddingModelMissing."""

    async def search(
        self,
        project: str,
        store_ids: Sequence[str],
        queries: Sequence[str],
        max_results: int,
        filters: Filter | None,
        ranking: Ranking,
    ) -> list[SearchHit]:
        """The best passages for any of the queries, best first, over all the stores at once.

        A passage is there once, with the best score that a query gave it. What has been deleted is
        not found any more, what is still being read not yet. The search counts as a use of the
        stores, which puts off their expiry.

        Raises VectorStoreNotFound, VectorStoreExpired, EmbeddingModelMissing (this installation has
        no model for vectors; the message has the command that adds one), EmbeddingModelChanged,
        MissingField, InvalidField, TooLong and OutOfRange; Unavailable and ResourceExhausted while
        the inference service cannot answer.
        """


class ChunkKey(NamedTuple):
    """Names a passage."""

    entry: str
    number: int


@dataclass(frozen=True, slots=True)
class NewChunk:
    """A passage to be kept."""

    number: int
    text: str
    vector: Vector


class Passage(NamedTuple):
    """A passage that can be found now, with its file."""

    key: ChunkKey
    file_id: str
    filename: str
    attributes: Mapping[str, AttributeValue]
    text: str
    vector: Vector


@dataclass(frozen=True, slots=True)
class Lookup:
    """Where passages are looked for: in completed files alone."""

    project: str
    store_ids: Sequence[str]
    entries: Collection[str] | None = None
    """Those that a filter has left; None: all."""
