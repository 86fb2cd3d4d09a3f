"""What clients say of vector stores, and the requests of the control service it becomes."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from corral.control.v1 import (
    vector_store_file_service_pb2,
    vector_store_pb2,
    vector_store_service_pb2,
)
from pydantic import Field

from openai_wire.requests.fields import Count, WireModel, validated, without_neutral
from openai_wire.requests.listing import PageQuery, page_fields, page_query
from svc_kit.errors import InvalidField, InvalidType

MAX_PAGE = 100
Attributes = dict[str, Any]


class StaticChunking(WireModel):
    """The sizes of passages, in tokens of the embedding model."""

    max_chunk_size_tokens: Count = Field(description="100 to 4096.")
    chunk_overlap_tokens: Count = Field(description="At most half of it.")


class ChunkingStrategy(WireModel):
    """How a text is cut into passages."""

    type: Literal["auto", "static"]
    static: StaticChunking | None = Field(None, description="The sizes, where they are static.")


class ExpiresAfterUse(WireModel):
    """When a store expires."""

    anchor: Literal["last_active_at"] = Field(description="What the days count from.")
    days: Annotated[int, Field(ge=1, le=365)] = Field(description="1 to 365.")


class VectorStoreBody(WireModel):
    """A new vector store."""

    name: str | None = Field(None, description="At most 255 characters.")
    description: str | None = Field(None, description="At most 512 characters.")
    file_ids: list[str] | None = Field(None, description="Files to put into it, at most 500.")
    chunking_strategy: ChunkingStrategy | None = Field(
        None, description="How they are cut. Default: auto, passages of 800 tokens."
    )
    expires_after: ExpiresAfterUse | None = Field(None, description="Default: never.")
    metadata: dict[str, str] | None = Field(None, description="At most 16 pairs.")


class VectorStoreUpdateBody(WireModel):
    """What changes of a vector store."""

    name: str | None = Field(None, description="At most 255 characters.")
    expires_after: ExpiresAfterUse | None = Field(None, description="null: never.")
    metadata: dict[str, str] | None = Field(None, description="At most 16 pairs; null: none.")


class VectorStoreFileBody(WireModel):
    """A file to put into a vector store."""

    file_id: str = Field(description="The file.")
    attributes: Attributes | None = Field(
        None, description="At most 16 strings, numbers and booleans, for filters."
    )
    chunking_strategy: ChunkingStrategy | None = Field(None, description="Default: auto.")


class VectorStoreFileUpdateBody(WireModel):
    """What changes of a file in a vector store."""

    attributes: Attributes | None = Field(description="In place of those that were there.")


class VectorStoreFileBatchBody(WireModel):
    """Files to put into a vector store together."""

    file_ids: list[str] | None = Field(None, description="At most 2000 files, all treated alike.")
    files: list[VectorStoreFileBody] | None = Field(
        None, description="Or files with attributes and chunking strategies of their own."
    )
    attributes: Attributes | None = Field(None, description="Of every one of file_ids.")
    chunking_strategy: ChunkingStrategy | None = Field(
        None, description="Of every one of file_ids. Default: auto."
    )


class StoreFileListQuery(PageQuery):
    """The query of a list of files in a vector store."""

    filter: Literal["in_progress", "completed", "failed", "cancelled"] | None = None


def create_store_request(
    fields: Mapping[str, Any], request_id: str
) -> vector_store_service_pb2.CreateVectorStoreRequest:
    """The store that a body asks for. Raises DomainErrors with the body's field names."""
    body = validated(VectorStoreBody, without_neutral(fields, {}))
    return vector_store_service_pb2.CreateVectorStoreRequest(
        name=body.name or "",
        description=body.description or "",
        file_ids=body.file_ids or (),
        chunking=_chunking(body.chunking_strategy),
        expire_after_days=None if body.expires_after is None else body.expires_after.days,
        metadata=body.metadata or {},
        request_id=request_id,
    )


def update_store_request(
    store_id: str, fields: Mapping[str, Any]
) -> vector_store_service_pb2.UpdateVectorStoreRequest:
    """The changes in a body; null takes away. Raises DomainErrors with the body's field names."""
    body = validated(VectorStoreUpdateBody, fields)
    days = 0 if body.expires_after is None else body.expires_after.days
    metadata = vector_store_service_pb2.VectorStoreMetadata(pairs=body.metadata or {})
    return vector_store_service_pb2.UpdateVectorStoreRequest(
        vector_store_id=store_id,
        name=body.name,
        expire_after_days=days if "expires_after" in fields else None,
        metadata=metadata if "metadata" in fields else None,
    )


def list_stores_request(
    query: Mapping[str, str],
) -> vector_store_service_pb2.ListVectorStoresRequest:
    """The page that a query asks for. Parameters that are not known are ignored."""
    return vector_store_service_pb2.ListVectorStoresRequest(
        **page_fields(page_query(PageQuery, query))
    )


def create_file_request(
    store_id: str, fields: Mapping[str, Any], request_id: str
) -> vector_store_file_service_pb2.CreateVectorStoreFileRequest:
    """The file that a body asks for. Raises DomainErrors with the body's field names."""
    body = validated(VectorStoreFileBody, without_neutral(fields, {}))
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
    """The attributes in a body. Raises DomainErrors with the body's field names."""
    body = validated(VectorStoreFileUpdateBody, fields)
    return vector_store_file_service_pb2.UpdateVectorStoreFileRequest(
        vector_store_id=store_id, file_id=file_id, attributes=_attributes(body.attributes)
    )


def list_store_files_request(
    store_id: str, query: Mapping[str, str], batch_id: str = ""
) -> vector_store_file_service_pb2.ListVectorStoreFilesRequest:
    """The page that a query asks for. Parameters that are not known are ignored."""
    asked = page_query(StoreFileListQuery, query)
    return vector_store_file_service_pb2.ListVectorStoreFilesRequest(
        vector_store_id=store_id,
        batch_id=batch_id,
        state=None if asked.filter is None else f"STATE_{asked.filter.upper()}",
        **page_fields(asked),
    )


def create_file_batch_request(
    store_id: str, fields: Mapping[str, Any], request_id: str
) -> vector_store_file_service_pb2.CreateVectorStoreFileBatchRequest:
    """The batch that a body asks for. Raises DomainErrors with the body's field names."""
    body = validated(VectorStoreFileBatchBody, without_neutral(fields, {}))
    if body.files is not None and body.file_ids is not None:
        raise InvalidField(field="files", problem="it cannot stand beside file_ids")
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
        raise InvalidField(field="chunking_strategy.static", problem="it is missing")
    return vector_store_pb2.ChunkingStrategy(**strategy.static.model_dump())


def _attributes(attributes: Attributes | None) -> dict[str, vector_store_pb2.AttributeValue]:
    return {
        key: attribute_value(f"attributes.{key}", value)
        for key, value in (attributes or {}).items()
    }


def attribute_value(field: str, value: object) -> vector_store_pb2.AttributeValue:
    """A value as a message. Raises InvalidType."""
    if isinstance(value, bool):
        return vector_store_pb2.AttributeValue(boolean=value)
    if isinstance(value, str):
        return vector_store_pb2.AttributeValue(string=value)
    if isinstance(value, int | float):
        return vector_store_pb2.AttributeValue(number=value)
    raise InvalidType(field=field, expected="a string, a number or a boolean")
