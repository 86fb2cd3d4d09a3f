"""Vector stores, their files and the embedding model behind them."""

from svc_kit.errors.kinds import FailedPrecondition, NotFound


class VectorStoreExpired(FailedPrecondition):
    """The vector store '{vector_store}' has expired: nobody used it for as long as it said."""

    reason = "VECTOR_STORE_EXPIRED"
    vector_store: str


class EmbeddingModelMissing(FailedPrecondition):
    """This server has no embedding model, so it cannot search files. Add one: {command}"""

    reason = "EMBEDDING_MODEL_MISSING"
    command: str


class EmbeddingModelChanged(FailedPrecondition):
    """The vector store '{vector_store}' was made with the embedding model '{model}', which this
    server does not serve as it was. Serve it again, or put the files into a new store."""

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
