"""Responses in the test of tenant isolation."""

from collections.abc import Callable, Mapping, Sequence

from corral.control.v1 import response_pb2
from corral.control.v1 import response_service_pb2 as pb
from google.protobuf.message import Message

from tests.support.control import Client
from tests.support.response_client import ResponseClient, new_response_message

Ids = Mapping[str, str]


async def create_response(client: Client, canary: str) -> Ids:
    """Create a background response and wait for its end."""
    responses = ResponseClient(client)
    about = {"canary": canary}
    made = await responses.create(canary, background=True, instructions=canary, metadata=about)
    async for _ in responses.watch(made.id):
        pass
    return {"response": made.id}


async def observe_response(client: Client, ids: Ids) -> object:
    """Read the response, its input and its events."""
    responses, made = ResponseClient(client), ids["response"]
    events = [event async for event in responses.watch(made)]
    return await responses.get(made), await responses.input_items(made), events


def response_calls() -> Mapping[str, Callable[[Ids], Sequence[Message]]]:
    """Return valid requests of each RPC."""
    return {
        "CreateResponse": lambda ids: [pb.CreateResponseRequest(new_response=_continuation(ids))],
        "StreamResponse": lambda ids: [pb.StreamResponseRequest(new_response=_continuation(ids))],
        "WatchResponse": lambda ids: [pb.WatchResponseRequest(response_id=ids["response"])],
        "GetResponse": lambda ids: [pb.GetResponseRequest(response_id=ids["response"])],
        "DeleteResponse": lambda ids: [pb.DeleteResponseRequest(response_id=ids["response"])],
        "CancelResponse": lambda ids: [pb.CancelResponseRequest(response_id=ids["response"])],
        "ListInputItems": lambda ids: [pb.ListInputItemsRequest(response_id=ids["response"])],
        "CountInputTokens": lambda ids: [
            pb.CountInputTokensRequest(new_response=_continuation(ids))
        ],
        "PrepareResponse": lambda ids: [pb.PrepareResponseRequest(new_response=_continuation(ids))],
        "CompactResponse": lambda ids: [
            pb.CompactResponseRequest(previous_response_id=ids["response"])
        ],
    }


def _continuation(ids: Ids) -> response_pb2.NewResponse:
    """Build an unstored continuation, since jobs would change the answers that are compared."""
    return new_response_message("x", previous_response_id=ids["response"], store=False)
