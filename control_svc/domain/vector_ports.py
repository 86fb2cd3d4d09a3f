"""What the use cases of vector stores need from the outside."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from control_svc.domain.attributes import AttributeValue
from control_svc.domain.files import File
from control_svc.domain.ranking import Vector, Vectors


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


# ---- other services


class EmbeddingModel(NamedTuple):
    """What is known of a model."""

    name: str
    max_tokens: int
    """The longest text that it takes at once."""


class Embedded(NamedTuple):
    """Vectors, and the model that they are of."""

    vectors: Vectors
    digest: str
    """Of the model's file; empty: it cannot be told."""


class Embedder(Protocol):
    """The inference service, as far as it makes vectors.

    All methods raise Unavailable and ResourceExhausted where another try may do better,
    EngineRestarting with a phase where an engine died, ModelNotFound, and what the model refuses.
    """

    async def model(self, project: str, name: str) -> EmbeddingModel:
        """Describe a model."""

    async def count_tokens(self, project: str, model: str, texts: Sequence[str]) -> list[int]:
        """How long texts are."""

    async def embed(
        self, project: str, model: str, texts: Sequence[str], *, is_background: bool
    ) -> Embedded:
        """The vectors of texts, each of length 1, and whose they are."""


class Unreadable(Exception):
    """A file has no text for us; `code` and the message are what its owner sees."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class DocumentReader(Protocol):
    """Gets text out of files."""

    async def read(self, file: File) -> str:
        """The text. Raises Unreadable, BlobMissing, StorageFailed or ResourceExhausted."""
