"""Errors of files, uploads, batches and vector stores."""

from svc_kit.errors.kinds import FailedPrecondition, InvalidArgument, NotFound


class SizeMismatch(InvalidArgument):
    """Received {actual_bytes} bytes, but {expected_bytes} were announced. Send the bytes again."""

    reason = "SIZE_MISMATCH"
    expected_bytes: int
    actual_bytes: int


class ChecksumMismatch(InvalidArgument):
    """The bytes do not have the digest given in '{field}'. Send them again."""

    reason = "CHECKSUM_MISMATCH"
    field: str


class RangeNotSatisfiable(InvalidArgument):
    """Invalid '{field}': the range starts beyond the end, which is at {size} bytes."""

    reason = "RANGE_NOT_SATISFIABLE"
    field: str
    size: int


class UploadNotPending(FailedPrecondition):
    """The upload '{upload}' is {state} and cannot be changed."""

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


class VectorStoreExpired(FailedPrecondition):
    """The vector store '{vector_store}' has expired. Create a new one."""

    reason = "VECTOR_STORE_EXPIRED"
    vector_store: str


class EmbeddingModelMissing(FailedPrecondition):
    """This server has no embedding model, so it cannot search files. Add one: {command}"""

    reason = "EMBEDDING_MODEL_MISSING"
    command: str


class EmbeddingModelChanged(FailedPrecondition):
    """The vector store '{vector_store}' was created with the embedding model '{model}', which this
    server does not serve in that version. Serve it again, or add the files to a new store."""

    reason = "EMBEDDING_MODEL_CHANGED"
    vector_store: str
    model: str


class VectorStoreNotFound(NotFound):
    """No vector store found with id '{vector_store}'."""

    reason = "VECTOR_STORE_NOT_FOUND"
    vector_store: str
    field: str = "vector_store_id"
    """What named the store."""


class VectorStoreFileNotFound(NotFound):
    """No file found with id '{file}' in this vector store."""

    reason = "VECTOR_STORE_FILE_NOT_FOUND"
    file: str
    field: str = "file_id"
    """What named the file."""


class VectorStoreFileBatchNotFound(NotFound):
    """No file batch found with id '{batch}' in this vector store."""

    reason = "VECTOR_STORE_FILE_BATCH_NOT_FOUND"
    batch: str
    field: str = "batch_id"
    """What named the batch."""
