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
    check_request_id,
    check_text,
    check_ttl,
)
from svc_kit.errors import (
    ChecksumMismatch,
    InvalidField,
    MissingField,
    OutOfRange,
    RequestTooLarge,
    SizeMismatch,
    TooLong,
    UploadNotPending,
)

BATCH_TTL: Final = timedelta(days=30)
"""Default time to live of a batch's input file, as at OpenAI."""


class FilePurpose(StrEnum):
    """What a file is for, in OpenAI's words."""

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
        """Whether only the server makes such files."""
        return self in _OUTPUTS


_OUTPUTS: Final = frozenset(
    {FilePurpose.ASSISTANTS_OUTPUT, FilePurpose.BATCH_OUTPUT, FilePurpose.FINE_TUNE_RESULTS}
)


@dataclass(frozen=True, kw_only=True)
class File:
    """Stored bytes, which never change."""

    id: str
    filename: str
    """What its owner calls it: data, never a path."""
    purpose: FilePurpose
    size_bytes: int
    sha256: str
    blob_key: str
    created_at: datetime
    expires_at: datetime | None

    def is_expired(self, now: datetime) -> bool:
        """Whether it counts as gone."""
        return self.expires_at is not None and self.expires_at <= now


@dataclass(frozen=True, kw_only=True)
class NewFile:
    """The description of a new file."""

    filename: str
    purpose: FilePurpose | None
    ttl: timedelta | None = None
    size_bytes: int | None = None
    sha256: str = ""
    request_id: str = ""

    def check(self, limits: "FileLimits") -> None:
        """Validate what is known before the bytes. Raises MissingField, TooLong, InvalidField,
        OutOfRange or RequestTooLarge.
        """
        check_text("filename", self.filename)
        limit = limits.of(check_purpose(self.purpose))
        check_ttl(self.ttl)
        check_digest("sha256", self.sha256, SHA256_DIGITS)
        check_request_id(self.request_id)
        if self.size_bytes is not None:
            check_size(self.size_bytes, minimum=0)
            limits.check(self.size_bytes, limit)

    def check_bytes(self, size_bytes: int, sha256: str) -> None:
        """That what came is what was announced. Raises SizeMismatch or ChecksumMismatch."""
        if self.size_bytes is not None and self.size_bytes != size_bytes:
            raise SizeMismatch(expected_bytes=self.size_bytes, actual_bytes=size_bytes)
        if self.sha256 and self.sha256.lower() != sha256:
            raise ChecksumMismatch(field="sha256")


@dataclass(frozen=True)
class FileLimits:
    """The largest files, in bytes."""

    file_bytes: int
    batch_bytes: int

    def of(self, purpose: FilePurpose | None) -> int:
        """The limit of a purpose; None: it is not known yet."""
        return self.batch_bytes if purpose is FilePurpose.BATCH else self.file_bytes

    @staticmethod
    def check(size_bytes: int, limit: int) -> None:
        """Raises RequestTooLarge."""
        if size_bytes > limit:
            raise RequestTooLarge(size=size_bytes, limit=limit)


def check_purpose(purpose: FilePurpose | None) -> FilePurpose:
    """A purpose that callers may create files with. Raises MissingField or InvalidField."""
    if purpose is None:
        raise MissingField(field="purpose")
    if purpose.is_output:
        raise InvalidField(field="purpose", problem=f"only the server makes {purpose.value} files")
    return purpose


def check_size(size_bytes: int, *, minimum: int) -> None:
    """Raises OutOfRange."""
    if size_bytes < minimum:
        raise OutOfRange(field="size_bytes", value=size_bytes, minimum=minimum)


def expiry_of(purpose: FilePurpose, ttl: timedelta | None, now: datetime) -> datetime | None:
    """When a file that is complete now goes away; None: never."""
    if ttl is None and purpose is FilePurpose.BATCH:
        ttl = BATCH_TTL
    return None if ttl is None else now + ttl


LIFETIME: Final = timedelta(hours=1)
"""How long an upload takes parts, as at OpenAI."""
MAX_PARTS: Final = 10_000
MD5_DIGITS: Final = 32


class UploadState(StrEnum):
    """Where an upload is, in OpenAI's words."""

    PENDING = "pending"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


