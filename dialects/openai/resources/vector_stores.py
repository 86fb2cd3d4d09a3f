"""Request bodies and objects of vector stores, their files and file batches."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal

from corral.control.v1 import (
    vector_store_file_service_pb2,
    vector_store_pb2,
    vector_store_search_pb2,
    vector_store_service_pb2,
)
from pydantic import Field
from typing_extensions import TypedDict

from dialects.openai.shared.pagination import PageQuery, page_fields, parse_page_query
from dialects.shared.fields import Count, WireModel, message_of, update_mask, validate
from dialects.shared.wire import From, seconds, writer
from svc_kit.errors import InvalidField, InvalidType
from svc_kit.rpc.field_limits import limit

Attributes = dict[str, Any]
StoreFileStatus = Literal["in_progress", "completed", "failed", "cancelled"]


class StaticChunking(WireModel):
    """Sizes of chunks, in tokens of the embedding model."""

    max_chunk_size_tokens: Count = Field(description="100 to 4096.")
    chunk_overlap_tokens: Count = Field(description="At most half of max_chunk_size_tokens.")


class ChunkingStrategy(WireModel):
    """How a text is split into chunks."""

    type: Literal["auto", "static"]
    static: StaticChunking | None = Field(None, description="Required if the type is static.")


_limit = partial(limit, vector_store_service_pb2.CreateVectorStoreRequest)


class ExpiresAfterUse(WireModel):
    anchor: Literal["last_active_at"] = Field(description="The start of the time to live.")
    days: Annotated[int, _limit("expire_after_days")] = Field(description="1 to 365.")


class VectorStoreBody(WireModel):
    name: Annotated[str, _limit("name")] | None = None
    description: Annotated[str, _limit("description")] | None = None
    file_ids: Annotated[list[str], _limit("file_ids")] | None = Field(
        None, description="Files to add."
    )
    chunking_strategy: ChunkingStrategy | None = Field(
        None, description="How the files are split. Default: auto, chunks of 800 tokens."
    )
    expires_after: ExpiresAfterUse | None = Field(None, description="Default: never.")
    metadata: dict[str, str] | None = Field(None, description="At most 16 pairs of strings.")


class VectorStoreUpdateBody(WireModel):
    """Changes of a vector store."""

    name: Annotated[str, _limit("name")] | None = None
    expires_after: ExpiresAfterUse | None = Field(None, description="null means never.")
    metadata: dict[str, str] | None = Field(
        None, description="At most 16 pairs of strings; null removes all."
    )


class VectorStoreFileBody(WireModel):
    file_id: str = Field(description="The file.")
    attributes: Attributes | None = Field(
        None, description="At most 16 strings, numbers or booleans, for filters of searches."
    )
    chunking_strategy: ChunkingStrategy | None = Field(None, description="Default: auto.")


class VectorStoreFileUpdateBody(WireModel):
    """Changes of a file in a vector store."""

    attributes: Attributes | None = Field(description="Replaces the existing attributes.")


class VectorStoreFileBatchBody(WireModel):
    """Files to add to a vector store together."""

    file_ids: list[str] | None = Field(
        None, description="At most 2000 files with the same attributes and chunking strategy."
    )
    files: list[VectorStoreFileBody] | None = Field(
        None, description="Files with individual settings, instead of file_ids."
    )
    attributes: Attributes | None = Field(None, description="Attributes of all file_ids.")
    chunking_strategy: ChunkingStrategy | None = Field(
        None, description="Chunking strategy of all file_ids. Default: auto."
    )


class StoreFileListQuery(PageQuery):
    filter: StoreFileStatus | None = None


def create_store_request(
    fields: Mapping[str, Any], request_id: str
) -> vector_store_service_pb2.CreateVectorStoreRequest:
    """Convert the body of a new store. Raises DomainErrors with the body's field names."""
    body = validate(VectorStoreBody, fields)
    return message_of(
        vector_store_service_pb2.CreateVectorStoreRequest,
        body,
        chunking=_chunking(body.chunking_strategy),
        expire_after_days=None if body.expires_after is None else body.expires_after.days,
        request_id=request_id,
    )


