"""Archived prefixes: the object ids that turns are archived under, and their deletion."""

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
class FakeEngine(rpc.EngineServiceServicer):
    """Records DropSnapshots requests; raises the `refusals` first."""

    refusals: list[DomainError] = field(default_factory=list)
    dropped: asyncio.Queue[list[str]] = field(default_factory=asyncio.Queue)

    async def DropSnapshots(self, request: Any, context: Any) -> Any:
        """Queue the requested ids, or raise the next refusal."""
        if self.refusals:
            raise self.refusals.pop()
        projects = [f"project {project}" for project in request.projects]
        self.dropped.put_nowait([*request.object_ids, *request.snapshot_ids, *projects])
        return pb.DropSnapshotsResponse()


@dataclass
class Services:
    """A control service with its scripted model and the engine that stores the archive."""

    running: RunningControl
    engine: FakeEngine
    model: ScriptedTurns

    @property
    def client(self) -> Client:
        return self.running.client

    def archive_ids(self) -> list[str]:
        """The `keep_for` of each turn, in order."""
        return [request.keep_for for request in self.model.requests]


@asynccontextmanager
async def serve_engine(engine: FakeEngine, folder: Path) -> AsyncIterator[str]:
    """Serve the engine to callers with the service token; yield its address."""
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
async def services(tmp_path: Path, database_url: str | None) -> AsyncIterator[Services]:
    """A control service on each database, whose clock advances a second each time it is read."""
    engine, model = FakeEngine(), ScriptedTurns(lambda _: text_script("Hello"))
    async with (
        serve_engine(engine, tmp_path) as target,
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
        yield Services(running, engine, model)


async def test_all_turns_of_a_response_chain_are_archived_under_one_id(services: Services) -> None:
    """The first response's id or the conversation's; empty if the response is not stored."""
    client = ResponseClient(services.client)
    conversation = await ConversationClient(services.client).create(make_message("Hi"))
    first = await client.create("One")
    second = await client.create("Two", previous_response_id=first.id)
    await client.create("Three", previous_response_id=second.id)
    await client.create("Two again", previous_response_id=first.id)
    answer = await client.create("Four", conversation_id=conversation.id)
    await client.create("Five", previous_response_id=answer.id)
    await client.create("Six", previous_response_id=answer.id, store=False)

    assert services.archive_ids() == [first.id] * 4 + [conversation.id] * 2 + [""]


async def test_deleting_an_object_drops_its_snapshots(services: Services) -> None:
    """Deleting a response drops its whole chain. A call is retried while the engine restarts."""
    threads, client = ThreadClient(services.client), ResponseClient(services.client)
    conversations = ConversationClient(services.client)
    thread = await threads.create_thread()
    conversation = await conversations.create(make_message("Hi"))
    first = await client.create("One")
    second = await client.create("Two", previous_response_id=first.id)
    services.engine.refusals = [EngineRestarting(), EngineRestarting()]

    dropped = []
    delete_thread = thread_service_pb2.DeleteThreadRequest(thread_id=thread.id)
    await threads.call(threads.threads.DeleteThread, delete_thread)
    dropped.append(await services.engine.dropped.get())
    delete = conversation_service_pb2.DeleteConversationRequest(conversation_id=conversation.id)
    await conversations.stub.DeleteConversation(delete)
    dropped.append(await services.engine.dropped.get())
    for response in (second, first):
        await client.delete(response.id)
        dropped.append(await services.engine.dropped.get())

    assert dropped == [[thread.id], [conversation.id], [first.id], [first.id]]


async def test_an_expired_response_chain_is_dropped_once(services: Services) -> None:
    """The sweeper deletes both responses; one request drops the chain."""
    client = ResponseClient(services.client)
    first = await client.create("One")
    await client.create("Two", previous_response_id=first.id)
    services.running.clock.advance(days=1)
    await services.running.control.sweeper.sweep()

    assert await services.engine.dropped.get() == [first.id]
    assert services.engine.dropped.empty()


async def test_a_dead_cleanup_job_can_be_retried(services: Services) -> None:
    """A refusal that is not retried makes the job dead; an operator's retry drops the snapshots."""
    threads, operator = ThreadClient(services.client), Operator.of(services.running)
    thread = await threads.create_thread()
    services.engine.refusals = [ScopeMissing(scope="admin", method="DropSnapshots")]
    await threads.delete_thread(thread.id)
    while not (dead := (await operator.list_jobs(state=JobPb.STATE_DEAD)).jobs):
        pass
    await operator.retry_job(dead[0].id)

    assert await services.engine.dropped.get() == [thread.id]


async def test_archiving_a_project_drops_its_stateless_prefixes(services: Services) -> None:
    """At once, and again when no process accepts its keys any more."""
    operator, longest = Operator.of(services.running), "r" * 63
    await operator.create_project(longest)
    services.running.clock.step_s = 0
    await operator.archive(longest)
    assert await services.engine.dropped.get() == [f"project {longest}"]
    services.running.clock.advance(seconds=30)
    await services.running.control.sweeper.sweep()
    assert services.engine.dropped.empty()
    services.running.clock.advance(seconds=6)

    assert await services.engine.dropped.get() == [f"project {longest}"]


class UnavailableArchive:
    """An archive that cannot be reached."""

    async def delete(self, request: pb.DropSnapshotsRequest) -> None:
        raise EngineRestarting()


async def test_cleanup_gives_up_after_the_maximum_number_of_postponements() -> None:
    """Below MAX_POSTPONED the worker raises Unavailable; at the limit it returns."""

    def claim(num_postponed: int) -> Claim:
        return Claim(
            project="p", job_id="job_1", fence=1, kind=KIND, subject="thread_1/2",
            attempt=1, engine_deaths=0, num_postponed=num_postponed,
        )  # fmt: skip

    worker = PrefixCleanupWorker(UnavailableArchive())
    no_context: Any = None
    with pytest.raises(Unavailable):
        await worker.run(claim(MAX_POSTPONED - 1), no_context)

    await worker.run(claim(MAX_POSTPONED), no_context)


async def test_deleting_an_object_drops_its_snapshots_at_every_replica(tmp_path: Path) -> None:
    """Also at one that is away for a moment."""
    engines = FakeEngine(), FakeEngine(refusals=[EngineRestarting()])
    async with (
        serve_engine(engines[0], tmp_path) as first,
        serve_engine(engines[1], tmp_path) as second,
        run_control(
            tmp_path, inference_target=f"{first},{second}", jobs={"poll_interval_s": 0.05}
        ) as running,
    ):
        running.clock.step_s = 1
        threads = ThreadClient(running.client)
        thread = await threads.create_thread()
        request = thread_service_pb2.DeleteThreadRequest(thread_id=thread.id)
        await threads.call(threads.threads.DeleteThread, request)

        assert [await each.dropped.get() for each in engines] == [[thread.id]] * 2
