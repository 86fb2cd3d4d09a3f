"""Calls of operators reach every replica, and their answers are one."""

import asyncio
import socket
import time

import grpc.aio
import pytest
from corral.inference.v1 import engine_service_pb2 as pb
from corral.inference.v1.inference_service_pb2 import ListModelsRequest
from corral.inference.v1.model_pb2 import Model

from svc_kit.errors import Draining, ModelNotFound, SnapshotNotFound, StateNotFound
from svc_kit.errors.status import from_rpc_error
from svc_kit.network import parse_address
from svc_kit.rpc.client import open_channel
from svc_kit.rpc.replica_fan_out import READ_TIMEOUT_S, FanOut
from tests.support.processes import PATIENCE_S
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


async def test_lists_are_sorted_as_those_of_one_replica() -> None:
    async with run_replicas(2) as replicas:
        for replica, age in zip(replicas.replicas, (1, 2), strict=True):
            replica.age_s = age
        listed = await replicas.engine.ListRequests(pb.ListRequestsRequest())

        assert [each.request_id for each in listed.requests] == ["b0", "b1", "a0", "a1"]


async def test_models_of_any_replica_are_listed_with_how_many_have_them() -> None:
    """In the best of their states, and with what other files have their name."""
    async with run_replicas(3) as replicas:
        for replica, models in zip(
            replicas.replicas,
            (
                [Model(name="both", digest="1", state=Model.STATE_FAILED), Model(name="z")],
                [Model(name="a"), Model(name="both", digest="2", state=Model.STATE_READY)],
                [Model(name="both", digest="3"), Model(name="z", aliases=["y", "x"])],
            ),
            strict=True,
        ):
            replica.models = models
        listed = (await replicas.stub.ListModels(ListModelsRequest())).models

        assert [(each.name, each.replicas.num_having) for each in listed] == [
            *(("a", 1), ("both", 3), ("z", 2))
        ]
        assert {each.replicas.num_asked for each in listed} == {3}
        assert [each.aliases for each in listed] == [[], [], ["x", "y"]]
        assert (listed[1].state, listed[1].digest) == (Model.STATE_READY, "2")
        assert [each.replicas.other_digests for each in listed] == [[], ["1", "3"], []]


async def test_models_are_listed_of_the_replicas_that_answer() -> None:
    async with run_replicas(2) as replicas:
        for replica in replicas.replicas:
            replica.models = [Model(name="m")]
        await replicas.servers[0].drain(0)
        (listed,) = (await replicas.stub.ListModels(ListModelsRequest())).models

        assert (listed.replicas.num_having, listed.replicas.num_asked) == (1, 1)


async def test_a_list_waits_only_once_for_a_replica_that_hangs() -> None:
    """It is asked again each time, so that what it has is listed as soon as it answers."""
    async with run_replicas(2) as replicas:
        well, hanging = replicas.replicas
        well.models, hanging.models = [Model(name="a")], [Model(name="b")]
        hanging.may_reply = asyncio.Event()

        async def list_names() -> list[str]:
            listed = await replicas.stub.ListModels(ListModelsRequest())
            return [each.name for each in listed.models]

        assert await list_names() == ["a"]
        durations = []
        for _ in range(5):
            start = time.monotonic()
            assert await list_names() == ["a"]
            durations.append(time.monotonic() - start)
        assert min(durations) < READ_TIMEOUT_S / 2
        hanging.may_reply.set()
        async with asyncio.timeout(PATIENCE_S):
            while await list_names() != ["a", "b"]:
                pass


async def test_a_replica_that_hung_is_waited_for_if_no_other_one_answers() -> None:
    async with run_replicas(2) as replicas:
        well, hanging = replicas.replicas
        hanging.may_reply, hanging.models = asyncio.Event(), [Model(name="b")]
        await replicas.stub.ListModels(ListModelsRequest())
        well.refuses = Draining()
        listing = asyncio.ensure_future(replicas.stub.ListModels(ListModelsRequest()))
        await asyncio.wait([listing], timeout=0.5)
        hanging.may_reply.set()

        assert [each.name for each in (await listing).models] == ["b"]


async def test_who_lists_models_learns_no_addresses() -> None:
    """It may be another than an operator."""
    async with run_replicas(2) as replicas:
        for replica in replicas.replicas:
            replica.refuses = Draining()
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await replicas.stub.ListModels(ListModelsRequest())

        assert from_rpc_error(failed.value).message == Draining().message


async def test_a_session_of_several_replicas_is_one() -> None:
    """With the turns of all, in the order of their ends, and the last end; the record is complete
    since the last start of a replica."""
    async with run_replicas(2) as replicas:
        for replica, end_s in zip(replicas.replicas, (9, 2), strict=True):
            replica.age_s = end_s
        listed = await replicas.engine.ListSessions(pb.ListSessionsRequest(page_size=1))
        first, second = replicas.addresses
        both = listed.sessions[0]

        assert [each.session_id for each in listed.sessions] == ["both", "a", "b"]
        assert (both.num_turns, both.end_time.seconds, listed.record_time.seconds) == (2, 9, 9)
        assert [(each.request_id, each.replica) for each in both.turns] == [
            ("b", second),
            ("a", first),
        ]


