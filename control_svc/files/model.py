"""Files and uploads: purposes, limits, expiry, state."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, NamedTuple

from control_svc.base.validation import (
    SHA256_DIGITS,
    check_digest,
    check_range,
)
from control_svc.blobs.store import Blob
from svc_kit.errors import (
    ChecksumMismatch,
    InvalidField,
    MissingField,
    RequestTooLarge,
    SizeMismatch,
    TooLong,
    UploadNotPending,
)

BATCH_TTL: Final = timedelta(days=30)
"""Default time to live of a batch's input file, as in OpenAI's API."""


class FilePurpose(StrEnum):
    """OpenAI's purposes of files."""

    ASSISTANTS = "assistants"
    BATCH = "batch"
    FINE_TUNE = "fine-tune"
    VISION = "vision"
    USER_DATA = "user_data"
    EVALS = "evals"
    ASSISTANTS_OUTPUT = "assistants_output"
    BATCH_OUTPUT = "batch_output"
    FINE_TUNE_RESULTS = "fine-tune-results"

    @property
    def is_output(self) -> bool:
        """Whether only the server creates files with this purpose."""
        return self in _OUTPUTS


_OUTPUTS: Final = frozenset(
    {FilePurpose.ASSISTANTS_OUTPUT, FilePurpose.BATCH_OUTPUT, FilePurpose.FINE_TUNE_RESULTS}
)


@dataclass(frozen=True, kw_only=True)
class File:
    """A stored file. Its bytes never change."""

    id: str
    filename: str
    """Chosen by the client; never used as a path."""
    purpose: FilePurpose
    size_bytes: int
    sha256: str
    blob_key: str
    created_at: datetime
    expires_at: datetime | None

    def is_expired(self, now: datetime) -> bool:
        """Whether the file is treated as deleted."""
        return self.expires_at is not None and self.expires_at <= now


def new_file(
    file_id: str,
    filename: str,
    purpose: FilePurpose,
    blob: Blob,
    ttl: timedelta | None,
    now: datetime,
) -> File:
    """Build the file of a stored blob. `ttl` None means the default of its purpose."""
    return File(
        id=file_id,
        filename=filename,
        purpose=purpose,
        size_bytes=blob.size_bytes,
        sha256=blob.sha256,
        blob_key=blob.key,
        created_at=now,
        expires_at=expiry_time(purpose, ttl, now),
    )


@dataclass(frozen=True, kw_only=True)
class NewFile:
    filename: str
    purpose: FilePurpose | None
    ttl: timedelta | None = None
    size_bytes: int | None = None
    sha256: str = ""
    request_id: str = ""

    def check(self, limits: "FileLimits") -> None:
        """Validate the fields, before any bytes arrive.

        Raises MissingField, TooLong, InvalidField, OutOfRange or RequestTooLarge.
        """
        purpose = check_purpose(self.purpose)
        check_digest("sha256", self.sha256, SHA256_DIGITS)
        if self.size_bytes is not None:
            check_file_size(self.size_bytes, limits.limit_for(purpose))

    def check_bytes(self, size_bytes: int, sha256: str) -> None:
        """Compare the received bytes with the declared size and checksum.

        Raises SizeMismatch or ChecksumMismatch.
        """
        if self.size_bytes is not None and self.size_bytes != size_bytes:
            raise SizeMismatch(expected_bytes=self.size_bytes, actual_bytes=size_bytes)
        if self.sha256 and self.sha256.lower() != sha256:
            raise ChecksumMismatch(field="sha256")


@dataclass(frozen=True)
class FileLimits:
    """Maximum file sizes in bytes."""

    file_bytes: int
    batch_bytes: int

    def limit_for(self, purpose: FilePurpose | None) -> int:
        """Return the limit for a purpose; None if the purpose is not known yet."""
        return self.batch_bytes if purpose is FilePurpose.BATCH else self.file_bytes


def check_file_size(size_bytes: int, limit: int) -> None:
    """Raise RequestTooLarge if the size is over the limit."""
    if size_bytes > limit:
        raise RequestTooLarge(size=size_bytes, limit=limit)


def check_purpose(purpose: FilePurpose | None) -> FilePurpose:
    """Return a purpose that clients may use. Raises MissingField or InvalidField."""
    if purpose is None:
        raise MissingField(field="purpose")
    if purpose.is_output:
        raise InvalidField(
            field="purpose",
            problem=f"only the server creates files with the purpose {purpose.value}",
        )
    return purpose


def expiry_time(purpose: FilePurpose, ttl: timedelta | None, now: datetime) -> datetime | None:
    """Return when a file created now expires; None if it never does."""
    if ttl is None and purpose is FilePurpose.BATCH:
        ttl = BATCH_TTL
    return None if ttl is None else now + ttl


