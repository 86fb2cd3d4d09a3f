"""Routes under /v1/vector_stores/{store_id}: files and file batches."""

from corral.control.v1 import vector_store_file_service_pb2 as pb
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from dialects.openai.errors import VECTOR_STORE_PARAMS
from dialects.openai.resources import vector_stores
from gateway.context import Control, IdempotencyKey, JsonObject
from gateway.http.docs import operation
from gateway.http.errors import json_response
from gateway.routes.vector_stores import poll_headers
from gateway.rpc_routes import Deletion, Page, Resource, RpcRoutes

FILE = Resource(vector_stores.VectorStoreFile, poll_headers)
BATCH = Resource(vector_stores.VectorStoreFileBatch, poll_headers)

router = APIRouter(prefix="/v1/vector_stores/{store_id}/files")
rpc = RpcRoutes(router, VECTOR_STORE_PARAMS)
batches_router = APIRouter(prefix="/v1/vector_stores/{store_id}/file_batches")
batches = RpcRoutes(batches_router, VECTOR_STORE_PARAMS)


@rpc.route("POST", "", "Add a file to a vector store", FILE, vector_stores.VectorStoreFileBody)
def create_vector_store_file(
    store_id: str, body: JsonObject, request_id: IdempotencyKey
) -> pb.CreateVectorStoreFileRequest:
    """Add a file to a vector store. It is ingested in the background."""
    return vector_stores.create_file_request(store_id, body, request_id)


@rpc.route(
    "GET",
    "",
    "List the files of a store",
    Page(vector_stores.VectorStoreFile),
    query=vector_stores.StoreFileListQuery,
)
def list_vector_store_files(request: Request, store_id: str) -> pb.ListVectorStoreFilesRequest:
    """List files, paged by `after`, `before`, `limit` and `order`, filtered by `filter`."""
    return vector_stores.list_store_files_request(store_id, request.query_params)


@rpc.route("GET", "/{file_id}", "Retrieve a file", FILE)
def retrieve_vector_store_file(store_id: str, file_id: str) -> pb.GetVectorStoreFileRequest:
    """Retrieve a file of a vector store."""
    return pb.GetVectorStoreFileRequest(vector_store_id=store_id, file_id=file_id)


@rpc.route("POST", "/{file_id}", "Update a file", FILE, vector_stores.VectorStoreFileUpdateBody)
def update_vector_store_file(
    store_id: str, file_id: str, body: JsonObject
) -> pb.UpdateVectorStoreFileRequest:
    """Replace the attributes of a file."""
    return vector_stores.update_file_request(store_id, file_id, body)


@rpc.route("DELETE", "/{file_id}", "Remove a file", Deletion("vector_store.file.deleted"))
def delete_vector_store_file(store_id: str, file_id: str) -> pb.DeleteVectorStoreFileRequest:
    """Remove a file from a vector store. The file itself is kept."""
    return pb.DeleteVectorStoreFileRequest(vector_store_id=store_id, file_id=file_id)


@router.get(
    "/{file_id}/content",
    **operation("Get a file's text", vector_stores.VectorStoreFileContent),
)
async def retrieve_vector_store_file_content(
    control: Control, store_id: str, file_id: str
) -> Response:
    """Return the text extracted from a file, in chunks."""
    proto = pb.ListVectorStoreFileContentsRequest(vector_store_id=store_id, file_id=file_id)
    pages = control.pages(proto, pb.ListVectorStoreFileContentsResponse)
    texts = [text async for page in pages for text in page.texts]
    return json_response(vector_stores.content_page(texts))


@batches.route(
    "POST", "", "Add files to a vector store", BATCH, vector_stores.VectorStoreFileBatchBody
)
def create_vector_store_file_batch(
    store_id: str, body: JsonObject, request_id: IdempotencyKey
) -> pb.CreateVectorStoreFileBatchRequest:
    """Add several files to a vector store."""
    return vector_stores.create_file_batch_request(store_id, body, request_id)


@batches.route("GET", "/{batch_id}", "Retrieve a file batch", BATCH)
def retrieve_vector_store_file_batch(
    store_id: str, batch_id: str
) -> pb.GetVectorStoreFileBatchRequest:
    """Retrieve a file batch with its current counts."""
    return pb.GetVectorStoreFileBatchRequest(vector_store_id=store_id, batch_id=batch_id)


@batches.route("POST", "/{batch_id}/cancel", "Cancel a batch", BATCH)
def cancel_vector_store_file_batch(
    store_id: str, batch_id: str
) -> pb.CancelVectorStoreFileBatchRequest:
    """Cancel the ingestion of files that are not completed."""
    return pb.CancelVectorStoreFileBatchRequest(vector_store_id=store_id, batch_id=batch_id)


@batches.route(
    "GET",
    "/{batch_id}/files",
    "List the files of a batch",
    Page(vector_stores.VectorStoreFile),
    query=vector_stores.StoreFileListQuery,
)
def list_vector_store_file_batch_files(
    request: Request, store_id: str, batch_id: str
) -> pb.ListVectorStoreFilesRequest:
    """List the files of a batch, paged and filtered as files of a store."""
    return vector_stores.list_store_files_request(store_id, request.query_params, batch_id)
