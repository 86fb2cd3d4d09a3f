"""Calls of operators reach every replica, and their answers are one."""

import grpc.aio
import pytest
from corral.inference.v1 import engine_service_pb2 as pb

from svc_kit.errors import Draining, ModelNotFound
from svc_kit.errors.status import from_rpc_error
from tests.support.replicas import run_replicas

ABORTED, NOT_RUNNING = pb.AbortOutcome.KIND_ABORTED, pb.AbortOutcome.KIND_NOT_RUNNING


async def test_lists_have_the_items_of_all_pages_of_all_replicas() -> None:
    async with run_replicas(2) as replicas:
        listed = await replicas.engine.ListRequests(pb.ListRequestsRequest(page_size=1))
        first, second = replicas.addresses

        assert [(each.request_id, each.replica) for each in listed.requests] == [
            *(("a0", first), ("a1", first), ("b0", second), ("b1", second))
        ]
        assert not listed.next_page_token


async def test_loads_are_summed_and_shown_by_replica() -> None:
    async with run_replicas(2) as replicas:
        reply = await replicas.engine.GetLoad(pb.GetLoadRequest())
        load = reply.load

        assert (load.num_slots, load.num_running, load.draining) == (4, 2, True)
        assert [(each.num_requests, each.oldest.seconds) for each in load.queues] == [(2, 3)]
        assert [(each.model, each.num_slots) for each in load.models] == [("m", 4)]
        assert load.embedding.num_inputs == 8
        assert [each.replica for each in reply.replicas] == replicas.addresses
        assert [each.load.num_slots for each in reply.replicas] == [2, 2]


async def test_an_abort_finds_the_replica_of_a_request() -> None:
    async with run_replicas(2) as replicas:
        request = pb.AbortRequest(request_ids=["b0", "a1", "c0"])
        outcomes = (await replicas.engine.Abort(request)).outcomes

        assert {each.request_id: each.kind for each in outcomes} == {
            "b0": ABORTED,
            "a1": ABORTED,
            "c0": NOT_RUNNING,
        }


async def test_a_replica_that_is_away_is_named_in_the_load_and_missing_in_lists() -> None:
    async with run_replicas(2) as replicas:
        await replicas.servers[0].drain(0)
        reply = await replicas.engine.GetLoad(pb.GetLoadRequest())
        listed = await replicas.engine.ListRequests(pb.ListRequestsRequest())
        away, there = (each.problem for each in sorted(reply.replicas, key=lambda x: not x.problem))

        assert (bool(away), there) == (True, "")
        assert reply.load.num_slots == 2
        assert {each.replica for each in listed.requests} == {replicas.addresses[1]}


async def test_changes_are_made_at_all_replicas() -> None:
    async with run_replicas(2) as replicas:
        reply = await replicas.engine.LoadModel(pb.LoadModelRequest(model="m"))
        dropped = await replicas.engine.DropSnapshots(pb.DropSnapshotsRequest())

        assert [replica.loaded for replica in replicas.replicas] == [["m"], ["m"]]
        assert (reply.model.name, reply.model.size_bytes) == ("m", 5)
        assert dropped.num_dropped == 4


@pytest.mark.parametrize("error", [ModelNotFound(model="m"), Draining()])
async def test_a_change_that_fails_at_one_replica_fails_and_names_it(
    error: ModelNotFound | Draining,
) -> None:
    async with run_replicas(2) as replicas:
        replicas.replicas[1].operators_get = error
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await replicas.engine.LoadModel(pb.LoadModelRequest(model="m"))
        raised = from_rpc_error(failed.value)

        assert type(raised) is type(error)
        assert raised.message == f"{replicas.addresses[1]}: {error.message}"
        assert replicas.replicas[0].loaded == ["m"]


async def test_nothing_is_listed_when_no_replica_answers() -> None:
    async with run_replicas(2) as replicas:
        for replica in replicas.replicas:
            replica.operators_get = Draining()
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await replicas.engine.ListRequests(pb.ListRequestsRequest())

        assert isinstance(from_rpc_error(failed.value), Draining)


async def test_the_replicas_of_a_name_are_those_that_it_resolves_to() -> None:
    async with run_replicas(1, by_name=True) as replicas:
        listed = await replicas.engine.ListRequests(pb.ListRequestsRequest())

        assert {each.replica for each in listed.requests} == {replicas.addresses[0]}