async def test_loads_are_summed_and_shown_by_replica() -> None:
    async with run_replicas(2) as replicas:
        reply = await replicas.engine.GetLoad(pb.GetLoadRequest())
        load = reply.load

        assert (load.num_slots, load.num_running, load.draining) == (4, 2, True)
        assert [(each.num_requests, each.oldest.seconds) for each in load.queues] == [(2, 3)]
        assert [(each.model, each.num_slots) for each in load.models] == [("m", 4)]
        assert load.embedding.num_inputs == 8
        assert [(each.num_rows, each.duration.seconds) for each in load.step_times] == [(1, 2)]
        assert [([*each.counts], each.sum.seconds) for each in load.step_histograms] == [
            ([2, 4], 6)
        ]
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


async def test_an_abort_fails_if_a_request_may_be_at_a_replica_that_is_away() -> None:
    """It names the replica; what was found is aborted."""
    async with run_replicas(2) as replicas:
        replicas.replicas[1].operators_get = Draining()
        found = await replicas.engine.Abort(pb.AbortRequest(request_ids=["a0"]))
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await replicas.engine.Abort(pb.AbortRequest(request_ids=["a0", "b0"]))

        assert [each.kind for each in found.outcomes] == [ABORTED]
        assert from_rpc_error(failed.value).message.startswith(f"{replicas.addresses[1]}: ")


async def test_a_snapshot_is_not_missing_while_a_replica_is_away() -> None:
    async with run_replicas(2) as replicas:
        missing, away = SnapshotNotFound(snapshot="snap_1"), Draining()
        for replica, error in zip(replicas.replicas, (missing, away), strict=True):
            replica.operators_get = error
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await replicas.engine.RestoreSnapshot(pb.RestoreSnapshotRequest(snapshot_id="snap_1"))

        assert isinstance(from_rpc_error(failed.value), Draining)


async def test_a_snapshot_of_all_replicas_is_restored_as_one() -> None:
    """Its tokens come once: replicas may share the folder."""
    async with run_replicas(2) as replicas:
        request = pb.RestoreSnapshotRequest(snapshot_id="snap_1")
        restored = await replicas.engine.RestoreSnapshot(request)

        assert [*restored.prompt_token_ids] == [1, 2]


@pytest.mark.parametrize("number", range(2))
async def test_snapshots_are_saved_and_restored_where_they_are(number: int) -> None:
    """The other replica has them not, and says so."""
    async with run_replicas(2) as replicas:
        engine, lacking = replicas.engine, replicas.replicas[1 - number]
        lacking.operators_get = StateNotFound(request="req_1", index=0)
        saved = await engine.SaveSnapshot(pb.SaveSnapshotRequest(request_id="req_1"))
        lacking.operators_get = SnapshotNotFound(snapshot=saved.snapshot.id)
        restored = await engine.RestoreSnapshot(
            pb.RestoreSnapshotRequest(snapshot_id=saved.snapshot.id)
        )

        assert saved.snapshot.id == f"snap_{replicas.replicas[number].name}"
        assert [*restored.prompt_token_ids] == [1, 2]


async def test_a_snapshot_that_no_replica_has_is_not_found() -> None:
    async with run_replicas(2) as replicas:
        missing = SnapshotNotFound(snapshot="snap_1")
        for replica in replicas.replicas:
            replica.operators_get = missing
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await replicas.engine.RestoreSnapshot(pb.RestoreSnapshotRequest(snapshot_id="snap_1"))

        assert isinstance(from_rpc_error(failed.value), SnapshotNotFound)


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


async def test_channels_to_replicas_that_are_gone_are_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As the addresses of a name change with every restart of a pod."""
    async with run_replicas(2) as replicas:
        port = parse_address(replicas.addresses[0]).port
        resolved, opened = ["127.0.0.1"], []

        async def resolve(*_: object) -> list[tuple[object, ...]]:
            return [(0, 0, 0, "", (host, 0)) for host in resolved]

        def open_plain(address: str) -> grpc.aio.Channel:
            opened.append(open_channel(address))
            return opened[-1]

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
        fan_out = FanOut(f"dns:///name:{port}", open_plain)
        await fan_out.call(pb.GetLoadRequest(), (), 5)
        resolved[:] = ["localhost"]
        await fan_out.call(pb.GetLoadRequest(), (), 5)
        states = [each.get_state() for each in opened]
        await fan_out.close()

        assert states == [grpc.ChannelConnectivity.SHUTDOWN, grpc.ChannelConnectivity.READY]


async def test_a_name_that_cannot_be_resolved_again_keeps_its_replicas(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in gRPC's channels; one that never could be resolved has none."""
    async with run_replicas(1) as replicas:
        port = parse_address(replicas.addresses[0]).port
        resolved = list[tuple[object, ...]]()

        async def resolve(*_: object) -> list[tuple[object, ...]]:
            if not resolved:
                raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
            return resolved

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
        fan_out = FanOut(f"dns:///name:{port}", open_channel)
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await fan_out.call(pb.GetLoadRequest(), (), 5)
        resolved.append((0, 0, 0, "", ("127.0.0.1", 0)))
        first = await fan_out.call(pb.GetLoadRequest(), (), 5)
        resolved.clear()
        second = await fan_out.call(pb.GetLoadRequest(), (), 5)
        await fan_out.close()

        assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
        assert second == first
