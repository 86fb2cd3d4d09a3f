"""Routes under /v1/vector_stores/{store_id}: files and file batches."""

from corral.control.v1 import vector_store_file_service_pb2 as pb
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from dialects.openai.errors import VECTOR_STORE_PARAMS, openai_names
from dialects.openai.resources.vector_stores import (
    StoreFileListQuery,
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
from dialects.openai.shared.objects import deleted_object, list_object
from gateway.context import Control, IdempotencyKey, JsonObject
from gateway.http.docs import json_body, operation
from gateway.http.errors import json_response
from gateway.http.rate_limits import set_rate_limits
from gateway.routes.vector_stores import polled

router = APIRouter(prefix="/v1/vector_stores/{store_id}/files")
batches_router = APIRouter(prefix="/v1/vector_stores/{store_id}/file_batches")


@router.post(
    "",
    **operation("Add a file to a vector store", "VectorStoreFile", json_body(VectorStoreFileBody)),
)
async def create_vector_store_file(
    control: Control,
    store_id: str,
    body: JsonObject,
    request_id: IdempotencyKey,
    request: Request,
) -> Response:
    """Add a file to a vector store. It is ingested in the background."""
    with openai_names(VECTOR_STORE_PARAMS):
        proto = create_file_request(store_id, body, request_id)
        reply = await control.call(control.vector_store_files.CreateVectorStoreFile, proto)
        set_rate_limits(request.scope, reply)
        return polled(store_file_object(reply.file), reply.file)


@router.get(
    "", **operation("List the files of a store", "VectorStoreFileList", query=StoreFileListQuery)
)
async def list_vector_store_files(control: Control, request: Request, store_id: str) -> Response:
    """List files, paged by `after`, `before`, `limit` and `order`, filtered by `filter`."""
    with openai_names(VECTOR_STORE_PARAMS):
        proto = list_store_files_request(store_id, request.query_params)
        page = await control.call(control.vector_store_files.ListVectorStoreFiles, proto)
    return json_response(list_object(page.files, store_file_object, page.next_page_token))


@router.get("/{file_id}", **operation("Retrieve a file", "VectorStoreFile"))
async def retrieve_vector_store_file(control: Control, store_id: str, file_id: str) -> Response:
    """Retrieve a file of a vector store."""
    proto = pb.GetVectorStoreFileRequest(vector_store_id=store_id, file_id=file_id)
    reply = await control.call(control.vector_store_files.GetVectorStoreFile, proto)
    return polled(store_file_object(reply.file), reply.file)


@router.post(
    "/{file_id}",
    **operation("Update a file", "VectorStoreFile", json_body(VectorStoreFileUpdateBody)),
)
async def update_vector_store_file(
    control: Control, store_id: str, file_id: str, body: JsonObject
) -> Response:
    """Replace the attributes of a file."""
    with openai_names(VECTOR_STORE_PARAMS):
        proto = update_file_request(store_id, file_id, body)
        reply = await control.call(control.vector_store_files.UpdateVectorStoreFile, proto)
        return polled(store_file_object(reply.file), reply.file)


@router.delete("/{file_id}", **operation("Remove a file", "Deleted"))
async def delete_vector_store_file(control: Control, store_id: str, file_id: str) -> Response:
    """Remove a file from a vector store. The file itself is kept."""
    proto = pb.DeleteVectorStoreFileRequest(vector_store_id=store_id, file_id=file_id)
    await control.call(control.vector_store_files.DeleteVectorStoreFile, proto)
    return json_response(deleted_object(file_id, "vector_store.file.deleted"))


@router.get("/{file_id}/content", **operation("Get a file's text", "VectorStoreFileContent"))
async def retrieve_vector_store_file_content(
    control: Control, store_id: str, file_id: str
) -> Response:
    """Return the text extracted from a file, in chunks."""
    proto = pb.ListVectorStoreFileContentsRequest(vector_store_id=store_id, file_id=file_id)
    method = control.vector_store_files.ListVectorStoreFileContents
    pages = control.pages(method, proto)
    return json_response(content_page([text async for page in pages for text in page.texts]))


@batches_router.post(
    "",
    **operation(
        "Add files to a vector store", "VectorStoreFileBatch", json_body(VectorStoreFileBatchBody)
    ),
)
async def create_vector_store_file_batch(
    control: Control,
    store_id: str,
    body: JsonObject,
    request_id: IdempotencyKey,
    request: Request,
) -> Response:
    """Add several files to a vector store."""
    with openai_names(VECTOR_STORE_PARAMS):
        proto = create_file_batch_request(store_id, body, request_id)
        reply = await control.call(control.vector_store_files.CreateVectorStoreFileBatch, proto)
        set_rate_limits(request.scope, reply)
        return polled(file_batch_object(reply.batch), reply.batch)


@batches_router.get("/{batch_id}", **operation("Retrieve a file batch", "VectorStoreFileBatch"))
async def retrieve_vector_store_file_batch(
    control: Control, store_id: str, batch_id: str
) -> Response:
    """Retrieve a file batch with its current counts."""
    proto = pb.GetVectorStoreFileBatchRequest(vector_store_id=store_id, batch_id=batch_id)
    reply = await control.call(control.vector_store_files.GetVectorStoreFileBatch, proto)
    return polled(file_batch_object(reply.batch), reply.batch)


@batches_router.post("/{batch_id}/cancel", **operation("Cancel a batch", "VectorStoreFileBatch"))
async def cancel_vector_store_file_batch(
    control: Control, store_id: str, batch_id: str
) -> Response:
    """Cancel the ingestion of files that are not completed."""
    proto = pb.CancelVectorStoreFileBatchRequest(vector_store_id=store_id, batch_id=batch_id)
    reply = await control.call(control.vector_store_files.CancelVectorStoreFileBatch, proto)
    return polled(file_batch_object(reply.batch), reply.batch)


@batches_router.get(
    "/{batch_id}/files",
    **operation("List the files of a batch", "VectorStoreFileList", query=StoreFileListQuery),
)
async def list_vector_store_file_batch_files(
    control: Control, request: Request, store_id: str, batch_id: str
) -> Response:
    """List the files of a batch, paged and filtered as files of a store."""
    with openai_names(VECTOR_STORE_PARAMS):
        proto = list_store_files_request(store_id, request.query_params, batch_id)
        page = await control.call(control.vector_store_files.ListVectorStoreFiles, proto)
    return json_response(list_object(page.files, store_file_object, page.next_page_token))
