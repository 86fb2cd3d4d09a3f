"""Retries of dead letters of runs, responses and vector store files, on both databases."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from corral.control.v1 import job_service_pb2, run_pb2, run_service_pb2
from corral.control.v1.run_service_pb2_grpc import RunServiceStub
from corral.inference.v1 import inference_service_pb2

from control_svc.base.pagination import PageTokens
from control_svc.inference.turns import TurnRequest
from control_svc.jobs.model import AttemptResult, Job, JobState, Outcome
from control_svc.jobs.service import Jobs
from control_svc.runs.model import RunState
from control_svc.runs.transitions import EXPIRY_KIND, retry_expiry
from control_svc.tools.model import FunctionTool
from svc_kit.auth.principal import Principal, set_principal
from svc_kit.errors import InternalError, JobNotRetriable, ModelNotFound, StreamExpired
from svc_kit.rpc.admin_call import AdminCall, set_admin_call
from svc_kit.rpc.client import translate_errors
from tests.support.batches import state_name
from tests.support.control import RunningControl, SetClock, run_control
from tests.support.fake_inference import Context
from tests.support.jobs import open_test_database
from tests.support.operators import JobPb, Operator
from tests.support.response_client import ResponseClient, make_model_parts, output_text
from tests.support.runs import (
    FUNCTION,
    RunProcess,
    RunWorld,
    cancel_run,
    create_run,
    get_run,
    read_events,
)
from tests.support.scripted_turns import ScriptedTurns, call_script, text_script
from tests.support.threads import ThreadClient, make_new_message, message_text
from tests.support.vectors import (
    RunningVectors,
    VectorClient,
    WordInference,
    paragraphs,
    run_vectors,
)

TOPICS = [f"topic{number}" for number in range(60)]
ANSWER = "one two three four five"
CHUNKING = {"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 0}


class MissingModel(WordInference):
    """An embedding model that is missing after the first call until `is_available` is set."""

    is_available = False

    async def Embed(
        self, request: inference_service_pb2.EmbedRequest, context: Context
    ) -> inference_service_pb2.EmbedResponse:
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


@dataclass(frozen=True)
class FailedWork:
    operator: Operator
    responses: ResponseClient
    response_id: str
    runs: Any
    threads: ThreadClient
    run: run_pb2.Run
    numbers: dict[str, int]
    """The number of the last event of each."""

    @classmethod
    async def create(cls, control: RunningControl) -> "FailedWork":
        """Create a response and a run, and follow both to their failure."""
        control.clock.step_s = 1  # backing off takes no time
        responses, threads = ResponseClient(control.client), ThreadClient(control.client)
        response = await responses.create("Hi", background=True)
        events = [event async for event in responses.watch(response.id)]
        assert events[-1].WhichOneof("event") == "failed"
        assistant = await threads.create_assistant()
        stub = RunServiceStub(control.client.channel)
        request = run_service_pb2.CreateThreadAndRunRequest(
            messages=[make_new_message("Hi")],
            run=run_service_pb2.RunOptions(assistant_id=assistant.id),
        )
        with translate_errors():
            run = (await stub.CreateThreadAndRun(request)).run
        numbers = {"response": events[-1].sequence_number, "run": 0}
        work = cls(Operator.of(control), responses, response.id, stub, threads, run, numbers)
        run_events = await work.watch_run(None)
        assert run_events[-1].event.run_changed.what == "failed"
        work.numbers["run"] = run_events[-1].number
        return work

    async def watch_run(self, after: int | None) -> list[run_service_pb2.WatchRunResponse]:
        request = run_service_pb2.WatchRunRequest(
            thread_id=self.run.thread_id, run_id=self.run.id, after=after
        )
        with translate_errors():
            return [event async for event in self.runs.WatchRun(request)]

    async def retry(self) -> list[str]:
        """Retry all dead jobs; return their kinds."""
        dead = (await self.operator.list_jobs(state=JobPb.STATE_DEAD)).jobs
        for job in dead:
            await self.operator.retry_job(job.id)
        return sorted(job.kind for job in dead)


@pytest.mark.parametrize("tokens", [0, 1])
@pytest.mark.parametrize("is_swept", [False, True])
async def test_failed_runs_and_responses_are_retried(
    tmp_path: Path, database_url: str | None, tokens: int, is_swept: bool
) -> None:
    """Whether the model had begun an answer or not: a retry gives one whole answer, and the events
    follow those of the failure, even after these have expired."""
    model = ScriptedTurns(lambda _: text_script(ANSWER), failures=[tokens] * 6)
    jobs = {"poll_interval_s": 0.05}
    parts = make_model_parts(model)
    async with run_control(tmp_path, database_url, model=parts, jobs=jobs) as control:
        work = await FailedWork.create(control)
        if is_swept:
            control.clock.advance(hours=2)
            await control.control.sweeper.sweep()
        kinds = await work.retry()
        after = work.numbers
        events = [
            event async for event in work.responses.watch(work.response_id, after["response"])
        ]
        run_events = await work.watch_run(after["run"])
        response = await work.responses.get(work.response_id)
        page = await work.threads.page(work.run.thread_id)
        if is_swept:
            with pytest.raises(StreamExpired):
                [event async for event in work.responses.watch(work.response_id)]

    assert kinds == ["response", "run"]
    first = after["response"] + 1
    assert [each.sequence_number for each in events] == list(range(first, first + len(events)))
    assert events[0].WhichOneof("event") == "queued"
    assert events[-1].completed == response
    assert [output_text(response), len(response.output)] == [ANSWER, 1]
    assert not response.HasField("error")
    assert run_events[0].number == after["run"] + 1
    assert run_events[-1].event.run_changed.what == "completed"
    assert [message_text(message) for message in page.messages] == [ANSWER, "Hi"]


async def test_a_retry_does_not_disturb_what_follows_the_failure(
    tmp_path: Path, database_url: str | None
) -> None:
    """A response that another one continues, and a run of a thread with a newer active run."""
    model = ScriptedTurns(lambda _: text_script("Hello"), failures=[0] * 6)
    gate = asyncio.Event()

    async def wait(_request: TurnRequest, _index: int) -> None:
        await gate.wait()

    jobs = {"poll_interval_s": 0.05}
    parts = make_model_parts(model)
    async with run_control(tmp_path, database_url, model=parts, jobs=jobs) as control:
        work = await FailedWork.create(control)
        await work.responses.create("Again", previous_response_id=work.response_id)
        model.before_token = wait
        request = run_service_pb2.CreateRunRequest(
            thread_id=work.run.thread_id,
            run=run_service_pb2.RunOptions(assistant_id=work.run.assistant_id),
        )
        with translate_errors():
            await work.runs.CreateRun(request)
        problems = {}
        for job in (await work.operator.list_jobs(state=JobPb.STATE_DEAD)).jobs:
            with pytest.raises(JobNotRetriable) as refused:
                await work.operator.retry_job(job.id)
            problems[job.kind] = refused.value.message
        gate.set()

    assert "another response continues" in problems["response"]
    assert "is active" in problems["run"]


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
        retries = {EXPIRY_KIND: retry_expiry}
        operators = Jobs(database.across_projects, PageTokens(b"key"), retries)
        if is_cancelled:
            await cancel_run(process, run)
            with pytest.raises(JobNotRetriable, match="no longer waits"):
                await operators.RetryJob(retry)
        else:
            await operators.RetryJob(retry)
            async with world.process("b").run_jobs() as another:
                await another.next_end()
        ended = await get_run(process, run)

    assert dead.state is JobState.DEAD
    assert ended.state is (RunState.CANCELLED if is_cancelled else RunState.EXPIRED)
