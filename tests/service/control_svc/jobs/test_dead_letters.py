"""Dead letters of runs, responses and files of vector stores, on both databases: what can still
become what its client wanted begins again, and nothing that its client was told has ended."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from corral.control.v1 import run_service_pb2
from corral.control.v1.run_service_pb2_grpc import RunServiceStub
from corral.inference.v1 import inference_service_pb2

from control_svc.base.pagination import PageTokens
from control_svc.jobs.model import AttemptResult, Job, JobState, Outcome
from control_svc.jobs.service import Jobs
from control_svc.runs.model import RunState
from control_svc.runs.transitions import EXPIRY_KIND
from control_svc.services import RETRIES
from control_svc.tools.model import FunctionTool
from gateway.fake_inference import Context
from svc_kit.errors import InternalError, JobNotRetriable, ModelNotFound
from svc_kit.rpc.client import translate_errors
from tests.support.control import SetClock, a_control
from tests.support.jobs import PROJECT, a_database
from tests.support.operators import JobPb, Operator
from tests.support.response_client import ResponseClient, a_model
from tests.support.runs import FUNCTION, RunProcess, RunWorld, begun, now, told
from tests.support.scripted_turns import ScriptedTurns, calls, says
from tests.support.threads import ThreadClient, saying
from tests.support.vectors import (
    RunningVectors,
    VectorClient,
    WordVectors,
    paragraphs,
    running_vectors,
    state_of,
)

TOPICS = [f"topic{number}" for number in range(60)]
CHUNKING = {"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 0}


class Lost(WordVectors):
    """Has lost its model after the first vectors, until it is found again."""

    is_found = False

    async def Embed(
        self, request: inference_service_pb2.EmbedRequest, context: Context
    ) -> inference_service_pb2.EmbedResponse:
        """Vectors, or no such model."""
        if self.num_calls and not self.is_found:
            raise ModelNotFound(model=request.model)
        return await super().Embed(request, context)


@pytest.fixture
async def vectors(tmp_path: Path, database_url: str | None) -> AsyncIterator[RunningVectors]:
    """Vector stores, on each database."""
    async with running_vectors(tmp_path, database_url, Lost()) as running:
        yield running


async def a_failed_file(client: VectorClient) -> tuple[str, str]:
    """A store, and a file that was not read to its end."""
    store = await client.create()
    file_id = await client.put(store.id, paragraphs(TOPICS), chunking=CHUNKING)
    await client.read(store.id)
    assert state_of(await client.file(store.id, file_id)) == "failed"
    return store.id, file_id


async def the_dead_one(operator: Operator) -> JobPb:
    """The only dead letter."""
    (job,) = (await operator.list_jobs(state=JobPb.STATE_DEAD)).jobs
    return job


@pytest.mark.parametrize("is_swept", [False, True])
async def test_a_file_that_could_not_be_read_is_read_after_all(
    vectors: RunningVectors, is_swept: bool
) -> None:
    """All of it, and each passage once, whether a sweep has dropped those it had or not."""
    client, operator = vectors.vectors, Operator.of(vectors.control)
    store_id, file_id = await a_failed_file(client)
    if is_swept:
        await vectors.control.control.sweeper.sweep()
    job = await the_dead_one(operator)
    vectors.fake.is_found = True  # type: ignore[attr-defined]
    retried = await operator.retry_job(job.id)
    store = await client.read(store_id)
    file = await client.file(store_id, file_id)
    hits = await client.search(store_id, TOPICS[0], max_results=50)
    texts = [hit.texts[0] for hit in hits]

    assert (job.kind, job.error_reason) == ("vector-file", "MODEL_NOT_FOUND")
    assert (retried.state, retried.attempt) == (JobPb.STATE_QUEUED, 0)
    assert (state_of(file), file.HasField("error")) == ("completed", False)
    assert (store.file_counts.completed, store.file_counts.failed) == (1, 0)
    assert TOPICS[0] in texts[0]
    assert len(set(texts)) == len(texts) == 30
    with pytest.raises(JobNotRetriable, match="it is done"):
        await operator.retry_job(job.id)


async def test_a_file_that_is_in_its_store_no_more_stays_out(vectors: RunningVectors) -> None:
    """Its dead letter has nothing to begin again."""
    client, operator = vectors.vectors, Operator.of(vectors.control)
    store_id, file_id = await a_failed_file(client)
    job = await the_dead_one(operator)
    await client.ask("DeleteVectorStoreFile", vector_store_id=store_id, file_id=file_id)

    with pytest.raises(JobNotRetriable, match="in the vector store no more"):
        await operator.retry_job(job.id)
    assert (await operator.get_job(job.id)).state == JobPb.STATE_DEAD
    assert (await client.get(store_id)).file_counts.total == 0


async def test_what_failed_for_its_client_stays_so(
    tmp_path: Path, database_url: str | None
) -> None:
    """A run and a response that engines died over: their readers were told."""
    model = ScriptedTurns(lambda _: says("Hello"), troubles=[0] * 6)
    jobs = {"poll_interval_s": 0.05}
    async with a_control(tmp_path, database_url, model=a_model(model), jobs=jobs) as control:
        control.clock.step_s = 1  # backing off takes no time
        operator, responses = Operator.of(control), ResponseClient(control.client)
        response = await responses.create("Hi", background=True)
        last = [event async for event in responses.watch(response.id)][-1]
        assistant = await ThreadClient(control.client).new_assistant()
        stub = RunServiceStub(control.client.channel)
        with translate_errors():
            asked = run_service_pb2.CreateThreadAndRunRequest(
                messages=[saying("Hi")], run=run_service_pb2.RunOptions(assistant_id=assistant.id)
            )
            run = (await stub.CreateThreadAndRun(asked)).run
            watched = run_service_pb2.WatchRunRequest(thread_id=run.thread_id, run_id=run.id)
            events = [event async for event in stub.WatchRun(watched)]
        dead = (await operator.list_jobs(state=JobPb.STATE_DEAD)).jobs

        assert last.WhichOneof("event") == "failed"
        assert events[-1].event.run_changed.what == "failed"
        assert [job.kind for job in dead] == ["run", "response"]
        for job in dead:
            with pytest.raises(JobNotRetriable, match=f"the {job.kind} .* as its client was told"):
                await operator.retry_job(job.id)
        assert (await responses.get(response.id)).state == last.failed.state


async def its_dead_expiry(process: RunProcess) -> Job:
    """The expiry of a waiting run, after an attempt that was a defect."""
    job = await process.leases.claim([EXPIRY_KIND])
    assert job is not None
    defect = AttemptResult(Outcome.REFUSED, InternalError(request_id=job.id))
    return await process.leases.end(job.claim, defect)


@pytest.mark.parametrize("is_given_up", [False, True])
async def test_a_run_that_still_waits_expires_after_all(
    tmp_path: Path, database_url: str | None, is_given_up: bool
) -> None:
    """And one that was given up meanwhile stays as it is."""
    clock, turns = SetClock(), ScriptedTurns(lambda _: calls(FUNCTION, "{}"))
    async with a_database(tmp_path, database_url, clock) as database:
        world = RunWorld(database, turns, clock)
        thread = await world.thread("Hi")
        assistant = await world.assistant(tools=(FunctionTool(name=FUNCTION),))
        async with world.process().working() as process:
            run = await begun(process, assistant, thread)
            await told(process, run)
        clock.advance(minutes=11)
        dead = await its_dead_expiry(process)
        operators = Jobs(database.transactions, PageTokens(b"key"), RETRIES)
        if is_given_up:
            await process.runs.cancel(PROJECT, thread.id, run.id)
            with pytest.raises(JobNotRetriable, match="does not wait any more"):
                await operators.retry(dead.id)
        else:
            await operators.retry(dead.id)
            async with world.process("b").working() as another:
                await another.an_end()
        ended = await now(process, run)

    assert dead.state is JobState.DEAD
    assert ended.state is (RunState.CANCELLED if is_given_up else RunState.EXPIRED)
