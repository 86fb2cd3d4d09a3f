"""Files, uploads and batches."""

from svc_kit.errors.kinds import FailedPrecondition, InvalidArgument, NotFound


class SizeMismatch(InvalidArgument):
    """{actual_bytes} bytes were sent where {expected_bytes} were announced."""

    reason = "SIZE_MISMATCH"
    expected_bytes: int
    actual_bytes: int


class ChecksumMismatch(InvalidArgument):
    """The bytes do not have the digest given in '{field}'."""

    reason = "CHECKSUM_MISMATCH"
    field: str


class RangeNotSatisfiable(InvalidArgument):
    """Invalid '{field}': the range begins beyond the end, which is at {size} bytes."""

    reason = "RANGE_NOT_SATISFIABLE"
    field: str
    size: int


class UploadNotPending(FailedPrecondition):
    """The upload '{upload}' is {state} and takes no further changes."""

    reason = "UPLOAD_NOT_PENDING"
    upload: str
    state: str
    """"completed", "cancelled" or "expired"."""


class BatchNotCancellable(FailedPrecondition):
    """Cannot cancel the batch '{batch}' with status '{state}'."""

    reason = "BATCH_NOT_CANCELLABLE"
    batch: str
    state: str
    """ "finalizing", "completed", "failed" or "expired"."""


class FileNotFound(NotFound):
    """No such File object: {file}"""

    reason = "FILE_NOT_FOUND"
    file: str
    field: str = "id"
    """What named the file."""


class UploadNotFound(NotFound):
    """No such Upload object: {upload}"""

    reason = "UPLOAD_NOT_FOUND"
    upload: str
    field: str = "id"
    """What named the upload."""


class BatchNotFound(NotFound):
    """No such Batch object: {batch}"""

    reason = "BATCH_NOT_FOUND"
    batch: str
    field: str = "id"
    """What named the batch."""
