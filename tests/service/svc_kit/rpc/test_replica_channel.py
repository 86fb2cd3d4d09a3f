"""Channels to several replicas: where calls go, and how they go on elsewhere."""

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import grpc.aio
import pytest
from corral.inference.v1 import inference_service_pb2 as pb
from corral.inference.v1.engine_service_pb2 import ListRequestsRequest
from corral.inference.v1.model_pb2 import Model

from svc_kit.auth.authenticator import Authenticator
from svc_kit.errors import (
    AdapterNotFound,
    DomainError,
    Draining,
    EngineRestarting,
    FeatureUnsupported,
    GenerationLost,
    InternalError,
    ModelNotFound,
    QueueFull,
    ReplicaFull,
    SnapshotNotFound,
    UpstreamUnavailable,
)
from svc_kit.errors.status import from_rpc_error
from svc_kit.network import Address
from svc_kit.rpc.movable_stream import WHOLE_KEY
from svc_kit.rpc.orca import ORCA
from svc_kit.rpc.replica_channel import open_replica_channel
from tests.support.dns_server import NameServer, run_name_server
from tests.support.replicas import NUM_TOKENS, SEED, Replica, Replicas, run_replicas, serve_replica
from tests.support.rpc_servers import stub_on

PROMPTS = [f"prompt {number}" for number in range(24)]
WHOLE = "".join(f"{number} " for number in range(NUM_TOKENS))


async def homes(replicas: Replicas) -> dict[str, int]:
    return {text: await replicas.home_of(text) for text in PROMPTS}


def text_of(messages: list[pb.GenerateResponse]) -> str:
    return "".join(message.delta.text for message in messages)


async def read_all(call: Any) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass


NUM_DRAINS, NUM_CALLERS = 5, 16
NUM_UNARY = 40


async def generate_until_refused(
    replicas: Replicas,
    text: str = "t",
    lost: Replica | None = None,
    *metadata: tuple[str, str],
) -> None:
    """Repeat a generation, which `lost` does not end, until it fails."""
    while True:
        if lost is not None:
            lost.fails_with, lost.fails_at = Draining(), 3
        await replicas.generate(pb.GenerateRequest(text=text), *metadata)


async def prompt_at(replicas: Replicas, number: int) -> str:
    """A prompt whose home is a replica."""
    found = await homes(replicas)
    for replica in replicas.replicas:
        replica.requests.clear()
    return next(text for text, home in found.items() if home == number)


async def test_prompts_keep_their_homes_which_are_all_replicas() -> None:
    async with run_replicas(3) as replicas:
        first = await homes(replicas)

        assert first == await homes(replicas)
        assert set(first.values()) == {0, 1, 2}


async def test_only_the_prompts_of_a_replica_that_does_not_serve_move() -> None:
    async with run_replicas(3) as replicas:
        before = await homes(replicas)
        replicas.servers[1].set_serving(False)
        while 1 in (moved := await homes(replicas)).values():
            pass

        assert all(moved[text] == home for text, home in before.items() if home != 1)


async def test_other_calls_are_spread_by_the_reported_load() -> None:
    async with run_replicas(2) as replicas:
        busy, idle = replicas.replicas
        busy.load, idle.load = 1.0, 0.1
        # Weights apply from the reports on, which arrive each second.
        async with asyncio.timeout(20):
            while not idle.num_unary > 5 * busy.num_unary > 0:
                busy.num_unary = idle.num_unary = 0
                for _ in range(110):
                    await replicas.stub.Tokenize(pb.TokenizeRequest(text="t"), timeout=5)


async def test_a_replica_whose_calls_fail_is_left_out_for_a_while() -> None:
    async with run_replicas(3) as replicas:
        bad = replicas.replicas[1]
        bad.refuses_movable = InternalError(request_id="r")
        async with asyncio.timeout(30):
            while True:
                outcomes = [await outcome(replicas, text) for text in PROMPTS]
                if all(outcomes):
                    break

        assert not bad.requests


async def outcome(replicas: Replicas, text: str) -> bool:
    """Whether a generation succeeds."""
    try:
        return bool(await replicas.generate(pb.GenerateRequest(text=text)))
    except grpc.aio.AioRpcError:
        return False