UPLOAD_TTL: Final = timedelta(hours=1)
"""How long an upload accepts parts, as in OpenAI's API."""
MAX_PARTS: Final = 10_000
MD5_DIGITS: Final = 32


class UploadState(StrEnum):
    """OpenAI's status of an upload."""

    PENDING = "pending"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


@dataclass(frozen=True, kw_only=True)
class Upload:
    id: str
    filename: str
    purpose: FilePurpose
    size_bytes: int
    mime_type: str
    ttl: timedelta | None
    """Time to live of the file; None for the default of its purpose."""
    state: UploadState
    created_at: datetime
    expires_at: datetime
    file_id: str | None = None
    completion: str = ""
    """`Completion.fingerprint()` of the completion; empty until then."""

    def with_expiry(self, now: datetime) -> "Upload":
        """Return the upload, expired if it is overdue. The sweeper updates the stored state."""
        is_overdue = self.state is UploadState.PENDING and self.expires_at <= now
        return replace(self, state=UploadState.EXPIRED) if is_overdue else self

    def check_pending(self, now: datetime) -> None:
        """Raise UploadNotPending unless the upload accepts parts."""
        state = self.with_expiry(now).state
        if state is not UploadState.PENDING:
            raise UploadNotPending(upload=self.id, state=state.value)

    def complete(self, file_id: str, completion: str, now: datetime) -> "Upload":
        """Return the completed upload. Raises UploadNotPending."""
        self.check_pending(now)
        return replace(self, state=UploadState.COMPLETED, file_id=file_id, completion=completion)

    def cancel(self, now: datetime) -> "Upload":
        """Return the cancelled upload. Idempotent. Raises UploadNotPending."""
        if self.state is UploadState.CANCELLED:
            return self
        self.check_pending(now)
        return replace(self, state=UploadState.CANCELLED)


@dataclass(frozen=True, kw_only=True)
class UploadPart:
    id: str
    upload_id: str
    size_bytes: int
    blob_key: str
    created_at: datetime


@dataclass(frozen=True, kw_only=True)
class NewUpload:
    filename: str
    purpose: FilePurpose | None
    size_bytes: int
    mime_type: str
    ttl: timedelta | None = None
    request_id: str = ""

    def check(self, limit: int) -> None:
        """Validate all fields.

        Raises MissingField, TooLong, InvalidField, OutOfRange or RequestTooLarge.
        """
        check_purpose(self.purpose)
        check_range("size_bytes", self.size_bytes, 1)
        check_file_size(self.size_bytes, limit)


@dataclass(frozen=True)
class Completion:
    """The parts of a file in order, and its MD5 checksum (empty: not checked)."""

    part_ids: Sequence[str]
    md5: str

    def check(self) -> None:
        """Validate the part ids and the checksum. Raises InvalidField."""
        check_digest("md5", self.md5, MD5_DIGITS)
        seen: set[str] = set()
        for number, part_id in enumerate(self.part_ids):
            if part_id in seen:
                raise InvalidField(field=f"part_ids[{number}]", problem="the part is listed twice")
            seen.add(part_id)

    def fingerprint(self) -> str:
        """Return a hash that identifies a repeated completion."""
        return hashlib.sha256("\n".join([self.md5.lower(), *self.part_ids]).encode()).hexdigest()

    def select(self, upload: Upload, stored: Iterable[UploadPart]) -> list[UploadPart]:
        """Return the stored parts in the order of the file. Raises InvalidField or SizeMismatch."""
        known = {part.id: part for part in stored}
        for number, part_id in enumerate(self.part_ids):
            if part_id not in known:
                problem = "the upload has no such part"
                raise InvalidField(field=f"part_ids[{number}]", problem=problem)
        parts = [known[part_id] for part_id in self.part_ids]
        size = sum(part.size_bytes for part in parts)
        if size != upload.size_bytes:
            raise SizeMismatch(expected_bytes=upload.size_bytes, actual_bytes=size)
        return parts


class PartTotals(NamedTuple):
    """Number and total size of the stored parts of an upload."""

    num_parts: int
    size_bytes: int


def max_part_bytes(upload: Upload, stored: PartTotals, part_bytes: int) -> int:
    """Return the maximum size of the next part. Raises TooLong.

    All parts together may have twice the size of the file, to allow for repeated and unused parts.
    """
    if stored.num_parts >= MAX_PARTS:
        raise TooLong(field="upload_id", length=stored.num_parts + 1, limit=MAX_PARTS, unit="parts")
    return min(part_bytes, max(2 * upload.size_bytes - stored.size_bytes, 0))


class UploadWithFile(NamedTuple):
    """An upload, and its file if that exists."""

    upload: Upload
    file: File | None = None
