"""Retries of dead letters of runs, responses and vector store files, on both databases: a failure
that a client has seen is final, all others can be retried."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from corral.control.v1 import job_service_pb2, run_service_pb2
from corral.control.v1.run_service_pb2_grpc import RunServiceStub
from corral.inference.v1 import inference_service_pb2

from control_svc.base.pagination import PageTokens
from control_svc.jobs.model import AttemptResult, Job, JobState, Outcome
from control_svc.jobs.service import Jobs
from control_svc.runs.model import RunState
from control_svc.runs.transitions import EXPIRY_KIND
from control_svc.services import RETRIES
from control_svc.tools.model import FunctionTool
from svc_kit.auth.principal import Principal, set_principal
from svc_kit.errors import InternalError, JobNotRetriable, ModelNotFound
from svc_kit.rpc.admin_call import AdminCall, set_admin_call
from svc_kit.rpc.client import translate_errors
from tests.support.batches import state_name
from tests.support.control import SetClock, run_control
from tests.support.fake_inference import Context
from tests.support.jobs import PROJECT, open_test_database
from tests.support.operators import JobPb, Operator
from tests.support.response_client import ResponseClient, make_model_parts
from tests.support.runs import FUNCTION, RunProcess, RunWorld, create_run, get_run, read_events
from tests.support.scripted_turns import ScriptedTurns, call_script, text_script
from tests.support.threads import ThreadClient, make_new_message
from tests.support.vectors import (
    RunningVectors,
    VectorClient,
    WordInference,
    paragraphs,
    run_vectors,
)

TOPICS = [f"topic{number}" for number in range(60)]
CHUNKING = {"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 0}


class MissingModel(WordInference):
    """An embedding model that is missing after the first call until `is_available` is set."""

    is_available = False

    async def Embed(
        self, request: inference_service_pb2.EmbedRequest, context: Context
    ) -> inference_service_pb2.EmbedResponse:
        """Embed, or raise ModelNotFound."""
        if self.num_calls and not self.is_available:
            raise ModelNotFound(model=request.model)
        return await super().Embed(request, context)


@pytest.fixture
async def vectors(tmp_path: Path, database_url: str | None) -> AsyncIterator[RunningVectors]:
    """Vector stores on each database."""
    async with run_vectors(tmp_path, database_url, MissingModel()) as running:
        yield running


async def ingest_failing(client: VectorClient) -> tuple[str, str]:
    """Create a store with a file whose ingestion fails; return both ids."""
    store = await client.create()
    file_id = await client.add_file(store.id, paragraphs(TOPICS), chunking=CHUNKING)
    await client.wait_for_files(store.id)
    assert state_name(await client.get_file(store.id, file_id)) == "failed"
    return store.id, file_id


async def only_dead_job(operator: Operator) -> JobPb:
    """The only dead letter."""
    (job,) = (await operator.list_jobs(state=JobPb.STATE_DEAD)).jobs
    return job


@pytest.mark.parametrize("is_swept", [False, True])
async def test_a_failed_ingestion_can_be_retried(vectors: RunningVectors, is_swept: bool) -> None:
    """Each passage is indexed once, whether a sweep has deleted the first ones or not."""
    client, operator = vectors.vectors, Operator.of(vectors.control)
    store_id, file_id = await ingest_failing(client)
    if is_swept:
        await vectors.control.control.sweeper.sweep()
    job = await only_dead_job(operator)
    vectors.fake.is_available = True  # type: ignore[attr-defined]
    retried = await operator.retry_job(job.id)
    store = await client.wait_for_files(store_id)
    file = await client.get_file(store_id, file_id)
    hits = await client.search(store_id, TOPICS[0], max_results=50)
    texts = [hit.texts[0] for hit in hits]

    assert (job.kind, job.error_reason) == ("vector-file", "MODEL_NOT_FOUND")
    assert (retried.state, retried.attempt) == (JobPb.STATE_QUEUED, 0)
    assert (state_name(file), file.HasField("error")) == ("completed", False)
    assert (store.file_counts.completed, store.file_counts.failed) == (1, 0)
    assert TOPICS[0] in texts[0]
    assert len(set(texts)) == len(texts) == 30
    with pytest.raises(JobNotRetriable, match="it is done"):
        await operator.retry_job(job.id)


async def test_a_file_removed_from_its_store_is_not_retried(vectors: RunningVectors) -> None:
    """Its dead letter stays dead."""
    client, operator = vectors.vectors, Operator.of(vectors.control)
    store_id, file_id = await ingest_failing(client)
    job = await only_dead_job(operator)
    await client.call("DeleteVectorStoreFile", vector_store_id=store_id, file_id=file_id)

    with pytest.raises(JobNotRetriable, match="no longer in the vector store"):
        await operator.retry_job(job.id)
    assert (await operator.get_job(job.id)).state == JobPb.STATE_DEAD
    assert (await client.get(store_id)).file_counts.total == 0


async def test_failed_runs_and_responses_are_not_retried(
    tmp_path: Path, database_url: str | None
) -> None:
    """Their readers have received the failure."""
    model = ScriptedTurns(lambda _: text_script("Hello"), failures=[0] * 6)
    jobs = {"poll_interval_s": 0.05}
    async with run_control(
        tmp_path, database_url, model=make_model_parts(model), jobs=jobs
    ) as control:
        control.clock.step_s = 1  # backing off takes no time
        operator, responses = Operator.of(control), ResponseClient(control.client)
        response = await responses.create("Hi", background=True)
        last = [event async for event in responses.watch(response.id)][-1]
        assistant = await ThreadClient(control.client).create_assistant()
        stub = RunServiceStub(control.client.channel)
        with translate_errors():
            request = run_service_pb2.CreateThreadAndRunRequest(
                messages=[make_new_message("Hi")],
                run=run_service_pb2.RunOptions(assistant_id=assistant.id),
            )
            run = (await stub.CreateThreadAndRun(request)).run
            watch_request = run_service_pb2.WatchRunRequest(thread_id=run.thread_id, run_id=run.id)
            events = [event async for event in stub.WatchRun(watch_request)]
        dead = (await operator.list_jobs(state=JobPb.STATE_DEAD)).jobs

        assert last.WhichOneof("event") == "failed"
        assert events[-1].event.run_changed.what == "failed"
        assert [job.kind for job in dead] == ["run", "response"]
        for job in dead:
            with pytest.raises(JobNotRetriable, match=f"the {job.kind} .* has been reported"):
                await operator.retry_job(job.id)
        assert (await responses.get(response.id)).state == last.failed.state


async def fail_expiry(process: RunProcess) -> Job:
    """Let the expiry job of a waiting run die."""
    job = await process.leases.claim([EXPIRY_KIND])
    assert job is not None
    defect = AttemptResult(Outcome.REFUSED, InternalError(request_id=job.id))
    return await process.leases.end(job.claim, defect)


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_the_expiry_of_a_run_can_be_retried(
    tmp_path: Path, database_url: str | None, is_cancelled: bool
) -> None:
    """Unless the run was cancelled in the meantime."""
    clock, turns = SetClock(), ScriptedTurns(lambda _: call_script(FUNCTION, "{}"))
    async with open_test_database(tmp_path, database_url, clock) as database:
        world = RunWorld(database, turns, clock)
        thread = await world.thread("Hi")
        assistant = await world.assistant(tools=(FunctionTool(name=FUNCTION),))
        async with world.process().run_jobs() as process:
            run = await create_run(process, assistant, thread)
            await read_events(process, run)
        clock.advance(minutes=11)
        dead = await fail_expiry(process)
        set_principal(Principal(project="ops", scopes=frozenset({"admin"}), key_id="key_1"))
        retry = job_service_pb2.RetryJobRequest(job_id=dead.id)
        set_admin_call(AdminCall("/corral.control.v1.JobService/RetryJob", "unix:", retry))
        operators = Jobs(database.transactions, PageTokens(b"key"), RETRIES)
        if is_cancelled:
            await process.runs.cancel(PROJECT, thread.id, run.id)
            with pytest.raises(JobNotRetriable, match="no longer waits"):
                await operators.retry(dead.id)
        else:
            await operators.retry(dead.id)
            async with world.process("b").run_jobs() as another:
                await another.next_end()
        ended = await get_run(process, run)

    assert dead.state is JobState.DEAD
    assert ended.state is (RunState.CANCELLED if is_cancelled else RunState.EXPIRED)