async def test_what_a_full_home_refuses_is_answered_elsewhere() -> None:
    async with run_replicas(2) as replicas:
        text = await prompt_at(replicas, 0)
        replicas.replicas[0].refuses_movable = ReplicaFull(model="m")
        for _ in range(4):  # some reach the full one again, which then queues them
            assert text_of(await replicas.generate(pb.GenerateRequest(text=text))) == WHOLE

        assert replicas.replicas[1].requests
        assert replicas.num_moves("REPLICA_FULL", "restarted") == 4


async def test_moves_are_counted_by_reason_and_outcome() -> None:
    async with run_replicas(2) as replicas:
        replica = replicas.replicas[await replicas.home_of("t")]
        other = next(each for each in replicas.replicas if each is not replica)
        replica.fails_with, replica.fails_at = Draining(), 3
        await replicas.generate(pb.GenerateRequest(text="t"))
        other.refuses_resumed = replica.refuses_resumed = FeatureUnsupported(feature="f")
        with suppress(grpc.aio.AioRpcError):
            await generate_until_refused(replicas, lost=replica)

        resumed = replicas.num_moves("DRAINING", "resumed")
        assert resumed is not None
        assert resumed >= 2
        assert replicas.num_moves("DRAINING", "lost") == 1


async def test_no_generation_fails_while_its_home_drains() -> None:
    """gRPC cancels those that the home has received and not accepted, and they move."""
    has_drained, num_answers = asyncio.Event(), 0

    async def generate_until_it_has_drained(replicas: Replicas, text: str) -> None:
        nonlocal num_answers
        while not has_drained.is_set():
            assert text_of(await replicas.generate(pb.GenerateRequest(text=text))) == WHOLE
            num_answers += 1

    for _ in range(NUM_DRAINS):
        has_drained.clear()
        async with run_replicas(2) as replicas:
            text = await prompt_at(replicas, 0)
            async with asyncio.TaskGroup() as calls:
                for _ in range(NUM_CALLERS):
                    calls.create_task(generate_until_it_has_drained(replicas, text))
                wanted = num_answers + 10 * NUM_CALLERS
                while num_answers < wanted:
                    await replicas.generate(pb.GenerateRequest(text=text))
                await replicas.servers[0].drain(5)
                has_drained.set()


@pytest.mark.parametrize("text", ["t", "t" * 1024 * 1024], ids=["short", "long"])
@pytest.mark.parametrize("outlives_engines", [True, False])
async def test_calls_without_a_stream_are_answered_elsewhere_when_their_replica_is_lost(
    text: str, outlives_engines: bool
) -> None:
    """All that it had; gRPC would repeat ten, and none of more than 256 KiB."""
    async with run_replicas(2, outlives_engines=outlives_engines) as replicas:
        lost, other = replicas.replicas
        lost.may_reply, other.may_reply = asyncio.Event(), asyncio.Event()
        async with asyncio.TaskGroup() as calls:
            while lost.num_unary < NUM_UNARY:
                call = replicas.stub.Tokenize(pb.TokenizeRequest(text=text), timeout=60)
                calls.create_task(tokens_of(call))
                await replicas.engine.ListRequests(ListRequestsRequest())  # while it is sent
            await replicas.servers[0].drain(0)
            other.may_reply.set()

        assert other.num_unary >= NUM_UNARY


async def test_a_call_without_a_stream_that_an_engine_died_of_is_counted_and_not_repeated() -> None:
    async with run_replicas(2, outlives_engines=False) as replicas:
        for replica in replicas.replicas:
            replica.refuses = EngineRestarting(phase="running")
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await replicas.stub.Tokenize(pb.TokenizeRequest(text="t"), timeout=20)

        assert from_rpc_error(failed.value) == EngineRestarting(phase="running")
        assert sum(replica.num_unary for replica in replicas.replicas) == 1


async def tokens_of(call: Any) -> list[int]:
    return [*(await call).token_ids]


