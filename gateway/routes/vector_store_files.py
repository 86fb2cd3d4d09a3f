"""The routes under /v1/vector_stores/{store_id}: files, and batches of them."""

from typing import Annotated

from corral.control.v1 import vector_store_file_service_pb2, vector_store_pb2
from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from gateway.auth import Caller
from gateway.context import AppContext
from gateway.http.docs import answers, json_body
from gateway.http.errors import json_response
from gateway.routes.files import name_request
from gateway.routes.vector_stores import polled
from gateway.rpc import ControlClient
from openai_wire.errors import VECTOR_STORE_PARAMS, openai_names
from openai_wire.resources.vector_stores import (
    VectorStoreFileBatchBody,
    VectorStoreFileBody,
    VectorStoreFileUpdateBody,
    content_page,
    create_file_batch_request,
    create_file_request,
    deleted_object,
    file_batch_object,
    list_store_files_request,
    listed,
    status_of,
    store_file_object,
    update_file_request,
)


def vector_store_files_router(context: AppContext) -> APIRouter:
    """The routes of files in stores."""
    control = context.control
    router = APIRouter(prefix="/v1/vector_stores/{store_id}/files")
    known_caller = Annotated[Caller, Depends(context.authentication)]

    @router.post(
        "",
        summary="Put a file into a store",
        openapi_extra=json_body(VectorStoreFileBody),
        responses=answers("A file in a store."),
    )
    async def create_vector_store_file(
        request: Request, store_id: str, caller: known_caller
    ) -> Response:
        """Puts a file into a store, to be read in the background."""
        body = await context.read_body(request)
        with openai_names(VECTOR_STORE_PARAMS):
            asked = create_file_request(store_id, body, name_request(request))
            reply = await control.call(
                control.vector_store_files.CreateVectorStoreFile, asked, caller
            )
            return _described(reply.file)

    @router.get("", summary="List a store's files", responses=answers("A list of files."))
    async def list_vector_store_files(
        request: Request, store_id: str, caller: known_caller
    ) -> Response:
        """A page of files: `after`, `before`, `limit`, `order` and `filter` choose it."""
        with openai_names(VECTOR_STORE_PARAMS):
            asked = list_store_files_request(store_id, request.query_params)
            return _listed(
                await control.call(control.vector_store_files.ListVectorStoreFiles, asked, caller)
            )

    @router.get("/{file_id}", summary="Describe a file", responses=answers("The file."))
    async def retrieve_vector_store_file(
        store_id: str, file_id: str, caller: known_caller
    ) -> Response:
        """One file in a store."""
        wanted = vector_store_file_service_pb2.GetVectorStoreFileRequest(
            vector_store_id=store_id, file_id=file_id
        )
        reply = await control.call(control.vector_store_files.GetVectorStoreFile, wanted, caller)
        return _described(reply.file)

    @router.post(
        "/{file_id}",
        summary="Change a file's attributes",
        openapi_extra=json_body(VectorStoreFileUpdateBody),
        responses=answers("The file."),
    )
    async def update_vector_store_file(
        request: Request, store_id: str, file_id: str, caller: known_caller
    ) -> Response:
        """Changes the attributes of a file in a store."""
        body = await context.read_body(request)
        with openai_names(VECTOR_STORE_PARAMS):
            asked = update_file_request(store_id, file_id, body)
            reply = await control.call(
                control.vector_store_files.UpdateVectorStoreFile, asked, caller
            )
            return _described(reply.file)

    @router.delete("/{file_id}", summary="Take a file out", responses=answers("What is left."))
    async def delete_vector_store_file(
        store_id: str, file_id: str, caller: known_caller
    ) -> Response:
        """Takes a file out of a store; the file itself stays."""
        wanted = vector_store_file_service_pb2.DeleteVectorStoreFileRequest(
            vector_store_id=store_id, file_id=file_id
        )
        await control.call(control.vector_store_files.DeleteVectorStoreFile, wanted, caller)
        return json_response(deleted_object("vector_store.file", file_id))

    @router.get("/{file_id}/content", summary="Read its text", responses=answers("Its text."))
    async def retrieve_vector_store_file_content(
        store_id: str, file_id: str, caller: known_caller
    ) -> Response:
        """The text that was read from a file, in passages."""
        return json_response(content_page(await _texts(control, store_id, file_id, caller)))

    return router


