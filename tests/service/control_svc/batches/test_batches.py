"""BatchService on both databases: input files, output files, and all final states."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from corral.inference.v1 import inference_service_pb2
from corral.inference.v1.generation_pb2 import PRIORITY_BATCH
from google.protobuf.duration_pb2 import Duration

from control_svc.base.ids import BATCH as BATCH_ID
from control_svc.base.ids import IdSource
from control_svc.batches.lines import (
    LineResult,
    PendingLine,
    response_line,
)
from control_svc.batches.model import Batch, BatchEndpoint, LineProblem, LineState, NewBatch
from control_svc.batches.queries import (
    READ_LIMIT,
    BatchLineQueries,
    BatchQueries,
    ReadLimit,
    delete_ended_lines,
)
from control_svc.db.transaction import Transaction
from control_svc.jobs.model import DEAD_KEPT_FOR
from svc_kit.errors import (
    BatchNotCancellable,
    ContextLengthExceeded,
    FileNotFound,
    InternalError,
    InvalidField,
    MissingField,
    ResponseNotFound,
    UpstreamUnavailable,
)
from tests.support.batches import (
    COMPLETIONS,
    EMBEDDINGS,
    RESPONSES,
    Plan,
    RunningBatches,
    batch_line,
    chat_line,
    jsonl,
    run_batches,
    state_name,
)
from tests.support.control import BATCH, BATCH_OUTPUT, USER_DATA, SetClock
from tests.support.fake_inference import Script
from tests.support.jobs import open_test_database
from tests.support.response_client import ResponseClient


@pytest.fixture
async def running(tmp_path: Path, database_url: str | None) -> AsyncIterator[RunningBatches]:
    """Both services, on each database."""
    async with run_batches(tmp_path, database_url) as services:
        yield services


class FailingLines:
    """A LineRunner that fails line 5 once four results are committed."""

    def __init__(self) -> None:
        self.may_fail = asyncio.Event()

    async def run(self, project: str, batch: Batch, line: PendingLine) -> LineResult:
        """Complete the line, or raise an error that is not retryable."""
        if line.number == 5:
            await self.may_fail.wait()
            raise InternalError(request_id="r")
        text = response_line(batch.id, line.number, f"line-{line.number}", 200, "r", {})
        return LineResult(line.number, LineState.COMPLETED, text)


async def test_a_dead_job_fails_the_batch_and_keeps_results(
    tmp_path: Path, database_url: str | None
) -> None:
    """The batch fails, and its files contain the results so far."""
    lines = FailingLines()
    async with run_batches(tmp_path, database_url, lines=lines) as running:
        batch = await running.batches.create([chat_line(f"line-{n}") for n in range(1, 6)])
        await running.batches.wait_for_state(batch.id, "in_progress", completed=4)
        lines.may_fail.set()
        outcome = await running.batches.wait_for_outcome(batch.id)

    assert (outcome.state, outcome.counts) == ("failed", (5, 4, 1))
    assert [error.code for error in outcome.batch.errors] == ["internal"]
    assert len(outcome.completed) == 4
    assert outcome.failed["line-5"]["error"]["code"] == "batch_failed"


async def test_a_batch_of_chats_completes(running: RunningBatches) -> None:
    """Responses and errors are in separate files; counts and usage are the sums."""
    lines = [
        chat_line("good"),
        chat_line("bad", temperature="hot"),
        chat_line("streamed", stream=True),
        chat_line("also good", n=2),
    ]
    batch = await running.batches.create(lines, metadata={"nightly": "yes"})
    outcome = await running.batches.wait_for_outcome(batch.id)
    good, bad = outcome.completed["good"], outcome.failed["bad"]
    answer = good["response"]["body"]

    assert state_name(batch) == "validating"
    assert (outcome.state, outcome.counts) == ("completed", (4, 2, 2))
    assert outcome.batch.model == "fake"
    assert dict(outcome.batch.metadata) == {"nightly": "yes"}
    assert good["id"].startswith("batch_req_")
    assert (good["error"], good["response"]["status_code"]) == (None, 200)
    assert good["response"]["request_id"]
    assert answer["object"] == "chat.completion"
    assert answer["choices"][0]["message"]["content"] == "Hello world"
    assert len(outcome.completed["also good"]["response"]["body"]["choices"]) == 2
    assert (bad["error"], bad["response"]["status_code"]) == (None, 400)
    assert bad["response"]["body"]["error"]["param"] == "temperature"
    assert outcome.failed["streamed"]["response"]["body"]["error"]["param"] == "stream"
    usages = [line["response"]["body"]["usage"] for line in outcome.completed.values()]
    assert outcome.batch.usage.input_tokens == sum(usage["prompt_tokens"] for usage in usages)
    assert outcome.batch.usage.output_tokens == sum(usage["completion_tokens"] for usage in usages)


async def test_lines_run_as_their_project_at_the_lowest_priority(running: RunningBatches) -> None:
    await running.of_project("acme").run([chat_line("a")])
    (metadata,) = running.fake.calls.metadata

    assert metadata["x-corral-project"] == "acme"
    assert metadata["x-corral-priority"] == "batch"
    assert metadata["x-corral-scopes"] == "inference"


async def test_requests_contain_the_batch_priority(running: RunningBatches) -> None:
    """An inference service without a service token ignores the priority in metadata."""
    vectors = [batch_line("a", EMBEDDINGS, input="x")]
    texts = [batch_line("a", COMPLETIONS, prompt="x")]
    for lines, endpoint in ((vectors, EMBEDDINGS), (texts, COMPLETIONS)):
        await running.batches.run(lines, endpoint=endpoint)
    await running.batches.run([chat_line("a")])
    embedded, generated, chatted = running.fake.calls.requests

    assert embedded.priority == PRIORITY_BATCH
    assert generated.options.scheduling.priority == PRIORITY_BATCH
    assert chatted.options.scheduling.priority == PRIORITY_BATCH


async def test_answers_of_lines_come_in_few_messages(running: RunningBatches) -> None:
    """Nobody reads them before their end."""
    texts = [batch_line("a", COMPLETIONS, prompt="x")]
    await running.batches.run(texts, endpoint=COMPLETIONS)
    await running.batches.run([chat_line("a")])

    assert all(each.options.output.interval_ms for each in running.fake.calls.requests)


async def test_completions_and_embeddings_are_endpoints(running: RunningBatches) -> None:
    texts = [batch_line("a", COMPLETIONS, prompt=["one", "two"], echo=True)]
    vectors = [batch_line("a", EMBEDDINGS, input=["one", "two"])]
    generated = await running.batches.run(texts, endpoint=COMPLETIONS)
    embedded = await running.batches.run(vectors, endpoint=EMBEDDINGS)
    text = generated.completed["a"]["response"]["body"]
    vector = embedded.completed["a"]["response"]["body"]

    assert [choice["text"] for choice in text["choices"]] == ["oneHello world", "twoHello world"]
    assert [embedding["index"] for embedding in vector["data"]] == [0, 1]
    assert embedded.batch.usage.input_tokens == vector["usage"]["prompt_tokens"] > 0


HI = [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize(
    ("endpoint", "body", "path", "expected"),
    [
        ("/api/chat", {"messages": HI}, "message.content", "Hello world"),
        ("/api/generate", {"prompt": "Hi"}, "response", "Hello world"),
        ("/api/generate", {"prompt": "Hi", "stream": False}, "context.0", 1),
        ("/api/generate", {"prompt": "Hi", "context": [5, 6]}, "context.0", 5),
        ("/api/generate", {"prompt": "Hi", "raw": True}, "response", "Hello world"),
        ("/api/embed", {"input": ["a", "bc"]}, "embeddings.1", [2, 0.5]),
        ("/completion", {"prompt": "Hi", "n_predict": 9}, "content", "Hello world"),
        ("/completion", {"prompt": ["Hi", "Ho"]}, "1.content", "Hello world"),
        ("/embedding", {"content": ["a", "bc"]}, "1.embedding.0", [2, 0.5]),
    ],
)
async def test_endpoints_of_ollama_and_llama_server_answer_in_their_form(
    running: RunningBatches, endpoint: str, body: dict[str, Any], path: str, expected: object
) -> None:
    """And errors: of streams, of missing inputs, and of bodies of another API."""
    lines = [
        batch_line("ok", endpoint, **body),
        batch_line("stream", endpoint, **{**body, "stream": "yes"}),
        batch_line("empty", endpoint, input=None),
        batch_line("other", endpoint, input_prefix="a", input_suffix="b"),
    ]
    outcome = await running.batches.run(lines, endpoint=endpoint)
    value = outcome.completed["ok"]["response"]["body"]
    for step in path.split("."):
        value = value[int(step) if step.isdigit() else step]
    failed = {name: line["response"] for name, line in outcome.failed.items()}

    assert value == expected
    assert (outcome.batch.usage.input_tokens > 0) is (endpoint != "/embedding")
    for response in failed.values():
        error = response["body"]["error"]
        assert response["status_code"] == 400
        assert isinstance(error, str) if endpoint.startswith("/api/") else error["code"] == 400
    assert "/infill" in str(failed["other"]["body"])
    request = running.fake.calls.requests[-1]
    embeds = isinstance(request, inference_service_pb2.EmbedRequest)
    priority = request.priority if embeds else request.options.scheduling.priority
    assert priority == PRIORITY_BATCH


async def test_a_chat_of_ollama_that_is_too_long_loses_its_oldest_turns(
    running: RunningBatches,
) -> None:
    """As over HTTP, unless the line forbids it."""
    too_long = ContextLengthExceeded(field="messages", prompt_tokens=5, context_tokens=3)
    turns = [{"role": "user", "content": text} for text in ("1", "2", "3", "last")]
    running.fake.plans["last"] = Plan([too_long, too_long])
    lines = [
        batch_line("refused", "/api/chat", messages=turns, truncate=False),
        batch_line("short", "/api/chat", messages=turns),
    ]
    refused = await running.batches.run(lines[:1], endpoint="/api/chat")
    shortened = await running.batches.run(lines[1:], endpoint="/api/chat")
    messages = running.fake.calls.requests[-1].conversation.messages

    assert "context length" in refused.failed["refused"]["response"]["body"]["error"]
    assert list(shortened.completed) == ["short"]
    assert [message.parts[0].text for message in messages] == ["3", "last"]


async def test_the_error_of_a_line_names_the_invalid_prompt(running: RunningBatches) -> None:
    running.fake.script = Script(refusal=MissingField(field="prompt"))
    lines = [
        batch_line("a", COMPLETIONS, prompt=["", "two"]),
        batch_line("b", COMPLETIONS, prompt=""),
    ]
    failed = (await running.batches.run(lines, endpoint=COMPLETIONS)).failed
    errors = [failed[name]["response"]["body"]["error"] for name in "ab"]

    assert [error["param"] for error in errors] == ["prompt[0]", "prompt"]


async def test_responses_are_an_endpoint_and_are_not_stored(running: RunningBatches) -> None:
    """Streams and conversations are rejected."""
    outcome = await running.batches.run(
        [
            batch_line("a", RESPONSES, input="one", store=True),
            batch_line("b", RESPONSES, input="one", stream=True),
            batch_line("c", RESPONSES, input="one", conversation="conv_1"),
        ],
        endpoint=RESPONSES,
    )
    body = outcome.completed["a"]["response"]["body"]

    assert (body["object"], body["status"], body["store"]) == ("response", "completed", False)
    assert body["output"][0]["content"][0]["text"] == "Hello world"
    assert outcome.batch.usage.output_tokens == body["usage"]["output_tokens"] > 0
    assert {line["response"]["status_code"] for line in outcome.failed.values()} == {400}
    with pytest.raises(ResponseNotFound):
        await ResponseClient(running.control.client).get(body["id"])


async def test_an_error_behind_an_ignored_item_has_the_index_of_the_line(
    running: RunningBatches,
) -> None:
    search, unknown = {"type": "web_search_call", "id": "ws_1"}, {"id": "msg_none"}
    lines = [
        batch_line("a", RESPONSES, input=[search, search, unknown]),
        batch_line("b", RESPONSES, input=[unknown]),
    ]
    failed = (await running.batches.run(lines, endpoint=RESPONSES)).failed
    errors = [failed[name]["response"]["body"]["error"] for name in "ab"]

    assert [error["param"] for error in errors] == ["input[2].id", "input[0].id"]


async def test_an_invalid_file_fails_the_batch(running: RunningBatches) -> None:
    """Errors have line numbers, and no line runs."""
    lines = [chat_line("a"), "no object", chat_line("a"), chat_line("b", model="other")]
    outcome = await running.batches.run(lines)

    assert outcome.state == "failed"
    assert [(error.line, error.code) for error in outcome.batch.errors] == [
        (2, "invalid_json_line"),
        (3, "duplicate_custom_id"),
        (4, "mismatched_model"),
    ]
    assert outcome.counts == (0, 0, 0)
    assert not outcome.batch.output_file_id
    assert not outcome.batch.error_file_id
    assert not running.fake.attempts


async def test_the_input_file_can_be_deleted_while_the_batch_runs(running: RunningBatches) -> None:
    release = running.fake.block("a")
    file = await running.batches.client.create(jsonl([chat_line("a")]), purpose=BATCH)
    batch = await running.batches.create_from_file(file.id)
    await running.batches.wait_for_state(batch.id, "in_progress")
    await running.batches.client.delete(file.id)
    release.set()

    assert (await running.batches.wait_for_outcome(batch.id)).state == "completed"


async def test_a_batch_whose_input_is_lost_fails_with_the_cause(running: RunningBatches) -> None:
    """The file is not reported as deleted: its row is there, its bytes are gone."""
    file = await running.batches.client.create(jsonl([chat_line("a")]), purpose=BATCH)
    (path,) = running.control.stored()
    path.unlink()

    batch = await running.batches.create_from_file(file.id)
    outcome = await running.batches.wait_for_outcome(batch.id)

    assert outcome.state == "failed"
    assert [error.code for error in outcome.batch.errors] == ["blob_missing"]


async def test_creation_requires_an_existing_batch_file(running: RunningBatches) -> None:
    """A file with another purpose or a deleted file is rejected."""
    client = running.batches.client
    other = await client.create(b"{}", purpose=USER_DATA)
    deleted = await client.create(b"{}", purpose=BATCH)
    await client.delete(deleted.id)
    with pytest.raises(InvalidField) as of_purpose:
        await running.batches.create_from_file(other.id)
    with pytest.raises(FileNotFound) as not_found:
        await running.batches.create_from_file(deleted.id)

    assert of_purpose.value.field == not_found.value.field == "input_file_id"
    assert not (await running.batches.page()).batches


async def test_batches_are_listed_newest_first(running: RunningBatches) -> None:
    """In pages, by a token or after an id."""
    ids = [(await running.batches.create([chat_line("a")])).id for _ in range(3)]
    first = await running.batches.page(page_size=2)
    rest = await running.batches.page(page_size=2, page_token=first.next_page_token)
    after = await running.batches.page(after=ids[1])

    assert [batch.id for batch in first.batches] == [ids[2], ids[1]]
    assert [batch.id for batch in rest.batches] == [batch.id for batch in after.batches] == ids[:1]
    assert not rest.next_page_token


async def test_a_cancelled_batch_keeps_its_results(running: RunningBatches) -> None:
    """Lines that did not run are in the error file; cancelling is idempotent."""
    running.fake.block("blocked")
    lines = [chat_line("done"), chat_line("blocked"), *(chat_line(f"{n}") for n in range(50))]
    batch = await running.batches.create(lines)
    await running.batches.wait_for_state(batch.id, "in_progress", completed=1)
    first, again = [await running.batches.cancel(batch.id) for _ in range(2)]
    outcome = await running.batches.wait_for_outcome(batch.id)
    total, completed, failed = outcome.counts

    assert state_name(first) == "cancelling"
    assert state_name(again) in ("cancelling", "cancelled")
    assert outcome.state == "cancelled"
    assert total == 52 == completed + failed
    assert (completed, failed) == (len(outcome.completed), len(outcome.failed))
    assert outcome.failed["blocked"]["response"] is None
    assert outcome.failed["blocked"]["error"]["code"] == "batch_cancelled"
    assert state_name(await running.batches.cancel(batch.id)) == "cancelled"


async def test_a_batch_expires_when_its_window_closes(running: RunningBatches) -> None:
    """It keeps its results and cannot be cancelled."""
    running.fake.plans["unavailable"] = Plan(
        always=UpstreamUnavailable(service="x", retry_after=0.01)
    )
    batch = await running.batches.create(
        [chat_line("done"), chat_line("unavailable")],
        completion_window=Duration(seconds=3600),
        output_ttl=Duration(seconds=7200),
    )
    await running.batches.wait_for_state(batch.id, "in_progress", completed=1)
    running.control.clock.advance(hours=1)
    outcome = await running.batches.wait_for_outcome(batch.id)
    output = await running.batches.client.get(outcome.batch.output_file_id)
    with pytest.raises(BatchNotCancellable):
        await running.batches.cancel(batch.id)

    assert (outcome.state, outcome.counts) == ("expired", (2, 1, 1))
    assert outcome.failed["unavailable"]["error"]["code"] == "batch_expired"
    assert output.filename == f"{batch.id}_output.jsonl"
    assert output.purpose == BATCH_OUTPUT
    assert output.expire_time.seconds - output.create_time.seconds == 7200


async def test_lines_with_a_common_prefix_run_consecutively(tmp_path: Path) -> None:
    """Independently of their order in the file."""
    async with run_batches(tmp_path, batches={"lines_at_once": 1}) as running:
        lines = [chat_line(f"{kind}{n}") for n in range(3) for kind in "ab"]
        await running.batches.run(lines)

        assert running.fake.prompts == ["a0", "a1", "a2", "b0", "b1", "b2"]


async def test_queries_for_lines_are_limited_by_bytes(
    tmp_path: Path, database_url: str | None
) -> None:
    """A line over the limit is returned alone."""
    clock = SetClock()
    new = NewBatch(input_file_id="file-1", endpoint=BatchEndpoint.EMBEDDINGS)
    batch, sizes = new.make(IdSource(clock).new(BATCH_ID), clock.now), (40, 40, 500, 40)
    lines = [PendingLine(number, b"", b"x" * size) for number, size in enumerate(sizes, start=1)]
    results = [LineResult(line.number, LineState.COMPLETED, line.request * 9) for line in lines]

    async def work(tx: Transaction) -> tuple[list[list[int]], list[list[int]]]:
        queries, pending, ended = BatchLineQueries(tx), [], []
        await BatchQueries(tx).add(batch)
        await queries.add(batch.id, lines)
        last = None
        while rows := await queries.list_pending(batch.id, last, ReadLimit(3, 100)):
            pending.append([line.number for line in rows])
            last = rows[-1]
        await queries.save_results(batch.id, results)
        after, limit = 0, ReadLimit(3, 1000)
        while done := await queries.list_ended(batch.id, completed=True, after=after, limit=limit):
            ended.append([line.number for line in done])
            after = done[-1].number
        return pending, ended

    async with open_test_database(tmp_path, database_url, clock) as database:
        pending, ended = await database.transactions.of("p").write(work)

    assert pending == ended == [[1, 2], [3], [4]]


async def test_lines_of_ended_batches_are_deleted(tmp_path: Path, database_url: str | None) -> None:
    """After a delay if the batch failed without files, since it may be retried."""
    clock = SetClock()
    new = NewBatch(input_file_id="file-1", endpoint=BatchEndpoint.CHAT_COMPLETIONS)
    ids = IdSource(clock)
    running, ended = (new.make(ids.new(BATCH_ID), clock.now) for _ in range(2))
    lines = [PendingLine(number, b"", b"{}") for number in range(1, 4)]

    async def fill(tx: Transaction) -> None:
        for batch in (running, ended.fail_validation((LineProblem("x", "x"),), clock.now)):
            await BatchQueries(tx).add(batch)
            await BatchLineQueries(tx).add(batch.id, lines)

    kept_until = clock.now + DEAD_KEPT_FOR
    async with open_test_database(tmp_path, database_url, clock) as database:
        await database.transactions.of("p").write(fill)
        deleted = [
            await database.across_projects.write(partial(delete_ended_lines, now=now, limit=2))
            for now in (kept_until, *[kept_until + timedelta(seconds=1)] * 3)
        ]
        remaining = await database.transactions.of("p").read(
            lambda tx: BatchLineQueries(tx).list_pending(running.id, None, READ_LIMIT)
        )

    assert [result.num_rows for result in deleted] == [0, 2, 1, 0]
    assert [line.number for line in remaining] == [1, 2, 3]