@dataclass(frozen=True, kw_only=True)
class Upload:
    """A file on its way."""

    id: str
    filename: str
    purpose: FilePurpose
    size_bytes: int
    mime_type: str
    ttl: timedelta | None
    """Time to live of the file; None means the default of its purpose."""
    state: UploadState
    created_at: datetime
    expires_at: datetime
    file_id: str | None = None
    completion: str = ""
    """What it was completed with, as `fingerprint` writes it."""

    def at(self, now: datetime) -> "Upload":
        """The upload as it is now; its stored state follows when the sweeper comes by."""
        is_late = self.state is UploadState.PENDING and self.expires_at <= now
        return replace(self, state=UploadState.EXPIRED) if is_late else self

    def check_pending(self, now: datetime) -> None:
        """Raises UploadNotPending."""
        state = self.at(now).state
        if state is not UploadState.PENDING:
            raise UploadNotPending(upload=self.id, state=state.value)

    def complete(self, file_id: str, completion: str, now: datetime) -> "Upload":
        """The upload once it has become a file. Raises UploadNotPending."""
        self.check_pending(now)
        return replace(self, state=UploadState.COMPLETED, file_id=file_id, completion=completion)

    def cancel(self, now: datetime) -> "Upload":
        """The upload given up; a second time changes nothing. Raises UploadNotPending."""
        if self.state is UploadState.CANCELLED:
            return self
        self.check_pending(now)
        return replace(self, state=UploadState.CANCELLED)


@dataclass(frozen=True, kw_only=True)
class UploadPart:
    """A stored part of an upload."""

    id: str
    upload_id: str
    size_bytes: int
    blob_key: str
    created_at: datetime


@dataclass(frozen=True, kw_only=True)
class NewUpload:
    """The description of an upload."""

    filename: str
    purpose: FilePurpose | None
    size_bytes: int
    mime_type: str
    ttl: timedelta | None = None
    request_id: str = ""

    def check(self, limit: int) -> None:
        """Raises MissingField, TooLong, InvalidField, OutOfRange or RequestTooLarge."""
        check_text("filename", self.filename)
        check_purpose(self.purpose)
        check_size(self.size_bytes, minimum=1)
        if self.size_bytes > limit:
            raise RequestTooLarge(size=self.size_bytes, limit=limit)
        check_text("mime_type", self.mime_type)
        check_ttl(self.ttl)
        check_request_id(self.request_id)


@dataclass(frozen=True)
class Completion:
    """The parts of a file in their order, and the MD5 it must have; empty: any."""

    part_ids: Sequence[str]
    md5: str

    def check(self) -> None:
        """Raises MissingField, TooLong or InvalidField."""
        if not self.part_ids:
            raise MissingField(field="part_ids")
        if len(self.part_ids) > MAX_PARTS:
            raise TooLong(field="part_ids", length=len(self.part_ids), limit=MAX_PARTS)
        check_digest("md5", self.md5, MD5_DIGITS)
        seen: set[str] = set()
        for number, part_id in enumerate(self.part_ids):
            if part_id in seen:
                raise InvalidField(field=f"part_ids[{number}]", problem="it is named twice")
            seen.add(part_id)

    def fingerprint(self) -> str:
        """The fingerprint of a completion, so that it can be repeated."""
        return hashlib.sha256("\n".join([self.md5.lower(), *self.part_ids]).encode()).hexdigest()

    def select(self, upload: Upload, stored: Iterable[UploadPart]) -> list[UploadPart]:
        """The named parts in the order of the file. Raises InvalidField or SizeMismatch."""
        known = {part.id: part for part in stored}
        for number, part_id in enumerate(self.part_ids):
            if part_id not in known:
                problem = "the upload has no such part"
                raise InvalidField(field=f"part_ids[{number}]", problem=problem)
        chosen = [known[part_id] for part_id in self.part_ids]
        size = sum(part.size_bytes for part in chosen)
        if size != upload.size_bytes:
            raise SizeMismatch(expected_bytes=upload.size_bytes, actual_bytes=size)
        return chosen


class PartTotals(NamedTuple):
    """What the stored parts of an upload take together."""

    num_parts: int
    size_bytes: int


def max_part_bytes(upload: Upload, taken: PartTotals, part_bytes: int) -> int:
    """The largest part that the upload still takes. Raises TooLong.

    Parts that were sent again, or that will not be used, may take as much as the file itself.
    """
    if taken.num_parts >= MAX_PARTS:
        raise TooLong(field="upload_id", length=taken.num_parts + 1, limit=MAX_PARTS, unit="parts")
    return min(part_bytes, max(2 * upload.size_bytes - taken.size_bytes, 0))
