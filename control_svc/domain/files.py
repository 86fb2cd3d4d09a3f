"""Files: what they are for, how large they may be, and when they go away."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from control_svc.domain.checks import check_digest, check_request_id, check_text, check_ttl
from svc_kit.errors import (
    ChecksumMismatch,
    InvalidField,
    MissingField,
    OutOfRange,
    RequestTooLarge,
    SizeMismatch,
)

BATCH_TTL: Final = timedelta(days=30)
"""How long a batch's input is kept where the caller says nothing, as at OpenAI."""
SHA256_DIGITS: Final = 64


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
    """What a caller says of a file that it sends."""

    filename: str
    purpose: FilePurpose | None
    ttl: timedelta | None = None
    size_bytes: int | None = None
    sha256: str = ""
    request_id: str = ""

    def check(self, limits: "FileLimits") -> None:
        """Everything that can be told before the bytes.

        Raises MissingField, TooLong, InvalidField, OutOfRange or RequestTooLarge.
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
