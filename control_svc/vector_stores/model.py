"""Vector stores, their files and batches of files: settings, states, attributes, expiry."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from control_svc.base.validation import (
    MAX_METADATA_KEY_CHARACTERS,
    MAX_METADATA_PAIRS,
    MAX_METADATA_VALUE_CHARACTERS,
    check_metadata,
    check_request_id,
    check_text,
)
from svc_kit.errors import (
    EmbeddingModelChanged,
    InvalidField,
    MissingField,
    OutOfRange,
    TooLong,
    VectorStoreExpired,
)

AttributeValue = str | float | bool
"""Whole numbers are floats, as in JSON."""
FIELD: Final = "attributes"


def check_attributes(attributes: Mapping[str, AttributeValue]) -> None:
    """Raises MissingField, TooLong, InvalidField or OutOfRange."""
    if len(attributes) > MAX_METADATA_PAIRS:
        raise TooLong(field=FIELD, length=len(attributes), limit=MAX_METADATA_PAIRS)
    for key, value in attributes.items():
        check_text(FIELD, key, MAX_METADATA_KEY_CHARACTERS)
        check_value(f"{FIELD}.{key}", value)


def check_value(field: str, value: AttributeValue) -> None:
    """One value. Raises TooLong, InvalidField or OutOfRange."""
    if isinstance(value, str):
        if value:
            check_text(field, value, MAX_METADATA_VALUE_CHARACTERS)
    elif not math.isfinite(value):
        raise OutOfRange(field=field, value=value)


MAX_DESCRIPTION_CHARACTERS: Final = 512
MAX_FILES_OF_NEW_STORE: Final = 500
MAX_FILES_OF_BATCH: Final = 2000
LONGEST_LIFE_DAYS: Final = 365
ACTIVITY_GRAIN: Final = timedelta(minutes=1)
"""How exactly the last use is kept: a write for each search would cost more than the search."""


class FileState(StrEnum):
    """Where a file in a store is, in OpenAI's words and one of ours."""

    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    DELETED = "deleted"


class StoreState(StrEnum):
    """Where a store is, in OpenAI's words."""

    EXPIRED = "expired"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"


class BatchState(StrEnum):
    """Where a batch of files is, in OpenAI's words."""

    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    FAILED = "failed"


class ProblemCode(StrEnum):
    """Why a file cannot be read, in OpenAI's words."""

    SERVER_ERROR = "server_error"
    UNSUPPORTED_FILE = "unsupported_file"
    INVALID_FILE = "invalid_file"


@dataclass(frozen=True, slots=True)
class FileProblem:
    """Why a file could not be read; `message` is for people."""

    code: ProblemCode
    message: str


@dataclass(frozen=True, slots=True)
class Chunking:
    """How a text is cut into passages, in tokens of the embedding model."""

    max_tokens: int = 800
    overlap_tokens: int = 400
    """How much of a passage begins the next one."""

    def check(self) -> None:
        """Raises OutOfRange."""
        _check_range("chunking.max_chunk_size_tokens", self.max_tokens, 100, 4096)
        _check_range("chunking.chunk_overlap_tokens", self.overlap_tokens, 0, self.max_tokens // 2)


@dataclass(frozen=True, slots=True)
class FileCounts:
    """How many files are in each state."""

    in_progress: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.in_progress + self.completed + self.failed + self.cancelled

    def moved(self, before: FileState | None, after: FileState) -> "FileCounts":
        """The counts after a file has changed its state; before None: it is new."""
        counts = {state.value: getattr(self, state) for state in COUNTED}
        if before in COUNTED:
            counts[before.value] -= 1
        if after in COUNTED:
            counts[after.value] += 1
        return FileCounts(**counts)


COUNTED: Final = tuple(state for state in FileState if state is not FileState.DELETED)


@dataclass(frozen=True, kw_only=True)
class StoreFile:
    """A file in a store."""

    entry: str
    """Names this being in the store."""
    file_id: str
    store_id: str
    batch_id: str | None = None
    chunking: Chunking = Chunking()
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)
    state: FileState = FileState.IN_PROGRESS
    problem: FileProblem | None = None
    num_chunks: int = 0
    """How many passages are kept; while it is in progress, so far."""
    usage_bytes: int = 0
    """What they take."""
    created_at: datetime

    @property
    def id(self) -> str:
        """What lists go by."""
        return self.file_id


