"""Routes under /v1/vector_stores."""

from collections.abc import Mapping
from typing import Any

from corral.control.v1 import vector_store_service_pb2 as pb
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from dialects.openai.errors import VECTOR_STORE_PARAMS, openai_names
from dialects.openai.resources import vector_stores
from dialects.openai.resources.vector_search import VectorSearchBody, search_request
from dialects.openai.shared.pagination import PageQuery, parse_page_fields
from gateway.context import Context, Control, IdempotencyKey, JsonObject
from gateway.http.docs import json_body, operation
from gateway.http.errors import json_response
from gateway.http.rate_limits import set_rate_limits
from gateway.rpc import SEARCH_TIMEOUT_S
from gateway.rpc_routes import Deletion, Page, Resource, RpcRoutes

POLL_AFTER_MS = "250"
"""Polling interval for clients that wait for a file: the ingestion time of a short file."""


def poll_headers(resource: Mapping[str, Any]) -> Mapping[str, str]:
    """A suggested polling interval while the resource is in progress."""
    is_pending = resource["status"] == "in_progress"
    return {"openai-poll-after-ms": POLL_AFTER_MS} if is_pending else {}


VECTOR_STORE = Resource(vector_stores.VectorStore, poll_headers)

router = APIRouter(prefix="/v1/vector_stores")
rpc = RpcRoutes(router, VECTOR_STORE_PARAMS)


@rpc.route("POST", "", "Create a vector store", VECTOR_STORE, vector_stores.VectorStoreBody)
def create_vector_store(
    body: JsonObject, request_id: IdempotencyKey
) -> pb.CreateVectorStoreRequest:
    """Create a vector store. Its files are ingested in the background."""
    return vector_stores.create_store_request(body, request_id)


@rpc.route("GET", "", "List the vector stores", Page(vector_stores.VectorStore), query=PageQuery)
def list_vector_stores(request: Request) -> pb.ListVectorStoresRequest:
    """List vector stores, paged by `after`, `before`, `limit` and `order`."""
    return pb.ListVectorStoresRequest(**parse_page_fields(request.query_params))


@rpc.route("GET", "/{store_id}", "Retrieve a vector store", VECTOR_STORE)
def retrieve_vector_store(store_id: str) -> pb.GetVectorStoreRequest:
    """Retrieve a vector store with its current counts."""
    return pb.GetVectorStoreRequest(vector_store_id=store_id)


@rpc.route(
    "POST",
    "/{store_id}",
    "Update a vector store",
    VECTOR_STORE,
    vector_stores.VectorStoreUpdateBody,
)
def update_vector_store(store_id: str, body: JsonObject) -> pb.UpdateVectorStoreRequest:
    """Update the name, expiration or metadata of a vector store."""
    return vector_stores.update_store_request(store_id, body)


@rpc.route("DELETE", "/{store_id}", "Delete a vector store", Deletion("vector_store.deleted"))
def delete_vector_store(store_id: str) -> pb.DeleteVectorStoreRequest:
    """Delete a vector store. Its files are kept."""
    return pb.DeleteVectorStoreRequest(vector_store_id=store_id)


@router.post(
    "/{store_id}/search",
    **operation(
        "Search a vector store",
        vector_stores.VectorStoreSearchResults,
        json_body(VectorSearchBody),
    ),
)
async def search_vector_store(
    control: Control, store_id: str, body: JsonObject, request: Request, context: Context
) -> Response:
    """Find the chunks that match a query best."""
    with openai_names(VECTOR_STORE_PARAMS):
        proto = search_request(store_id, body)
        reply_type = pb.SearchVectorStoreResponse
        searching = control.call(proto, reply_type, timeout_s=SEARCH_TIMEOUT_S)
        reply = await context.complete(request, searching)
        set_rate_limits(request.scope, reply)
    return json_response(vector_stores.search_page(proto.queries, reply.hits))