def update_store_request(
    store_id: str, fields: Mapping[str, Any]
) -> vector_store_service_pb2.UpdateVectorStoreRequest:
    """Convert the body of an update. Raises DomainErrors with the body's field names."""
    body = validate(VectorStoreUpdateBody, fields)
    days = 0 if body.expires_after is None else body.expires_after.days
    metadata = vector_store_service_pb2.VectorStoreMetadata(pairs=body.metadata or {})
    return message_of(
        vector_store_service_pb2.UpdateVectorStoreRequest,
        body,
        vector_store_id=store_id,
        expire_after_days=days if "expires_after" in fields else None,
        metadata=metadata if "metadata" in fields else None,
        update_mask=None,
    )


def create_file_request(
    store_id: str, fields: Mapping[str, Any], request_id: str
) -> vector_store_file_service_pb2.CreateVectorStoreFileRequest:
    """Convert the body of a new file. Raises DomainErrors with the body's field names."""
    body = validate(VectorStoreFileBody, fields)
    return vector_store_file_service_pb2.CreateVectorStoreFileRequest(
        vector_store_id=store_id,
        file_id=body.file_id,
        attributes=_attributes(body.attributes),
        chunking=_chunking(body.chunking_strategy),
        request_id=request_id,
    )


def update_file_request(
    store_id: str, file_id: str, fields: Mapping[str, Any]
) -> vector_store_file_service_pb2.UpdateVectorStoreFileRequest:
    """Convert new attributes. Raises DomainErrors with the body's field names."""
    body = validate(VectorStoreFileUpdateBody, fields)
    return vector_store_file_service_pb2.UpdateVectorStoreFileRequest(
        vector_store_id=store_id,
        file_id=file_id,
        attributes=_attributes(body.attributes),
        update_mask=update_mask(fields, "attributes"),
    )


def list_store_files_request(
    store_id: str, query: Mapping[str, str], batch_id: str = ""
) -> vector_store_file_service_pb2.ListVectorStoreFilesRequest:
    """Convert the query of a list. Raises DomainErrors."""
    page = parse_page_query(StoreFileListQuery, query)
    return vector_store_file_service_pb2.ListVectorStoreFilesRequest(
        vector_store_id=store_id,
        batch_id=batch_id,
        state=None if page.filter is None else f"STATE_{page.filter.upper()}",
        **page_fields(page),
    )


def create_file_batch_request(
    store_id: str, fields: Mapping[str, Any], request_id: str
) -> vector_store_file_service_pb2.CreateVectorStoreFileBatchRequest:
    """Convert the body of a new file batch. Raises DomainErrors with the body's field names."""
    body = validate(VectorStoreFileBatchBody, fields)
    if body.files is not None and body.file_ids is not None:
        raise InvalidField(field="files", problem="it cannot be combined with 'file_ids'")
    return vector_store_file_service_pb2.CreateVectorStoreFileBatchRequest(
        vector_store_id=store_id, files=_files(body), request_id=request_id
    )


def _files(
    body: VectorStoreFileBatchBody,
) -> Sequence[vector_store_file_service_pb2.NewVectorStoreFile]:
    files = body.files
    if files is None:
        files = [
            VectorStoreFileBody(
                file_id=each,
                attributes=body.attributes,
                chunking_strategy=body.chunking_strategy,
            )
            for each in body.file_ids or ()
        ]
    return [
        vector_store_file_service_pb2.NewVectorStoreFile(
            file_id=file.file_id,
            attributes=_attributes(file.attributes),
            chunking=_chunking(file.chunking_strategy),
        )
        for file in files
    ]


def _chunking(strategy: ChunkingStrategy | None) -> vector_store_pb2.ChunkingStrategy | None:
    if strategy is None or strategy.type == "auto":
        return None
    if strategy.static is None:
        problem = "it is required if the type is 'static'"
        raise InvalidField(field="chunking_strategy.static", problem=problem)
    return vector_store_pb2.ChunkingStrategy(**strategy.static.model_dump())


def _attributes(attributes: Attributes | None) -> dict[str, vector_store_pb2.AttributeValue]:
    return {
        key: attribute_value(f"attributes.{key}", value)
        for key, value in (attributes or {}).items()
    }


def attribute_value(field: str, value: object) -> vector_store_pb2.AttributeValue:
    """Convert the value of an attribute. Raises InvalidType."""
    if isinstance(value, bool):
        return vector_store_pb2.AttributeValue(boolean=value)
    if isinstance(value, str):
        return vector_store_pb2.AttributeValue(string=value)
    if isinstance(value, int | float):
        return vector_store_pb2.AttributeValue(number=value)
    raise InvalidType(field=field, expected="a string, a number or a boolean")


