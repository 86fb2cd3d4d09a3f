"""Vector stores, their files and what is found in them, as OpenAI's objects."""

from collections.abc import Mapping, Sequence

from corral.control.v1 import vector_store_pb2, vector_store_search_pb2

_Thing = (
    vector_store_pb2.VectorStore
    | vector_store_pb2.VectorStoreFile
    | vector_store_pb2.VectorStoreFileBatch
)


def store_object(store: vector_store_pb2.VectorStore) -> dict[str, object]:
    """A store."""
    expires_after = {"anchor": "last_active_at", "days": store.expire_after_days}
    return {
        "id": store.id,
        "object": "vector_store",
        "created_at": store.create_time.seconds,
        "name": store.name,
        "description": store.description or None,
        "usage_bytes": store.usage_bytes,
        "file_counts": _counts(store.file_counts),
        "status": status_of(store),
        "expires_after": expires_after if store.HasField("expire_after_days") else None,
        "expires_at": store.expire_time.seconds if store.HasField("expire_time") else None,
        "last_active_at": store.last_active_time.seconds,
        "metadata": dict(store.metadata),
    }


def store_file_object(file: vector_store_pb2.VectorStoreFile) -> dict[str, object]:
    """A file in a store."""
    code = vector_store_pb2.VectorStoreFileError.Code.Name(file.error.code)
    error = {"code": code.removeprefix("CODE_").lower(), "message": file.error.message}
    return {
        "id": file.file_id,
        "object": "vector_store.file",
        "usage_bytes": file.usage_bytes,
        "created_at": file.create_time.seconds,
        "vector_store_id": file.vector_store_id,
        "status": status_of(file),
        "last_error": error if file.HasField("error") else None,
        "chunking_strategy": {
            "type": "static",
            "static": {
                "max_chunk_size_tokens": file.chunking.max_chunk_size_tokens,
                "chunk_overlap_tokens": file.chunking.chunk_overlap_tokens,
            },
        },
        "attributes": attributes_object(file.attributes),
    }


def file_batch_object(batch: vector_store_pb2.VectorStoreFileBatch) -> dict[str, object]:
    """Files that were put into a store together."""
    return {
        "id": batch.id,
        "object": "vector_store.files_batch",
        "created_at": batch.create_time.seconds,
        "vector_store_id": batch.vector_store_id,
        "status": status_of(batch),
        "file_counts": _counts(batch.file_counts),
    }


def listed(objects: Sequence[dict[str, object]], *, has_more: bool) -> dict[str, object]:
    """A page of objects."""
    return {
        "object": "list",
        "data": objects,
        "first_id": objects[0]["id"] if objects else None,
        "last_id": objects[-1]["id"] if objects else None,
        "has_more": has_more,
    }


def deleted_object(kind: str, object_id: str) -> dict[str, object]:
    """What is left of an object."""
    return {"id": object_id, "object": f"{kind}.deleted", "deleted": True}


def content_page(texts: Sequence[str]) -> dict[str, object]:
    """All of a file's text, in passages."""
    return {
        "object": "vector_store.file_content.page",
        "data": [{"type": "text", "text": text} for text in texts],
        "has_more": False,
        "next_page": None,
    }


def search_page(
    queries: Sequence[str], hits: Sequence[vector_store_search_pb2.VectorStoreSearchHit]
) -> dict[str, object]:
    """What was found."""
    return {
        "object": "vector_store.search_results.page",
        "search_query": list(queries),
        "data": [_hit_object(hit) for hit in hits],
        "has_more": False,
        "next_page": None,
    }


def attributes_object(
    attributes: Mapping[str, vector_store_pb2.AttributeValue],
) -> dict[str, object]:
    """What a file's owner attached."""
    return {
        key: getattr(value, value.WhichOneof("kind") or "string")
        for key, value in attributes.items()
    }


def status_of(thing: _Thing) -> str:
    """OpenAI's word for a state."""
    return type(thing).State.Name(thing.state).removeprefix("STATE_").lower()


def _hit_object(hit: vector_store_search_pb2.VectorStoreSearchHit) -> dict[str, object]:
    return {
        "file_id": hit.file_id,
        "filename": hit.filename,
        "score": hit.score,
        "attributes": attributes_object(hit.attributes),
        "content": [{"type": "text", "text": text} for text in hit.texts],
    }


def _counts(counts: vector_store_pb2.VectorStoreFileCounts) -> dict[str, int]:
    names = ("in_progress", "completed", "failed", "cancelled", "total")
    return {name: getattr(counts, name) for name in names}