async def test_a_refusal_that_no_other_replica_cures_is_not_repeated() -> None:
    async with run_replicas(2) as replicas:
        full = QueueFull(bound="requests", depth=2, limit=1)
        for replica in replicas.replicas:
            replica.refuses_movable = full
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await replicas.generate(pb.GenerateRequest(text="t"))

        assert isinstance(from_rpc_error(failed.value), QueueFull)
        assert not any(replica.requests for replica in replicas.replicas)


@pytest.mark.parametrize("loss", [Draining(), EngineRestarting(phase="running")])
@pytest.mark.parametrize("tokens", [0, 1, NUM_TOKENS - 1])
async def test_an_answer_goes_on_behind_its_tokens(
    tokens: int, loss: Draining | EngineRestarting
) -> None:
    async with run_replicas(2) as replicas:
        text = await prompt_at(replicas, 0)
        replicas.replicas[0].fails_with, replicas.replicas[0].fails_at = loss, tokens
        request = pb.GenerateRequest(text=text)
        messages = await replicas.generate(request)
        kinds = [message.WhichOneof("event") for message in messages]
        first, resumed = (each for replica in replicas.replicas for each in replica.requests)

        assert text_of(messages) == WHOLE
        assert kinds == ["accepted", "started", *["delta"] * NUM_TOKENS, "finished", "done"]
        assert [message.sequence_number for message in messages] == list(range(len(messages)))
        assert not any(message.delta.token_ids for message in messages)
        assert not first.options.resume
        assert [[*each.output_token_ids] for each in resumed.options.resume] == (
            [[*range(tokens)]] if tokens else []
        )
        assert resumed.options.sampling.seed == SEED
        assert messages[-1].done.usage.cached_tokens == 0
        assert request == pb.GenerateRequest(text=text)


async def test_token_ids_that_the_client_has_asked_for_arrive_once() -> None:
    async with run_replicas(2) as replicas:
        text = await prompt_at(replicas, 0)
        replicas.replicas[0].fails_with, replicas.replicas[0].fails_at = Draining(), 3
        request = pb.GenerateRequest(text=text, options={"output": {"token_ids": True}})
        messages = await replicas.generate(request)

        assert [id for message in messages for id in message.delta.token_ids] == [*range(8)]


async def test_the_services_that_count_deaths_of_engines_hear_of_them() -> None:
    async with run_replicas(2, outlives_engines=False) as replicas:
        text = await prompt_at(replicas, 0)
        died = EngineRestarting(phase="running")
        replicas.replicas[0].fails_with, replicas.replicas[0].fails_at = died, 3
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await replicas.generate(pb.GenerateRequest(text=text))
        assert isinstance(from_rpc_error(failed.value), EngineRestarting)

        # An engine that restarts has not seen the call.
        text = await prompt_at(replicas, 0)
        replicas.replicas[0].fails_with = EngineRestarting()
        assert text_of(await replicas.generate(pb.GenerateRequest(text=text))) == WHOLE


async def test_a_call_that_two_engines_died_of_meets_no_third() -> None:
    async with run_replicas(3) as replicas:
        text = await prompt_at(replicas, 0)
        for replica in replicas.replicas:
            replica.fails_with, replica.fails_at = EngineRestarting(phase="running"), 3
            replica.keeps_failing = True
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await replicas.generate(pb.GenerateRequest(text=text))

        assert isinstance(from_rpc_error(failed.value), EngineRestarting)
        assert sum(len(replica.requests) for replica in replicas.replicas) == 2


@pytest.mark.parametrize(
    "error",
    [InternalError(request_id="r"), QueueFull(bound="requests", depth=2, limit=1)],
    ids=["internal", "full"],
)
async def test_other_errors_end_an_answer(error: DomainError) -> None:
    async with run_replicas(2) as replicas:
        text = await prompt_at(replicas, 0)
        replicas.replicas[0].fails_with, replicas.replicas[0].fails_at = error, 3
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await replicas.generate(pb.GenerateRequest(text=text))

        assert type(from_rpc_error(failed.value)) is type(error)
        assert sum(len(replica.requests) for replica in replicas.replicas) == 1


