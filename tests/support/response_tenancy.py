"""What the tenancy test knows of responses."""

from collections.abc import Callable, Mapping, Sequence

from corral.control.v1 import response_pb2
from corral.control.v1 import response_service_pb2 as pb
from google.protobuf.message import Message

from tests.support.control import Client
from tests.support.response_client import ResponseClient, asked

Ids = Mapping[str, str]


async def create_response(client: Client, canary: str) -> Ids:
    """A background response that has ended."""
    responses = ResponseClient(client)
    about = {"canary": canary}
    made = await responses.create(canary, background=True, instructions=canary, metadata=about)
    async for _ in responses.watch(made.id):
        pass
    return {"response": made.id}


async def observe_response(client: Client, ids: Ids) -> object:
    """The response, its input and its events."""
    responses, made = ResponseClient(client), ids["response"]
    events = [event async for event in responses.watch(made)]
    return await responses.get(made), await responses.input_items(made), events


def response_calls() -> Mapping[str, Callable[[Ids], Sequence[Message]]]:
    """A good call of each RPC."""
    return {
        "CreateResponse": lambda ids: [pb.CreateResponseRequest(new_response=_goes_on(ids))],
        "StreamResponse": lambda ids: [pb.StreamResponseRequest(new_response=_goes_on(ids))],
        "WatchResponse": lambda ids: [pb.WatchResponseRequest(response_id=ids["response"])],
        "GetResponse": lambda ids: [pb.GetResponseRequest(response_id=ids["response"])],
        "DeleteResponse": lambda ids: [pb.DeleteResponseRequest(response_id=ids["response"])],
        "CancelResponse": lambda ids: [pb.CancelResponseRequest(response_id=ids["response"])],
        "ListInputItems": lambda ids: [pb.ListInputItemsRequest(response_id=ids["response"])],
        "CountInputTokens": lambda ids: [pb.CountInputTokensRequest(new_response=_goes_on(ids))],
        "PrepareResponse": lambda ids: [pb.PrepareResponseRequest(new_response=_goes_on(ids))],
        "CompactResponse": lambda ids: [
            pb.CompactResponseRequest(previous_response_id=ids["response"])
        ],
    }


def _goes_on(ids: Ids) -> response_pb2.NewResponse:
    """Not stored: the test asks very often, and compares answers, which a job would race."""
    return asked("x", previous_response_id=ids["response"], store=False)
