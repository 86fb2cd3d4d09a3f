"""Vector stores, their files and file batches: parameters, states, attributes, expiry."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from control_svc.base.validation import (
    MAX_METADATA_KEY_CHARACTERS,
    MAX_METADATA_PAIRS,
    MAX_METADATA_VALUE_CHARACTERS,
    check_length,
    check_range,
    check_text,
)
from svc_kit.errors import (
    EmbeddingModelChanged,
    InvalidField,
    MissingField,
    OutOfRange,
    VectorStoreExpired,
)

AttributeValue = str | float | bool
"""Integers are floats, as in JSON."""
_ATTRIBUTES: Final = "attributes"


def check_attributes(attributes: Mapping[str, AttributeValue]) -> None:
    """Validate attributes. Raises MissingField, TooLong, InvalidField or OutOfRange."""
    check_length(_ATTRIBUTES, attributes, MAX_METADATA_PAIRS)
    for key, value in attributes.items():
        check_text(_ATTRIBUTES, key, MAX_METADATA_KEY_CHARACTERS)
        check_value(f"{_ATTRIBUTES}.{key}", value)


def check_value(field: str, value: AttributeValue) -> None:
    """Validate one value. Raises TooLong, InvalidField or OutOfRange."""
    if isinstance(value, str):
        if value:
            check_text(field, value, MAX_METADATA_VALUE_CHARACTERS)
    elif not math.isfinite(value):
        raise OutOfRange(field=field, value=value)


ACTIVITY_RESOLUTION: Final = timedelta(minutes=1)
"""How often the last use is stored. A write for each search would cost more than the search."""


class FileState(StrEnum):
    """The status of a file, as in the OpenAI API; DELETED is internal."""

    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    DELETED = "deleted"


class StoreState(StrEnum):
    """The status of a store, as in the OpenAI API."""

    EXPIRED = "expired"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"


class BatchState(StrEnum):
    """The status of a file batch, as in the OpenAI API."""

    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    FAILED = "failed"


class ProblemCode(StrEnum):
    """Error codes of a file, as in the OpenAI API."""

    SERVER_ERROR = "server_error"
    UNSUPPORTED_FILE = "unsupported_file"
    INVALID_FILE = "invalid_file"


@dataclass(frozen=True, slots=True)
class FileProblem:
    """Why a file could not be ingested."""

    code: ProblemCode
    message: str


@dataclass(frozen=True, slots=True)
class Chunking:
    """How a text is split into chunks, in tokens of the embedding model."""

    max_tokens: int = 800
    overlap_tokens: int = 400
    """How much of a chunk is repeated at the start of the next one."""

    def check(self) -> None:
        """Validate the sizes. Raises OutOfRange."""
        check_range("chunking.max_chunk_size_tokens", self.max_tokens, 100, 4096)
        check_range("chunking.chunk_overlap_tokens", self.overlap_tokens, 0, self.max_tokens // 2)


@dataclass(frozen=True, slots=True)
class FileCounts:
    in_progress: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0

    @property
    def total(self) -> int:
        """Number of files in all states."""
        return self.in_progress + self.completed + self.failed + self.cancelled

    def update(self, before: FileState | None, after: FileState) -> "FileCounts":
        """Count a change of a file's state. `before` is None if the file is new."""
        counts = asdict(self)
        if before in counts:
            counts[before] -= 1
        if after in counts:
            counts[after] += 1
        return FileCounts(**counts)


@dataclass(frozen=True, kw_only=True)
class StoreFile:
    entry: str
    """Id of this row. A file that is removed and added again gets a new one."""
    file_id: str
    store_id: str
    batch_id: str | None = None
    chunking: Chunking = Chunking()
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)
    state: FileState = FileState.IN_PROGRESS
    problem: FileProblem | None = None
    num_chunks: int = 0
    """Number of stored chunks."""
    usage_bytes: int = 0
    """Size of the texts and vectors of the chunks."""
    created_at: datetime

    @property
    def id(self) -> str:
        """The page cursor."""
        return self.file_id


@dataclass(frozen=True, kw_only=True)
class StoreSettings:
    """What callers set of a vector store."""

    name: str = ""
    description: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    life_days: int | None = None
    """Days from the last use until expiry; None if the store does not expire."""