async def test_an_answer_that_cannot_be_resumed_ends_with_the_reason() -> None:
    async with run_replicas(2) as replicas:
        text = await prompt_at(replicas, 0)
        replicas.replicas[0].fails_with, replicas.replicas[0].fails_at = Draining(), 3
        resume = [{"index": 0, "snapshot_id": "s"}]
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await replicas.generate(pb.GenerateRequest(text=text, options={"resume": resume}))
        error = from_rpc_error(failed.value)

        assert isinstance(error, GenerationLost)
        assert "snapshot" in error.message
        assert sum(len(replica.requests) for replica in replicas.replicas) == 1


async def test_the_services_hear_of_the_death_of_an_engine_that_nothing_survives() -> None:
    """And not why the answer cannot go on, since they count deaths."""
    async with run_replicas(2, outlives_engines=False) as replicas:
        text = await prompt_at(replicas, 0)
        died = EngineRestarting(phase="running")
        replicas.replicas[0].fails_with, replicas.replicas[0].fails_at = died, 3
        resume = [{"index": 0, "snapshot_id": "s"}]
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await replicas.generate(pb.GenerateRequest(text=text, options={"resume": resume}))

        assert from_rpc_error(failed.value) == died


async def test_a_model_with_other_weights_does_not_go_on() -> None:
    async with run_replicas(2) as replicas:
        text = await prompt_at(replicas, 0)
        replicas.replicas[0].digest, replicas.replicas[1].digest = "one", "other"
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await generate_until_refused(replicas, text, replicas.replicas[0])
        error = from_rpc_error(failed.value)

        assert isinstance(error, GenerationLost)
        assert "other weights" in error.message


async def test_the_reason_of_a_replica_that_refuses_to_go_on_is_told() -> None:
    refusal = FeatureUnsupported(feature="resume with mirostat")
    async with run_replicas(2) as replicas:
        text = await prompt_at(replicas, 0)
        replicas.replicas[1].refuses_resumed = refusal
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await generate_until_refused(replicas, text, replicas.replicas[0])
        error = from_rpc_error(failed.value)

        assert isinstance(error, GenerationLost)
        assert "resume with mirostat" in error.message


@pytest.mark.parametrize("number", range(3))
async def test_a_model_that_only_one_replica_has_is_found(number: int) -> None:
    """By each call that names it, and again by an answer that is lost."""
    async with run_replicas(3) as replicas:
        having = replicas.replicas[number]
        having.models = [Model(name="m")]
        for text in PROMPTS:
            having.fails_with, having.fails_at = Draining(), 3
            request = pb.GenerateRequest(text=text, model="m")
            assert text_of(await replicas.generate(request)) == WHOLE
            await replicas.stub.Tokenize(pb.TokenizeRequest(text=text, model="m"), timeout=20)

        assert having.num_unary == len(PROMPTS)
        assert (await replicas.stub.GetModel(pb.GetModelRequest(model="m"))).model.name == "m"


async def test_a_model_is_used_where_it_is_ready() -> None:
    async with run_replicas(3) as replicas:
        home, slow, ready = replicas.replicas
        home.models = slow.models = ready.models = [Model(name="m")]
        texts = iter(PROMPTS)
        while not home.requests:
            request = pb.GenerateRequest(text=next(texts), model="m")
            await replicas.generate(request)
        home.models = []
        slow.models = [Model(name="m", state=Model.STATE_AVAILABLE)]
        ready.models = [Model(name="m", state=Model.STATE_READY)]
        num_slow = len(slow.requests)
        for _ in range(8):
            await replicas.generate(request)

        assert (len(home.requests), len(slow.requests)) == (1, num_slow)