@dataclass(frozen=True, kw_only=True)
class VectorStore:
    """A store as it is kept."""

    id: str
    name: str
    description: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    life_days: int | None = None
    """How long after its last use it expires; None: never."""
    counts: FileCounts = FileCounts()
    num_chunks: int = 0
    """The passages of its completed files."""
    usage_bytes: int = 0
    """What they take."""
    embedding_model: str = ""
    """What its vectors are of; empty until there are any."""
    embedding_digest: str = ""
    """Of that model's file: another one may come under its name. Empty: not known."""
    dimensions: int = 0
    revision: int = 0
    """Grows with each change of what can be found."""
    created_at: datetime
    active_at: datetime

    @property
    def expires_at(self) -> datetime | None:
        """When it expires unless it is used before; None: never."""
        return None if self.life_days is None else self.active_at + timedelta(days=self.life_days)

    def state(self, now: datetime) -> StoreState:
        """Where it is."""
        if self.expires_at is not None and self.expires_at <= now:
            return StoreState.EXPIRED
        return StoreState.IN_PROGRESS if self.counts.in_progress else StoreState.COMPLETED

    def check_alive(self, now: datetime) -> None:
        """Raises VectorStoreExpired."""
        if self.state(now) is StoreState.EXPIRED:
            raise VectorStoreExpired(vector_store=self.id)

    def used(self, now: datetime) -> "VectorStore":
        """The store after a use."""
        return replace(self, active_at=max(now, self.active_at))

    def needs_note(self, now: datetime) -> bool:
        """Whether its last use is so long ago that another is worth a write."""
        return now - self.active_at >= ACTIVITY_GRAIN

    def check_space(self, model: str, digest: str, dimensions: int) -> None:
        """That a model's vectors can be compared with the store's. Raises EmbeddingModelChanged."""
        is_other = bool(self.embedding_digest and digest) and self.embedding_digest != digest
        if is_other or (self.embedding_model, self.dimensions) != (model, dimensions):
            raise EmbeddingModelChanged(vector_store=self.id, model=self.embedding_model)

    def embedded_by(self, model: str, digest: str, dimensions: int) -> "VectorStore":
        """The store with vectors of a model; the first ones decide which model is its own.

        Raises EmbeddingModelChanged.
        """
        if not self.embedding_model:
            return replace(
                self, embedding_model=model, embedding_digest=digest, dimensions=dimensions
            )
        self.check_space(model, digest, dimensions)
        return replace(self, embedding_digest=self.embedding_digest or digest)

    def emptied(self) -> "VectorStore":
        """The store without files."""
        return replace(
            self, counts=FileCounts(), num_chunks=0, usage_bytes=0, revision=self.revision + 1
        )

    def moved(self, file: StoreFile, before: FileState | None) -> "VectorStore":
        """The store after a file of it has changed its state; `file` is the file as it is now."""
        counted = replace(self, counts=self.counts.moved(before, file.state))
        gained = (file.state is FileState.COMPLETED) - (before is FileState.COMPLETED)
        if not gained:
            return counted
        return replace(
            counted,
            num_chunks=self.num_chunks + gained * file.num_chunks,
            usage_bytes=self.usage_bytes + gained * file.usage_bytes,
            revision=self.revision + 1,
        )


@dataclass(frozen=True, kw_only=True)
class FileBatch:
    """Files that were put into a store together."""

    id: str
    store_id: str
    created_at: datetime
    cancelled_at: datetime | None = None
    counts: FileCounts = FileCounts()
    """Of those that are still in the store."""

    @property
    def state(self) -> BatchState:
        """Where it is."""
        if self.cancelled_at is not None:
            return BatchState.CANCELLED
        if self.counts.in_progress:
            return BatchState.IN_PROGRESS
        if self.counts.failed and self.counts.failed == self.counts.total:
            return BatchState.FAILED
        return BatchState.COMPLETED


# ---- what callers ask for


@dataclass(frozen=True, kw_only=True)
class NewStoreFile:
    """A file that a caller puts into a store."""

    file_id: str
    chunking: Chunking = Chunking()
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)

    def check(self) -> None:
        """Raises MissingField, InvalidField, OutOfRange or TooLong."""
        if not self.file_id:
            raise MissingField(field="file_id")
        self.chunking.check()
        check_attributes(self.attributes)

    def make(self, entry: str, store_id: str, batch_id: str | None, now: datetime) -> StoreFile:
        """The file at its beginning."""
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
class NewVectorStore:
    """A store that a caller begins."""

    name: str = ""
    description: str = ""
    files: Sequence[NewStoreFile] = ()
    life_days: int | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    request_id: str = ""

    def check(self, path: str = "") -> None:
        """`path` is written before the names of fields.

        Raises MissingField, InvalidField, OutOfRange or TooLong.
        """
        _check_said(self.name, self.description, self.life_days, path)
        check_metadata(self.metadata, f"{path}metadata")
        check_files(self.files, f"{path}file_ids", MAX_FILES_OF_NEW_STORE)
        check_request_id(self.request_id)

    def make(self, store_id: str, now: datetime) -> VectorStore:
        """The store at its beginning."""
        return VectorStore(
            id=store_id,
            name=self.name,
            description=self.description,
            metadata=dict(self.metadata),
            life_days=self.life_days,
            created_at=now,
            active_at=now,
        )


@dataclass(frozen=True, kw_only=True)
class StoreChanges:
    """What a caller changes of a store; None: it stays as it is."""

    name: str | None = None
    life_days: int | None = None
    """0: it never expires any more."""
    metadata: Mapping[str, str] | None = None

    def check(self) -> None:
        """Raises MissingField, InvalidField, OutOfRange or TooLong."""
        _check_said(self.name or "", "", self.life_days or None)
        check_metadata(self.metadata or {})

    def applied_to(self, store: VectorStore) -> VectorStore:
        """The store as it should be."""
        changed = store if self.name is None else replace(store, name=self.name)
        if self.life_days is not None:
            changed = replace(changed, life_days=self.life_days or None)
        if self.metadata is not None:
            changed = replace(changed, metadata=dict(self.metadata))
        return changed


def check_files(files: Sequence[NewStoreFile], field: str, most: int) -> None:
    """Files of one request. Raises MissingField, InvalidField, OutOfRange or TooLong."""
    if len(files) > most:
        raise TooLong(field=field, length=len(files), limit=most)
    for file in files:
        file.check()
    if len({file.file_id for file in files}) < len(files):
        raise InvalidField(field=field, problem="a file stands there twice")


def _check_said(name: str, description: str, life_days: int | None, path: str = "") -> None:
    if name:
        check_text(f"{path}name", name)
    if description:
        check_text(f"{path}description", description, MAX_DESCRIPTION_CHARACTERS)
    if life_days is not None:
        _check_range(f"{path}expire_after_days", life_days, 1, LONGEST_LIFE_DAYS)


def _check_range(field: str, value: int, minimum: int, maximum: int) -> None:
    if not minimum <= value <= maximum:
        raise OutOfRange(field=field, value=value, minimum=minimum, maximum=maximum)