def vector_store_batches_router(context: AppContext) -> APIRouter:
    """The routes of batches."""
    control = context.control
    router = APIRouter(prefix="/v1/vector_stores/{store_id}/file_batches")
    known_caller = Annotated[Caller, Depends(context.authentication)]

    @router.post(
        "",
        summary="Put files into a store",
        openapi_extra=json_body(VectorStoreFileBatchBody),
        responses=answers("A batch of files."),
    )
    async def create_vector_store_file_batch(
        request: Request, store_id: str, caller: known_caller
    ) -> Response:
        """Puts files into a store together."""
        body = await context.read_body(request)
        with openai_names(VECTOR_STORE_PARAMS):
            asked = create_file_batch_request(store_id, body, name_request(request))
            reply = await control.call(
                control.vector_store_files.CreateVectorStoreFileBatch, asked, caller
            )
            return _described_batch(reply.batch)

    @router.get("/{batch_id}", summary="Describe a batch", responses=answers("The batch."))
    async def retrieve_vector_store_file_batch(
        store_id: str, batch_id: str, caller: known_caller
    ) -> Response:
        """One batch, with counts as they are now."""
        wanted = vector_store_file_service_pb2.GetVectorStoreFileBatchRequest(
            vector_store_id=store_id, batch_id=batch_id
        )
        reply = await control.call(
            control.vector_store_files.GetVectorStoreFileBatch, wanted, caller
        )
        return _described_batch(reply.batch)

    @router.post("/{batch_id}/cancel", summary="Give up", responses=answers("The batch."))
    async def cancel_vector_store_file_batch(
        store_id: str, batch_id: str, caller: known_caller
    ) -> Response:
        """Gives up the files that are not complete."""
        wanted = vector_store_file_service_pb2.CancelVectorStoreFileBatchRequest(
            vector_store_id=store_id, batch_id=batch_id
        )
        reply = await control.call(
            control.vector_store_files.CancelVectorStoreFileBatch, wanted, caller
        )
        return _described_batch(reply.batch)

    @router.get("/{batch_id}/files", summary="List its files", responses=answers("Files."))
    async def list_vector_store_file_batch_files(
        request: Request, store_id: str, batch_id: str, caller: known_caller
    ) -> Response:
        """A page of a batch's files."""
        with openai_names(VECTOR_STORE_PARAMS):
            asked = list_store_files_request(store_id, request.query_params, batch_id)
            return _listed(
                await control.call(control.vector_store_files.ListVectorStoreFiles, asked, caller)
            )

    return router


def _described(file: vector_store_pb2.VectorStoreFile) -> Response:
    return polled(store_file_object(file), status_of(file))


def _described_batch(batch: vector_store_pb2.VectorStoreFileBatch) -> Response:
    return polled(file_batch_object(batch), status_of(batch))


def _listed(page: vector_store_file_service_pb2.ListVectorStoreFilesResponse) -> Response:
    objects = [store_file_object(file) for file in page.files]
    return json_response(listed(objects, has_more=bool(page.next_page_token)))


async def _texts(control: ControlClient, store_id: str, file_id: str, caller: Caller) -> list[str]:
    """Return the texts of all chunks of a file."""
    texts: list[str] = []
    token = ""
    while True:
        request = vector_store_file_service_pb2.ListVectorStoreFileContentsRequest(
            vector_store_id=store_id, file_id=file_id, page_token=token
        )
        method = control.vector_store_files.ListVectorStoreFileContents
        reply = await control.call(method, request, caller)
        texts += reply.texts
        token = reply.next_page_token
        if not token:
            return texts
