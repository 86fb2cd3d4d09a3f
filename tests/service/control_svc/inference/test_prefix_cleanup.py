"""What the inference service archives for stored objects: how they are named to it, and that
deleted ones are forgotten there."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from corral.control.v1 import conversation_service_pb2, thread_service_pb2
from corral.inference.v1 import engine_service_pb2 as pb
from corral.inference.v1 import engine_service_pb2_grpc as rpc
from prometheus_client import CollectorRegistry

from control_svc.inference.prefix_cleanup import KIND, MAX_POSTPONED, PrefixCleanupWorker
from control_svc.jobs.model import Claim
from svc_kit.auth.authenticator import Authenticator, ServiceToken
from svc_kit.errors import DomainError, EngineRestarting, ScopeMissing, Unavailable
from svc_kit.rpc.server import RpcServer, Service
from tests.support.control import Client, RunningControl, run_control, write_service_token
from tests.support.conversation_client import ConversationClient, make_message
from tests.support.operators import JobPb, Operator
from tests.support.response_client import ResponseClient, make_model_parts
from tests.support.scripted_turns import ScriptedTurns, text_script
from tests.support.threads import ThreadClient


@dataclass
class Engine(rpc.EngineServiceServicer):
    """Deletes the snapshots of objects, after a number of refusals."""

    refusals: list[DomainError] = field(default_factory=list)
    forgotten: asyncio.Queue[list[str]] = field(default_factory=asyncio.Queue)

    async def DropSnapshots(self, request: Any, context: Any) -> Any:
        """What went."""
        if self.refusals:
            raise self.refusals.pop()
        self.forgotten.put_nowait([*request.object_ids, *request.snapshot_ids])
        return pb.DropSnapshotsResponse()


@dataclass
class World:
    """A control service, the model that it asks, and the engine whose archive it cleans up."""

    running: RunningControl
    engine: Engine
    model: ScriptedTurns

    @property
    def client(self) -> Client:
        """A caller."""
        return self.running.client

    def names(self) -> list[str]:
        """What turns were archived for, in order."""
        return [request.keep_for for request in self.model.requests]


@asynccontextmanager
async def serving(engine: Engine, folder: Path) -> AsyncIterator[str]:
    """The engine, for those who have the service's token; its address."""
    token = ServiceToken.read(write_service_token(folder))
    service = Service(
        rpc.add_EngineServiceServicer_to_server, engine, "corral.inference.v1.EngineService"
    )
    server = RpcServer(
        [service],
        listen="127.0.0.1:0",
        authenticator=Authenticator(service_token=token),
        registry=CollectorRegistry(),
    )
    await server.start()
    try:
        yield str(server.address)
    finally:
        await server.drain(0)


@pytest.fixture
async def world(tmp_path: Path, database_url: str | None) -> AsyncIterator[World]:
    """A control service on each database; whenever somebody looks at the clock, a second passes."""
    engine, model = Engine(), ScriptedTurns(lambda _: text_script("Hello"))
    async with (
        serving(engine, tmp_path) as target,
        run_control(
            tmp_path,
            database_url,
            model=make_model_parts(model),
            inference_target=target,
            jobs={"poll_interval_s": 0.05},
            responses={"keep_s": 60},
        ) as running,
    ):
        running.clock.step_s = 1
        yield World(running, engine, model)


async def test_a_chain_of_responses_has_one_name(world: World) -> None:
    """That of its first response, or of the conversation that it goes on from; a response that is
    not stored has none."""
    client = ResponseClient(world.client)
    conversation = await ConversationClient(world.client).create(make_message("Hi"))
    first = await client.create("One")
    second = await client.create("Two", previous_response_id=first.id)
    await client.create("Three", previous_response_id=second.id)
    await client.create("Two again", previous_response_id=first.id)
    said = await client.create("Four", conversation_id=conversation.id)
    await client.create("Five", previous_response_id=said.id)
    await client.create("Six", previous_response_id=said.id, store=False)

    assert world.names() == [first.id] * 4 + [conversation.id] * 2 + [""]


async def test_what_is_deleted_is_forgotten(world: World) -> None:
    """Threads, conversations, and of a chain all of it with each of its responses; as soon as the
    engine is there."""
    threads, client = ThreadClient(world.client), ResponseClient(world.client)
    conversations = ConversationClient(world.client)
    thread = await threads.create_thread()
    conversation = await conversations.create(make_message("Hi"))
    first = await client.create("One")
    second = await client.create("Two", previous_response_id=first.id)
    world.engine.refusals = [EngineRestarting(), EngineRestarting()]

    forgotten = []
    delete_thread = thread_service_pb2.DeleteThreadRequest(thread_id=thread.id)
    await threads.call(threads.threads.DeleteThread, delete_thread)
    forgotten.append(await world.engine.forgotten.get())
    delete = conversation_service_pb2.DeleteConversationRequest(conversation_id=conversation.id)
    await conversations.stub.DeleteConversation(delete)
    forgotten.append(await world.engine.forgotten.get())
    for response in (second, first):
        await client.delete(response.id)
        forgotten.append(await world.engine.forgotten.get())

    assert forgotten == [[thread.id], [conversation.id], [first.id], [first.id]]


async def test_a_chain_whose_time_has_come_is_forgotten_once(world: World) -> None:
    """With its first response, which goes last."""
    client = ResponseClient(world.client)
    first = await client.create("One")
    await client.create("Two", previous_response_id=first.id)
    world.running.clock.advance(days=1)
    await world.running.control.sweeper.sweep()

    assert await world.engine.forgotten.get() == [first.id]
    assert world.engine.forgotten.empty()


async def test_what_could_not_be_forgotten_is_when_its_job_begins_again(world: World) -> None:
    """An engine that refuses is not asked again by itself."""
    threads, operator = ThreadClient(world.client), Operator.of(world.running)
    thread = await threads.create_thread()
    world.engine.refusals = [ScopeMissing(scope="admin", method="DropSnapshots")]
    await threads.delete_thread(thread.id)
    while not (dead := (await operator.list_jobs(state=JobPb.STATE_DEAD)).jobs):
        pass
    await operator.retry_job(dead[0].id)

    assert await world.engine.forgotten.get() == [thread.id]


class Away:
    """An archive that cannot be asked."""

    async def delete(self, object_id: str) -> None:
        """Raises Unavailable."""
        raise EngineRestarting()


async def test_a_service_that_stays_away_is_left_alone() -> None:
    """After so many attempts in a row."""

    def claim(num_postponed: int) -> Claim:
        return Claim(
            project="p", job_id="job_1", fence=1, kind=KIND, subject="thread_1/2",
            attempt=1, engine_deaths=0, num_postponed=num_postponed,
        )  # fmt: skip

    cleaner = PrefixCleanupWorker(Away())
    no_context: Any = None
    with pytest.raises(Unavailable):
        await cleaner.run(claim(MAX_POSTPONED - 1), no_context)

    await cleaner.run(claim(MAX_POSTPONED), no_context)