AttributeValue = str | float | bool


def _attribute_values(
    attributes: Mapping[str, vector_store_pb2.AttributeValue],
) -> dict[str, AttributeValue]:
    return {
        key: getattr(value, value.WhichOneof("kind") or "string")
        for key, value in attributes.items()
    }


class FileCounts(TypedDict):
    """How many files are in each state."""

    in_progress: int
    completed: int
    failed: int
    cancelled: int
    total: int


class StoreExpiration(TypedDict):
    """When a vector store expires."""

    anchor: Literal["last_active_at"]
    days: int


def _expiration(days: int) -> StoreExpiration:
    return {"anchor": "last_active_at", "days": days}


class VectorStore(TypedDict):
    id: str
    object: Literal["vector_store"]
    created_at: Annotated[int, seconds("create_time")]
    name: str
    description: str | None
    usage_bytes: int
    file_counts: FileCounts
    status: Annotated[Literal["expired", "in_progress", "completed"], From("state")]
    expires_after: Annotated[StoreExpiration | None, From("expire_after_days", _expiration)]
    expires_at: Annotated[int | None, seconds("expire_time")]
    last_active_at: Annotated[int, seconds("last_active_time")]
    metadata: dict[str, str]


class IngestionError(TypedDict):
    """Why a file could not be added to a vector store."""

    code: Literal["server_error", "unsupported_file", "invalid_file"]
    message: str


class ChunkSizes(TypedDict):
    """Sizes of the chunks of a file, in tokens."""

    max_chunk_size_tokens: int
    chunk_overlap_tokens: int


class FileChunking(TypedDict):
    """How a file was split into chunks."""

    type: Literal["static"]
    static: Annotated[ChunkSizes, From(".")]


class VectorStoreFile(TypedDict):
    id: Annotated[str, From("file_id")]
    object: Literal["vector_store.file"]
    usage_bytes: int
    created_at: Annotated[int, seconds("create_time")]
    vector_store_id: str
    status: Annotated[StoreFileStatus, From("state")]
    last_error: Annotated[IngestionError | None, From("error")]
    chunking_strategy: Annotated[FileChunking, From("chunking")]
    attributes: Annotated[dict[str, AttributeValue], From(write=_attribute_values)]


class VectorStoreFileBatch(TypedDict):
    """Files that were added to a vector store together."""

    id: str
    object: Literal["vector_store.files_batch"]
    created_at: Annotated[int, seconds("create_time")]
    vector_store_id: str
    status: Annotated[StoreFileStatus, From("state")]
    file_counts: FileCounts


class TextChunk(TypedDict):
    type: Literal["text"]
    text: str


def _chunks(texts: Sequence[str]) -> list[TextChunk]:
    return [{"type": "text", "text": text} for text in texts]


class VectorStoreFileContent(TypedDict):
    """The whole text of a file, in chunks."""

    object: Literal["vector_store.file_content.page"]
    data: list[TextChunk]
    has_more: bool
    next_page: None


class SearchHit(TypedDict):
    """A file that matches a query, with its best chunks."""

    file_id: str
    filename: str
    score: float
    attributes: Annotated[dict[str, AttributeValue], From(write=_attribute_values)]
    content: Annotated[list[TextChunk], From("texts", _chunks)]


class VectorStoreSearchResults(TypedDict):
    object: Literal["vector_store.search_results.page"]
    search_query: list[str]
    data: list[SearchHit]
    has_more: bool
    next_page: None


store_object = writer(vector_store_pb2.VectorStore, VectorStore)
store_file_object = writer(vector_store_pb2.VectorStoreFile, VectorStoreFile)
file_batch_object = writer(vector_store_pb2.VectorStoreFileBatch, VectorStoreFileBatch)
_hit_object = writer(vector_store_search_pb2.VectorStoreSearchHit, SearchHit)


def content_page(texts: Sequence[str]) -> VectorStoreFileContent:
    """The whole text of a file, in chunks."""
    return {
        "object": "vector_store.file_content.page",
        "data": _chunks(texts),
        "has_more": False,
        "next_page": None,
    }


def search_page(
    queries: Sequence[str], hits: Sequence[vector_store_search_pb2.VectorStoreSearchHit]
) -> VectorStoreSearchResults:
    return {
        "object": "vector_store.search_results.page",
        "search_query": list(queries),
        "data": [_hit_object(hit) for hit in hits],
        "has_more": False,
        "next_page": None,
    }
