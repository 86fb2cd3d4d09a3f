"""What the use cases of vector stores need from the outside."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, Protocol

from control_svc.domain.attributes import AttributeValue
from control_svc.domain.files import File
from control_svc.domain.listing import Window
from control_svc.domain.ranking import Vector, Vectors
from control_svc.domain.vector_stores import FileBatch, FileState, StoreFile, VectorStore


class VectorStoreRepository(Protocol):
    """The rows of stores."""

    async def add(self, project: str, store: VectorStore) -> None:
        """Keep a new store."""

    async def get(self, project: str, store_id: str) -> VectorStore:
        """Raises VectorStoreNotFound."""

    async def lock(self, project: str, store_id: str) -> VectorStore:
        """As `get`; until the end of the transaction nobody else changes the store or its files."""

    async def update(self, project: str, store: VectorStore) -> None:
        """Keep what has changed of a locked store."""

    async def page(self, project: str, window: Window) -> list[VectorStore]:
        """The stores of a window."""

    async def delete(self, project: str, store_id: str) -> None:
        """Forget a locked store, and let all of its files be deleted."""

    async def empty(self, project: str, store: VectorStore) -> None:
        """Let all files of a locked store be deleted, and keep what that leaves of it."""

    async def expired(self, now: datetime, limit: int) -> list[tuple[str, str]]:
        """The projects and ids of expired stores that still have files, over all projects."""


class StoreFileRepository(Protocol):
    """The rows of files in stores. But for the sweeper, those that are deleted are not there."""

    async def add(self, project: str, files: Sequence[StoreFile]) -> None:
        """Keep new files of a locked store."""

    async def find(
        self, project: str, store_id: str, file_ids: Collection[str]
    ) -> dict[str, StoreFile]:
        """Those of the files that are in a store."""

    async def entry(self, project: str, entry: str) -> StoreFile | None:
        """The file of an entry; None: it has been deleted."""

    async def update(self, project: str, file: StoreFile) -> None:
        """Keep what has changed of a file whose store is locked."""

    async def page(
        self,
        project: str,
        store_id: str,
        window: Window,
        batch_id: str | None = None,
        state: FileState | None = None,
    ) -> list[StoreFile]:
        """The files of a window, by when they were put there; its cursors may be gone by now."""

    async def unfinished(self, project: str, batch_id: str) -> list[StoreFile]:
        """The files of a batch that are in progress."""

    async def stores_of(self, project: str, file_id: str) -> list[str]:
        """The ids of the stores that a file is in, in order."""

    async def lost(self, limit: int) -> list[tuple[str, str]]:
        """The projects and ids of files that are in stores and nowhere else, over all projects."""

    async def left_behind(self) -> tuple[str, StoreFile] | None:
        """A file whose passages are of no use any more, with its project, locked; over all
        projects. None: there is none that nobody else sweeps."""

    async def forget(self, project: str, entry: str) -> None:
        """Forget a file that has been deleted and has no passages any more."""

    async def completed(self, project: str, store_id: str) -> dict[str, int]:
        """The entries that are completed, with how many passages they have."""

    async def attributes(
        self, project: str, store_ids: Collection[str]
    ) -> dict[str, Mapping[str, AttributeValue]]:
        """Those of the completed entries of stores."""


class FileBatchRepository(Protocol):
    """The rows of batches."""

    async def add(self, project: str, batch: FileBatch) -> None:
        """Keep a new batch."""

    async def get(self, project: str, store_id: str, batch_id: str) -> FileBatch:
        """Raises VectorStoreFileBatchNotFound."""

    async def cancel(self, project: str, batch_id: str, now: datetime) -> None:
        """Keep that a batch was given up; the first time counts."""


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


class ChunkRepository(Protocol):
    """The rows of passages, and what the database finds them by."""

    async def add(self, file: StoreFile, project: str, chunks: Sequence[NewChunk]) -> None:
        """Keep passages of a file in progress."""

    async def drop(self, project: str, entry: str, limit: int) -> int:
        """Forget passages of a file; how many there were."""

    async def texts(self, project: str, entry: str, first: int, limit: int) -> list[str]:
        """The texts of a file, from a number on."""

    async def vectors(self, project: str, entry: str, first: int, limit: int) -> Vectors:
        """The vectors of a file, from a number on."""

    async def by_words(self, lookup: Lookup, words: Sequence[str], limit: int) -> list[ChunkKey]:
        """Passages that have any of the words, those with most of them first."""

    async def by_vector(self, lookup: Lookup, vector: Vector, limit: int) -> list[ChunkKey] | None:
        """The passages nearest to a vector; None: this database has no vectors to search."""

    async def passages(
        self, project: str, keys: Collection[ChunkKey], now: datetime
    ) -> list[Passage]:
        """Those of the passages that can still be found."""


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
