"""Errors of files, uploads, batches and vector stores."""

from svc_kit.errors.kinds import FailedPrecondition, InvalidArgument, NotFound


class SizeMismatch(InvalidArgument):
    """Received {actual_bytes} bytes, expected {expected_bytes}. Send the content again."""

    expected_bytes: int
    actual_bytes: int


class ChecksumMismatch(InvalidArgument):
    """The content does not match the digest in '{field}'. Send the content again."""

    field: str


class RangeNotSatisfiable(InvalidArgument):
    """Invalid '{field}': the range must start within the file, which has {size} bytes."""

    field: str
    size: int


class UploadNotPending(FailedPrecondition):
    """The upload '{upload}' is {state} and cannot be changed. Create a new upload."""

    upload: str
    state: str
    """"completed", "cancelled" or "expired"."""


class BatchNotCancellable(FailedPrecondition):
    """Cannot cancel the batch '{batch}' with status '{state}'."""

    batch: str
    state: str
    """ "finalizing", "completed", "failed" or "expired"."""


class BatchNotEnded(FailedPrecondition):
    """The batch '{batch}' has not ended; its status is '{state}'. Wait for its end, or cancel
    it."""

    batch: str
    state: str


class FileNotFound(NotFound):
    """No such File object: {file}"""

    file: str
    field: str = "id"


class UploadNotFound(NotFound):
    """No such Upload object: {upload}"""

    upload: str
    field: str = "id"


class BatchNotFound(NotFound):
    """No such Batch object: {batch}"""

    batch: str
    field: str = "id"


class VectorStoreExpired(FailedPrecondition):
    """The vector store '{vector_store}' has expired. Create a new one."""

    vector_store: str


class EmbeddingModelMissing(FailedPrecondition):
    """This server has no embedding model, so it cannot search files. Install one: {command}"""

    command: str


class EmbeddingModelChanged(FailedPrecondition):
    """The vector store '{vector_store}' was created with the embedding model '{model}', which this
    server no longer serves, or serves from another file. Restore that model, or add the files to a
    new vector store."""

    vector_store: str
    model: str


class VectorStoreNotFound(NotFound):
    """No vector store found with id '{vector_store}'."""

    vector_store: str
    field: str = "vector_store_id"


class VectorStoreFileNotFound(NotFound):
    """No file found with id '{file}' in this vector store."""

    file: str
    field: str = "file_id"


class VectorStoreFileBatchNotFound(NotFound):
    """No file batch found with id '{batch}' in this vector store."""

    batch: str
    field: str = "batch_id"
