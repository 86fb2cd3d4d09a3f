"""Routes under /v1/vector_stores."""

from typing import Any

from corral.control.v1 import vector_store_service_pb2 as pb
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from dialects.openai.errors import VECTOR_STORE_PARAMS, openai_names
from dialects.openai.resources.vector_search import VectorSearchBody, search_request
from dialects.openai.resources.vector_stores import (
    VectorStoreBody,
    VectorStoreUpdateBody,
    create_store_request,
    search_page,
    store_object,
    update_store_request,
)
from dialects.openai.shared.objects import deleted_object, list_object, state_name
from dialects.openai.shared.pagination import PageQuery, parse_page_fields
from gateway.context import Control, IdempotencyKey, JsonObject
from gateway.http.docs import json_body, operation
from gateway.http.errors import json_response
from gateway.http.rate_limits import set_rate_limits
from gateway.rpc import SEARCH_TIMEOUT_S

POLL_AFTER_MS = "250"
"""Polling interval for clients that wait for a file: the ingestion time of a short file."""


router = APIRouter(prefix="/v1/vector_stores")


@router.post("", **operation("Create a vector store", "VectorStore", json_body(VectorStoreBody)))
async def create_vector_store(
    control: Control, body: JsonObject, request_id: IdempotencyKey, request: Request
) -> Response:
    """Create a vector store. Its files are ingested in the background."""
    with openai_names(VECTOR_STORE_PARAMS):
        proto = create_store_request(body, request_id)
        reply = await control.call(control.vector_stores.CreateVectorStore, proto)
        set_rate_limits(request.scope, reply)
        return polled(store_object(reply.vector_store), reply.vector_store)


@router.get("", **operation("List the vector stores", "VectorStoreList", query=PageQuery))
async def list_vector_stores(control: Control, request: Request) -> Response:
    """List vector stores, paged by `after`, `before`, `limit` and `order`."""
    with openai_names(VECTOR_STORE_PARAMS):
        proto = pb.ListVectorStoresRequest(**parse_page_fields(request.query_params))
        page = await control.call(control.vector_stores.ListVectorStores, proto)
    return json_response(list_object(page.vector_stores, store_object, page.next_page_token))


@router.get("/{store_id}", **operation("Retrieve a vector store", "VectorStore"))
async def retrieve_vector_store(control: Control, store_id: str) -> Response:
    """Retrieve a vector store with its current counts."""
    proto = pb.GetVectorStoreRequest(vector_store_id=store_id)
    reply = await control.call(control.vector_stores.GetVectorStore, proto)
    return polled(store_object(reply.vector_store), reply.vector_store)


@router.post(
    "/{store_id}",
    **operation("Update a vector store", "VectorStore", json_body(VectorStoreUpdateBody)),
)
async def update_vector_store(control: Control, store_id: str, body: JsonObject) -> Response:
    """Update the name, expiration or metadata of a vector store."""
    with openai_names(VECTOR_STORE_PARAMS):
        proto = update_store_request(store_id, body)
        reply = await control.call(control.vector_stores.UpdateVectorStore, proto)
        return polled(store_object(reply.vector_store), reply.vector_store)


@router.delete("/{store_id}", **operation("Delete a vector store", "Deleted"))
async def delete_vector_store(control: Control, store_id: str) -> Response:
    """Delete a vector store. Its files are kept."""
    proto = pb.DeleteVectorStoreRequest(vector_store_id=store_id)
    await control.call(control.vector_stores.DeleteVectorStore, proto)
    return json_response(deleted_object(store_id, "vector_store.deleted"))


@router.post(
    "/{store_id}/search",
    **operation("Search a vector store", "VectorStoreSearchResults", json_body(VectorSearchBody)),
)
async def search_vector_store(
    control: Control, store_id: str, body: JsonObject, request: Request
) -> Response:
    """Find the chunks that match a query best."""
    with openai_names(VECTOR_STORE_PARAMS):
        proto = search_request(store_id, body)
        reply = await control.call(
            control.vector_stores.SearchVectorStore, proto, timeout_s=SEARCH_TIMEOUT_S
        )
        set_rate_limits(request.scope, reply)
    return json_response(search_page(proto.queries, reply.hits))


def polled(content: dict[str, object], resource: Any) -> Response:
    """A response with a suggested polling interval while the resource is in progress."""
    response = json_response(content)
    if state_name(resource) == "in_progress":
        response.headers["openai-poll-after-ms"] = POLL_AFTER_MS
    return response
