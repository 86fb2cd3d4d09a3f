"""Routes under /v1/batches."""

from corral.control.v1 import batch_service_pb2 as pb
from fastapi import APIRouter
from starlette.requests import Request

from dialects.openai.errors import BATCH_PARAMS
from dialects.openai.resources import batches
from gateway.context import IdempotencyKey, JsonObject
from gateway.rpc_routes import Page, RpcRoutes

router = APIRouter(prefix="/v1/batches")
rpc = RpcRoutes(router, BATCH_PARAMS)


@rpc.route("POST", "", "Create a batch", batches.Batch, batches.BatchBody)
def create_batch(body: JsonObject, request_id: IdempotencyKey) -> pb.CreateBatchRequest:
    """Create a batch. Its file is validated, then its requests run in the background."""
    return batches.create_batch_request(body, request_id)


@rpc.route("GET", "", "List the batches", Page(batches.Batch), query=batches.BatchListQuery)
def list_batches(request: Request) -> pb.ListBatchesRequest:
    """List batches, newest first, paged by `after` and `limit`."""
    return batches.list_batches_request(request.query_params)


@rpc.route("GET", "/{batch_id}", "Retrieve a batch", batches.Batch)
def retrieve_batch(batch_id: str) -> pb.GetBatchRequest:
    """Retrieve a batch with its current counts and usage."""
    return pb.GetBatchRequest(batch_id=batch_id)


@rpc.route("POST", "/{batch_id}/cancel", "Cancel a batch", batches.Batch)
def cancel_batch(batch_id: str) -> pb.CancelBatchRequest:
    """Cancel a batch. Results so far are kept in its output files."""
    return pb.CancelBatchRequest(batch_id=batch_id)