@dataclass(frozen=True, kw_only=True)
class VectorStore(StoreSettings):
    id: str
    counts: FileCounts = FileCounts()
    num_chunks: int = 0
    """Number of chunks of completed files."""
    usage_bytes: int = 0
    """Size of the texts and vectors of those chunks."""
    embedding_model: str = ""
    """The model of the stored vectors; empty until there are any."""
    embedding_digest: str = ""
    """Digest of the model's file, since another file may get its name; empty if unknown."""
    dimensions: int = 0
    revision: int = 0
    """Incremented when the set of searchable chunks changes."""
    created_at: datetime
    active_at: datetime

    @property
    def expires_at(self) -> datetime | None:
        """When the store expires unless it is used before; None if it does not expire."""
        return None if self.life_days is None else self.active_at + timedelta(days=self.life_days)

    def state(self, now: datetime) -> StoreState:
        """The state at a time."""
        if self.expires_at is not None and self.expires_at <= now:
            return StoreState.EXPIRED
        return StoreState.IN_PROGRESS if self.counts.in_progress else StoreState.COMPLETED

    def check_not_expired(self, now: datetime) -> None:
        """Raise VectorStoreExpired if the store has expired."""
        if self.state(now) is StoreState.EXPIRED:
            raise VectorStoreExpired(vector_store=self.id)

    def touch(self, now: datetime) -> "VectorStore":
        """Record a use, which postpones the expiry."""
        return replace(self, active_at=max(now, self.active_at))

    def needs_touch(self, now: datetime) -> bool:
        """Whether a use at `now` must be stored."""
        return now - self.active_at >= ACTIVITY_RESOLUTION

    def check_embedding(self, model: str, digest: str, dimensions: int) -> None:
        """Check that vectors are of the store's model. Raises EmbeddingModelChanged."""
        has_changed = bool(self.embedding_digest and digest) and self.embedding_digest != digest
        if has_changed or (self.embedding_model, self.dimensions) != (model, dimensions):
            raise EmbeddingModelChanged(vector_store=self.id, model=self.embedding_model)

    def pin_embedding(self, model: str, digest: str, dimensions: int) -> "VectorStore":
        """Record the model of added vectors. The first vectors determine the model of the store.

        Raises EmbeddingModelChanged.
        """
        if not self.embedding_model:
            return replace(
                self, embedding_model=model, embedding_digest=digest, dimensions=dimensions
            )
        self.check_embedding(model, digest, dimensions)
        return replace(self, embedding_digest=self.embedding_digest or digest)

    def clear(self) -> "VectorStore":
        """Remove all files."""
        return replace(
            self, counts=FileCounts(), num_chunks=0, usage_bytes=0, revision=self.revision + 1
        )

    def update_counts(self, file: StoreFile, before: FileState | None) -> "VectorStore":
        """Count a file whose state has changed from `before`, which is None if it is new."""
        counted = replace(self, counts=self.counts.update(before, file.state))
        sign = (file.state is FileState.COMPLETED) - (before is FileState.COMPLETED)
        if not sign:
            return counted
        return replace(
            counted,
            num_chunks=self.num_chunks + sign * file.num_chunks,
            usage_bytes=self.usage_bytes + sign * file.usage_bytes,
            revision=self.revision + 1,
        )


@dataclass(frozen=True, kw_only=True)
class FileBatch:
    """Files that were added to a store together."""

    id: str
    store_id: str
    created_at: datetime
    cancelled_at: datetime | None = None
    counts: FileCounts = FileCounts()
    """Counts of the files that are still in the store."""

    @property
    def state(self) -> BatchState:
        """The state, derived from the files."""
        if self.cancelled_at is not None:
            return BatchState.CANCELLED
        if self.counts.in_progress:
            return BatchState.IN_PROGRESS
        if self.counts.failed and self.counts.failed == self.counts.total:
            return BatchState.FAILED
        return BatchState.COMPLETED


# ---- requests


@dataclass(frozen=True, kw_only=True)
class NewStoreFile:
    file_id: str
    chunking: Chunking = Chunking()
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)

    def check(self) -> None:
        """Validate the parameters. Raises MissingField, InvalidField, OutOfRange or TooLong."""
        if not self.file_id:
            raise MissingField(field="file_id")
        self.chunking.check()
        check_attributes(self.attributes)

    def make(self, entry: str, store_id: str, batch_id: str | None, now: datetime) -> StoreFile:
        """Create the file in its initial state."""
        return StoreFile(
            entry=entry,
            file_id=self.file_id,
            store_id=store_id,
            batch_id=batch_id,
            chunking=self.chunking,
            attributes=dict(self.attributes),
            created_at=now,
        )


@dataclass(frozen=True, kw_only=True)
class NewVectorStore(StoreSettings):
    files: Sequence[NewStoreFile] = ()
    request_id: str = ""

    def check(self, path: str = "") -> None:
        """Validate the parameters. `path` is prepended to field names in errors.

        Raises MissingField, InvalidField, OutOfRange or TooLong.
        """
        check_files(self.files, f"{path}file_ids")

    def make(self, store_id: str, now: datetime) -> VectorStore:
        """Create the store in its initial state."""
        settings = {each.name: getattr(self, each.name) for each in fields(StoreSettings)}
        return VectorStore(**settings, id=store_id, created_at=now, active_at=now)


def check_files(files: Sequence[NewStoreFile], field: str) -> None:
    """Validate files of a request. Raises MissingField, InvalidField, OutOfRange or TooLong."""
    for file in files:
        file.check()
    if len({file.file_id for file in files}) < len(files):
        raise InvalidField(field=field, problem="it contains a file twice")
