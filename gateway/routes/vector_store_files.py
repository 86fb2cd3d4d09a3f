"""Routes under /v1/vector_stores/{store_id}: files and file batches."""

from typing import Annotated

from corral.control.v1 import vector_store_file_service_pb2
from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from gateway.auth import Caller
from gateway.context import AppContext
from gateway.http.docs import answers, json_body
from gateway.http.errors import json_response
from gateway.routes.files import idempotency_key
from gateway.routes.vector_stores import polled
from openai_wire.errors import VECTOR_STORE_PARAMS, openai_names
from openai_wire.resources.vector_stores import (
    VectorStoreFileBatchBody,
    VectorStoreFileBody,
    VectorStoreFileUpdateBody,
    content_page,
    create_file_batch_request,
    create_file_request,
    file_batch_object,
    list_store_files_request,
    store_file_object,
    update_file_request,
)
from openai_wire.shared.objects import deleted_object, list_object


def vector_store_files_router(context: AppContext) -> APIRouter:
    """The routes of files in a vector store."""
    control = context.control
    router = APIRouter(prefix="/v1/vector_stores/{store_id}/files")
    known_caller = Annotated[Caller, Depends(context.authentication)]

    @router.post(
        "",
        summary="Add a file to a vector store",
        openapi_extra=json_body(VectorStoreFileBody),
        responses=answers("The file."),
    )
    async def create_vector_store_file(
        request: Request, store_id: str, caller: known_caller
    ) -> Response:
        """Add a file to a vector store. It is ingested in the background."""
        body = await context.read_body(request)
        with openai_names(VECTOR_STORE_PARAMS):
            proto = create_file_request(store_id, body, idempotency_key(request))
            reply = await control.call(
                control.vector_store_files.CreateVectorStoreFile, proto, caller
            )
            return polled(store_file_object(reply.file), reply.file)

    @router.get("", summary="List the files of a store", responses=answers("A list of files."))
    async def list_vector_store_files(
        request: Request, store_id: str, caller: known_caller
    ) -> Response:
        """List files, paged by `after`, `before`, `limit` and `order`, filtered by `filter`."""
        with openai_names(VECTOR_STORE_PARAMS):
            proto = list_store_files_request(store_id, request.query_params)
            return _file_list(
                await control.call(control.vector_store_files.ListVectorStoreFiles, proto, caller)
            )

    @router.get("/{file_id}", summary="Retrieve a file", responses=answers("The file."))
    async def retrieve_vector_store_file(
        store_id: str, file_id: str, caller: known_caller
    ) -> Response:
        """Retrieve a file of a vector store."""
        proto = vector_store_file_service_pb2.GetVectorStoreFileRequest(
            vector_store_id=store_id, file_id=file_id
        )
        reply = await control.call(control.vector_store_files.GetVectorStoreFile, proto, caller)
        return polled(store_file_object(reply.file), reply.file)

    @router.post(
        "/{file_id}",
        summary="Update a file",
        openapi_extra=json_body(VectorStoreFileUpdateBody),
        responses=answers("The file."),
    )
    async def update_vector_store_file(
        request: Request, store_id: str, file_id: str, caller: known_caller
    ) -> Response:
        """Replace the attributes of a file."""
        body = await context.read_body(request)
        with openai_names(VECTOR_STORE_PARAMS):
            proto = update_file_request(store_id, file_id, body)
            reply = await control.call(
                control.vector_store_files.UpdateVectorStoreFile, proto, caller
            )
            return polled(store_file_object(reply.file), reply.file)

    @router.delete("/{file_id}", summary="Remove a file", responses=answers("Deletion status."))
    async def delete_vector_store_file(
        store_id: str, file_id: str, caller: known_caller
    ) -> Response:
        """Remove a file from a vector store. The file itself is kept."""
        proto = vector_store_file_service_pb2.DeleteVectorStoreFileRequest(
            vector_store_id=store_id, file_id=file_id
        )
        await control.call(control.vector_store_files.DeleteVectorStoreFile, proto, caller)
        return json_response(deleted_object(file_id, "vector_store.file.deleted"))

    @router.get("/{file_id}/content", summary="Get a file's text", responses=answers("The text."))
    async def retrieve_vector_store_file_content(
        store_id: str, file_id: str, caller: known_caller
    ) -> Response:
        """Return the text extracted from a file, in chunks."""
        proto = vector_store_file_service_pb2.ListVectorStoreFileContentsRequest(
            vector_store_id=store_id, file_id=file_id
        )
        method = control.vector_store_files.ListVectorStoreFileContents
        pages = control.pages(method, proto, caller)
        return json_response(content_page([text async for page in pages for text in page.texts]))

    return router


def vector_store_batches_router(context: AppContext) -> APIRouter:
    """The routes of file batches."""
    control = context.control
    router = APIRouter(prefix="/v1/vector_stores/{store_id}/file_batches")
    known_caller = Annotated[Caller, Depends(context.authentication)]

    @router.post(
        "",
        summary="Add files to a vector store",
        openapi_extra=json_body(VectorStoreFileBatchBody),
        responses=answers("A batch of files."),
    )
    async def create_vector_store_file_batch(
        request: Request, store_id: str, caller: known_caller
    ) -> Response:
        """Add several files to a vector store."""
        body = await context.read_body(request)
        with openai_names(VECTOR_STORE_PARAMS):
            proto = create_file_batch_request(store_id, body, idempotency_key(request))
            reply = await control.call(
                control.vector_store_files.CreateVectorStoreFileBatch, proto, caller
            )
            return polled(file_batch_object(reply.batch), reply.batch)

    @router.get("/{batch_id}", summary="Retrieve a file batch", responses=answers("The batch."))
    async def retrieve_vector_store_file_batch(
        store_id: str, batch_id: str, caller: known_caller
    ) -> Response:
        """Retrieve a file batch with its current counts."""
        proto = vector_store_file_service_pb2.GetVectorStoreFileBatchRequest(
            vector_store_id=store_id, batch_id=batch_id
        )
        reply = await control.call(
            control.vector_store_files.GetVectorStoreFileBatch, proto, caller
        )
        return polled(file_batch_object(reply.batch), reply.batch)

    @router.post("/{batch_id}/cancel", summary="Cancel a batch", responses=answers("The batch."))
    async def cancel_vector_store_file_batch(
        store_id: str, batch_id: str, caller: known_caller
    ) -> Response:
        """Cancel the ingestion of files that are not completed."""
        proto = vector_store_file_service_pb2.CancelVectorStoreFileBatchRequest(
            vector_store_id=store_id, batch_id=batch_id
        )
        reply = await control.call(
            control.vector_store_files.CancelVectorStoreFileBatch, proto, caller
        )
        return polled(file_batch_object(reply.batch), reply.batch)

    @router.get(
        "/{batch_id}/files", summary="List the files of a batch", responses=answers("Files.")
    )
    async def list_vector_store_file_batch_files(
        request: Request, store_id: str, batch_id: str, caller: known_caller
    ) -> Response:
        """List the files of a batch, paged and filtered as files of a store."""
        with openai_names(VECTOR_STORE_PARAMS):
            proto = list_store_files_request(store_id, request.query_params, batch_id)
            return _file_list(
                await control.call(control.vector_store_files.ListVectorStoreFiles, proto, caller)
            )

    return router


def _file_list(page: vector_store_file_service_pb2.ListVectorStoreFilesResponse) -> Response:
    has_more = bool(page.next_page_token)
    return json_response(list_object(page.files, store_file_object, has_more=has_more))