async def test_a_model_that_no_replica_has_is_not_found() -> None:
    async with run_replicas(2) as replicas:
        for call in (
            replicas.generate(pb.GenerateRequest(text="t", model="m")),
            replicas.stub.Tokenize(pb.TokenizeRequest(text="t", model="m"), timeout=20),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await call
            assert isinstance(from_rpc_error(failed.value), ModelNotFound)


async def test_a_model_is_not_missing_while_the_only_replica_that_has_it_is_away() -> None:
    """Callers may ask again for what is UNAVAILABLE, and not for what is NOT_FOUND."""
    async with run_replicas(2) as replicas:
        replicas.replicas[0].models = [Model(name="m")]
        await replicas.servers[0].drain(0)
        for call in (
            replicas.generate(pb.GenerateRequest(text="t", model="m")),
            replicas.stub.Tokenize(pb.TokenizeRequest(text="t", model="m"), timeout=20),
            replicas.stub.GetModel(pb.GetModelRequest(model="m"), timeout=20),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await call
            assert isinstance(from_rpc_error(failed.value), UpstreamUnavailable)


async def test_a_model_is_not_missing_while_the_only_replica_that_has_it_is_silent() -> None:
    async with run_replicas(2) as replicas:
        having = replicas.replicas[0]
        having.models, having.may_reply = [Model(name="m")], asyncio.Event()
        calls = (error_of(replicas, text, model="m") for text in PROMPTS)
        outcomes = await asyncio.gather(*calls)

        assert {type(each) for each in outcomes} == {type(None), UpstreamUnavailable}


async def error_of(replicas: Replicas, text: str, **fields: Any) -> DomainError | None:
    """With which a generation fails."""
    try:
        messages = await replicas.generate(pb.GenerateRequest(text=text, **fields))
    except grpc.aio.AioRpcError as error:
        return from_rpc_error(error)
    assert text_of(messages) == WHOLE
    assert [message.sequence_number for message in messages] == list(range(len(messages)))
    return None


WITH_ADAPTER: dict[str, Any] = {"options": {"adapters": [{"adapter": "a"}]}}
FROM_SNAPSHOT: dict[str, Any] = {"options": {"resume": [{"index": 0, "snapshot_id": "s"}]}}


@pytest.mark.parametrize("number", range(3))
async def test_an_adapter_that_only_one_replica_has_is_found(number: int) -> None:
    async with run_replicas(3) as replicas:
        replicas.replicas[number].adapters = ["a"]
        errors = [await error_of(replicas, text, **WITH_ADAPTER) for text in PROMPTS]
        num_answers = [len(replica.requests) for replica in replicas.replicas]

        assert errors == [None] * len(PROMPTS)
        assert num_answers[number] == sum(num_answers) == len(PROMPTS)


async def test_an_answer_with_an_adapter_goes_on_where_that_is() -> None:
    async with run_replicas(3) as replicas:
        first, second, third = replicas.replicas
        first.adapters = third.adapters = ["a"]
        for text in PROMPTS:
            first.fails_with, first.fails_at = Draining(), 3
            assert await error_of(replicas, text, **WITH_ADAPTER) is None

        assert not second.requests
        assert any(each.options.resume for each in (*first.requests, *third.requests))


@pytest.mark.parametrize("metadata", [(), ((WHOLE_KEY, "1"),)], ids=["shown", "whole"])
@pytest.mark.parametrize("number", range(3))
async def test_a_snapshot_that_only_one_replica_has_is_found(
    number: int, metadata: tuple[tuple[str, str], ...]
) -> None:
    """Though others say that they lack it when they have accepted the request."""
    async with run_replicas(3) as replicas:
        for index, replica in enumerate(replicas.replicas):
            replica.snapshots = ["s"] if index == number else []
        for text in PROMPTS:
            request = pb.GenerateRequest(text=text, **FROM_SNAPSHOT)
            messages = await replicas.generate(request, *metadata)
            kinds = [message.WhichOneof("event") for message in messages]

            assert kinds == ["accepted", "started", *["delta"] * NUM_TOKENS, "finished", "done"]
            assert text_of(messages) == WHOLE
            assert [message.sequence_number for message in messages] == list(range(len(messages)))


@pytest.mark.parametrize(
    ("fields", "error"),
    [(WITH_ADAPTER, AdapterNotFound), (FROM_SNAPSHOT, SnapshotNotFound)],
    ids=["adapter", "snapshot"],
)
async def test_what_is_at_no_replica_is_not_found_unless_one_is_away(
    fields: dict[str, Any], error: type[DomainError]
) -> None:
    async with run_replicas(3) as replicas:
        for replica in replicas.replicas:
            replica.snapshots = []
        assert type(await error_of(replicas, "t", **fields)) is error
        await replicas.servers[0].drain(0)

        assert type(await error_of(replicas, "t", **fields)) is UpstreamUnavailable


WHOLE_ANSWER = (WHOLE_KEY, "1")
CANNOT_GO_ON: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "no ids": ({"knows_ids": False}, {"knows_ids": False}),
    "refused": ({}, {"refuses_resumed": FeatureUnsupported(feature="resume with mirostat")}),
    "other weights": ({"digest": "one"}, {"digest": "other"}),
}
"""What the home of an answer is, and the other replica, so that it does not go on there."""


@pytest.mark.parametrize("case", ["goes on", *CANNOT_GO_ON])
async def test_an_answer_that_is_not_shown_is_whole_when_its_replica_is_lost(case: str) -> None:
    """It goes on, or begins again where it cannot, and has no message twice."""
    async with run_replicas(2) as replicas:
        text = await prompt_at(replicas, 0)
        home, other = replicas.replicas
        vars(home).update(CANNOT_GO_ON.get(case, ({}, {}))[0])
        vars(other).update(CANNOT_GO_ON.get(case, ({}, {}))[1])
        request, went_on_at_home = pb.GenerateRequest(text=text), True
        while went_on_at_home:
            home.requests.clear()
            home.fails_with, home.fails_at = Draining(), 3
            messages = await replicas.generate(request, WHOLE_ANSWER)
            kinds = [message.WhichOneof("event") for message in messages]
            went_on_at_home = any(each.options.resume for each in home.requests)

            assert kinds == ["accepted", "started", *["delta"] * NUM_TOKENS, "finished", "done"]
            assert text_of(messages) == WHOLE
            assert [message.sequence_number for message in messages] == list(range(len(messages)))
        begun = [each for each in (*home.requests, *other.requests) if not each.options.resume]

        assert len(begun) == (1 if case == "goes on" else 2)
        assert request == pb.GenerateRequest(text=text)


async def test_nothing_of_an_answer_that_is_not_shown_comes_before_its_end() -> None:
    async with run_replicas(2) as replicas:
        for replica in replicas.replicas:
            replica.fails_with, replica.fails_at = InternalError(request_id="r"), NUM_TOKENS - 1
        request = pb.GenerateRequest(text="t")
        call = replicas.stub.Generate(request, timeout=20, metadata=(WHOLE_ANSWER,))
        with pytest.raises(grpc.aio.AioRpcError):
            await call.read()


async def test_an_answer_from_a_snapshot_does_not_begin_again() -> None:
    """Which no other replica has."""
    async with run_replicas(2) as replicas:
        text = await prompt_at(replicas, 0)
        replicas.replicas[0].fails_with, replicas.replicas[0].fails_at = Draining(), 3
        resume = [{"index": 0, "snapshot_id": "s"}]
        request = pb.GenerateRequest(text=text, options={"resume": resume})
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await replicas.generate(request, WHOLE_ANSWER)

        assert isinstance(from_rpc_error(failed.value), GenerationLost)
        assert sum(len(replica.requests) for replica in replicas.replicas) == 1


async def test_what_begins_again_meets_no_third_engine_when_two_have_died() -> None:
    async with run_replicas(3) as replicas:
        text = await prompt_at(replicas, 0)
        for replica in replicas.replicas:
            replica.fails_with, replica.fails_at = EngineRestarting(phase="running"), 3
            replica.keeps_failing, replica.knows_ids = True, False
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await replicas.generate(pb.GenerateRequest(text=text), WHOLE_ANSWER)

        assert isinstance(from_rpc_error(failed.value), EngineRestarting)
        assert sum(len(replica.requests) for replica in replicas.replicas) == 2


async def test_the_reason_why_an_answer_cannot_begin_again_is_told() -> None:
    """By the replica that refuses it also from its beginning."""
    async with run_replicas(2) as replicas:
        text = await prompt_at(replicas, 0)
        home, other = replicas.replicas
        home.knows_ids, other.refuses = False, FeatureUnsupported(feature="f")
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await generate_until_refused(replicas, text, home, WHOLE_ANSWER)
        error = from_rpc_error(failed.value)

        assert isinstance(error, GenerationLost)
        assert "another one refuses it" in error.message


async def test_a_cancelled_answer_goes_on_nowhere() -> None:
    async with run_replicas(2) as replicas:
        call = replicas.stub.Generate(pb.GenerateRequest(text="t"), timeout=20)
        await call.read()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await read_all(call)

        assert sum(len(replica.requests) for replica in replicas.replicas) == 1


async def test_an_answer_lives_through_two_losses_of_three_replicas() -> None:
    async with run_replicas(3) as replicas:
        for replica in replicas.replicas[:2]:
            replica.fails_with, replica.fails_at = Draining(), 4
        texts = [text_of(await replicas.generate(pb.GenerateRequest(text=t))) for t in PROMPTS]

        assert texts == [WHOLE] * len(PROMPTS)


async def test_without_a_replica_calls_are_refused_at_once() -> None:
    async with run_replicas(2) as replicas:
        for server in replicas.servers:
            server.set_serving(False)
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await generate_until_refused(replicas)

        assert isinstance(from_rpc_error(failed.value, "inference"), UpstreamUnavailable)


async def test_balancers_read_the_load_without_a_key() -> None:
    locked = Authenticator(keyless=())
    async with serve_replica(Replica(load=0.25), authenticator=locked) as server:
        async with grpc.aio.insecure_channel(str(server.address)) as channel:
            method: Any = channel.unary_stream(f"/{ORCA}/StreamCoreMetrics")
            report = await method(b"").read()
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub_on(channel).Tokenize(pb.TokenizeRequest(text="t"), timeout=5)

        assert report == b"1" + struct.pack("<d", 1.0) + b"I" + struct.pack("<d", 0.25)
        assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED


async def test_load_reports_are_bounded_since_they_need_no_key() -> None:
    """An address has 64 streams of them; one that ends makes room."""
    async with (
        serve_replica(Replica()) as server,
        grpc.aio.insecure_channel(str(server.address)) as channel,
    ):
        method: Any = channel.unary_stream(f"/{ORCA}/StreamCoreMetrics")
        calls = [method(b"") for _ in range(64)]
        assert all([await call.read() for call in calls])
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await method(b"").read()
        calls[0].cancel()
        report = None
        while report is None:
            with suppress(grpc.aio.AioRpcError):
                report = await method(b"").read()

    assert isinstance(from_rpc_error(refused.value), QueueFull)


@asynccontextmanager
async def run_named_replicas(server: NameServer, address: Address) -> AsyncIterator[Replicas]:
    """Two replicas with the same port at two addresses, which a name has."""
    replicas = [Replica(), Replica()]
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(serve_replica(replicas[0]))
        port = first.address.port
        listen = f"127.0.0.2:{port}"
        second = await stack.enter_async_context(serve_replica(replicas[1], listen=listen))
        server.addresses = ["127.0.0.1", "127.0.0.2"]
        target = f"dns://{address}/replicas.test:{port}"
        asks_often = ("grpc.dns_min_time_between_resolutions_ms", 10)
        channel = open_replica_channel(target, options=[asks_often], outlives_engines=True)
        yield Replicas(replicas, [first, second], await stack.enter_async_context(channel))


async def test_all_addresses_of_a_name_are_replicas() -> None:
    async with run_name_server() as names, run_named_replicas(*names) as replicas:
        assert set((await homes(replicas)).values()) == {0, 1}


async def test_a_name_that_cannot_be_resolved_again_keeps_its_replicas() -> None:
    """Also when one of them ends, for which the name is asked again."""
    async with run_name_server() as names, run_named_replicas(*names) as replicas:
        before = await homes(replicas)
        server, _ = names
        server.addresses = []
        num_questions = server.num_questions
        await replicas.servers[0].drain(0)
        while server.num_questions == num_questions:
            assert set((await homes(replicas)).values()) == {1}

        assert set(before.values()) == {0, 1}
        assert set((await homes(replicas)).values()) == {1}
