"""The routes under /v1/vector_stores."""

from typing import Annotated

from corral.control.v1 import vector_store_pb2, vector_store_service_pb2
from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from gateway.auth import Caller
from gateway.context import AppContext
from gateway.http.docs import answers, json_body
from gateway.http.errors import json_response
from gateway.routes.files import name_request
from gateway.rpc import SEARCH_TIMEOUT_S
from openai_wire.errors import VECTOR_STORE_PARAMS, openai_names
from openai_wire.resources.vector_search import VectorSearchBody, search_request
from openai_wire.resources.vector_stores import (
    VectorStoreBody,
    VectorStoreUpdateBody,
    create_store_request,
    deleted_object,
    list_stores_request,
    listed,
    search_page,
    status_of,
    store_object,
    update_store_request,
)

POLL_AFTER_MS = "250"
"""When clients that wait for a file should look again: a short file takes about as long."""


def vector_stores_router(context: AppContext) -> APIRouter:
    """The routes of stores."""
    control = context.control
    router = APIRouter(prefix="/v1/vector_stores")
    known_caller = Annotated[Caller, Depends(context.authentication)]

    @router.post(
        "",
        summary="Begin a vector store",
        openapi_extra=json_body(VectorStoreBody),
        responses=answers("A vector store."),
    )
    async def create_vector_store(request: Request, caller: known_caller) -> Response:
        """Begins a store; the files that are put into it are read in the background."""
        body = await context.read_body(request)
        with openai_names(VECTOR_STORE_PARAMS):
            asked = create_store_request(body, name_request(request))
            reply = await control.call(control.vector_stores.CreateVectorStore, asked, caller)
            return _described(reply.vector_store)

    @router.get("", summary="List the vector stores", responses=answers("A list of them."))
    async def list_vector_stores(request: Request, caller: known_caller) -> Response:
        """A page of stores: `after`, `before`, `limit` and `order` choose it."""
        with openai_names(VECTOR_STORE_PARAMS):
            wanted = list_stores_request(request.query_params)
            page = await control.call(control.vector_stores.ListVectorStores, wanted, caller)
        objects = [store_object(store) for store in page.vector_stores]
        return json_response(listed(objects, has_more=bool(page.next_page_token)))

    @router.get("/{store_id}", summary="Describe a store", responses=answers("The store."))
    async def retrieve_vector_store(store_id: str, caller: known_caller) -> Response:
        """One store, with counts as they are now."""
        wanted = vector_store_service_pb2.GetVectorStoreRequest(vector_store_id=store_id)
        reply = await control.call(control.vector_stores.GetVectorStore, wanted, caller)
        return _described(reply.vector_store)

    @router.post(
        "/{store_id}",
        summary="Change a store",
        openapi_extra=json_body(VectorStoreUpdateBody),
        responses=answers("The store."),
    )
    async def update_vector_store(
        request: Request, store_id: str, caller: known_caller
    ) -> Response:
        """Changes its name, its expiry or its metadata."""
        body = await context.read_body(request)
        with openai_names(VECTOR_STORE_PARAMS):
            wanted = update_store_request(store_id, body)
            reply = await control.call(control.vector_stores.UpdateVectorStore, wanted, caller)
            return _described(reply.vector_store)

    @router.delete("/{store_id}", summary="Delete a store", responses=answers("What is left."))
    async def delete_vector_store(store_id: str, caller: known_caller) -> Response:
        """Deletes a store; its files stay."""
        wanted = vector_store_service_pb2.DeleteVectorStoreRequest(vector_store_id=store_id)
        await control.call(control.vector_stores.DeleteVectorStore, wanted, caller)
        return json_response(deleted_object("vector_store", store_id))

    @router.post(
        "/{store_id}/search",
        summary="Search a store",
        openapi_extra=json_body(VectorSearchBody),
        responses=answers("A page of passages."),
    )
    async def search_vector_store(
        request: Request, store_id: str, caller: known_caller
    ) -> Response:
        """Finds the passages that answer a question best."""
        body = await context.read_body(request)
        with openai_names(VECTOR_STORE_PARAMS):
            asked = search_request(store_id, body)
            found = await control.call(
                control.vector_stores.SearchVectorStore, asked, caller, timeout_s=SEARCH_TIMEOUT_S
            )
        return json_response(search_page(asked.queries, found.hits))

    return router


def _described(store: vector_store_pb2.VectorStore) -> Response:
    return polled(store_object(store), status_of(store))


def polled(content: dict[str, object], status: str) -> Response:
    """An object that clients may be waiting for."""
    response = json_response(content)
    if status == "in_progress":
        response.headers["openai-poll-after-ms"] = POLL_AFTER_MS
    return response
