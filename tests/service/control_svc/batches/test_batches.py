"""Batches over gRPC, on both databases: files in, files out, and every way to end."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from corral.inference.v1.generation_pb2 import PRIORITY_BATCH
from google.protobuf.duration_pb2 import Duration

from control_svc.base.ids import BATCH as BATCH_ID
from control_svc.base.ids import IdSource
from control_svc.batches import line_client
from control_svc.batches.line_client import LineClient
from control_svc.batches.lines import EndedLine, LineResult, NewLine, PendingLine
from control_svc.batches.model import Batch, BatchEndpoint, LineProblem, LineState, NewBatch
from control_svc.batches.queries import READ_AT_ONCE, BatchLineQueries, BatchQueries, Portion
from control_svc.db.transaction import Transaction
from control_svc.sweeper import CleanupQueries
from gateway.fake_inference import Script
from openai_wire.chat.chat_request import ChatCompletionBody, parse_chat
from svc_kit.errors import (
    BatchNotCancellable,
    BatchNotFound,
    DomainError,
    FileNotFound,
    InternalError,
    InvalidField,
    MissingField,
    RequestIdReused,
    ResponseNotFound,
    UpstreamUnavailable,
)
from tests.support.batches import (
    COMPLETIONS,
    EMBEDDINGS,
    RESPONSES,
    Plan,
    RunningBatches,
    a_chat_line,
    a_line,
    jsonl,
    running_batches,
    state_of,
)
from tests.support.control import BATCH, BATCH_OUTPUT, USER_DATA, SetClock
from tests.support.jobs import a_database
from tests.support.response_client import ResponseClient


@pytest.fixture
async def running(tmp_path: Path, database_url: str | None) -> AsyncIterator[RunningBatches]:
    """Both services, on each database."""
    async with running_batches(tmp_path, database_url) as both:
        yield both


async def test_a_line_that_meets_a_defect_of_ours_costs_no_other(
    running: RunningBatches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends with the error that its caller would get over HTTP."""

    def defective(fields: Mapping[str, Any]) -> ChatCompletionBody:
        if fields.get("user") == "unlucky":
            raise ZeroDivisionError
        return parse_chat(fields)

    monkeypatch.setattr(line_client, "parse_chat", defective)
    lines = [a_chat_line("good"), a_chat_line("bad", user="unlucky"), a_chat_line("also good")]
    batch = await running.batches.create(lines)
    outcome = await running.batches.outcome(batch.id)
    answer = outcome.failed["bad"]["response"]

    assert (outcome.state, outcome.counts) == ("completed", (3, 2, 1))
    assert (answer["status_code"], answer["body"]["error"]["code"]) == (500, "internal")


async def test_a_batch_whose_job_is_dead_keeps_what_it_has(
    running: RunningBatches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fails, with the answers that it had in its files."""
    work, four_are_kept = LineClient.run, asyncio.Event()

    async def deadly(self: LineClient, project: str, batch: Batch, line: PendingLine) -> LineResult:
        if line.number != 5:
            return await work(self, project, batch, line)
        await four_are_kept.wait()
        raise InternalError(request_id="r")

    monkeypatch.setattr(LineClient, "run", deadly)
    batch = await running.batches.create([a_chat_line(f"line-{number}") for number in range(5)])
    await running.batches.until(batch.id, "in_progress", completed=4)
    four_are_kept.set()
    outcome = await running.batches.outcome(batch.id)

    assert (outcome.state, outcome.counts) == ("failed", (5, 4, 1))
    assert [error.code for error in outcome.batch.errors] == ["internal"]
    assert len(outcome.completed) == 4
    assert outcome.failed["line-4"]["error"]["code"] == "batch_failed"


async def test_a_batch_of_chats_runs_to_its_end(running: RunningBatches) -> None:
    """Answers in one file, refusals in another, counts and usage as the sums over them."""
    lines = [
        a_chat_line("good"),
        a_chat_line("bad", temperature="hot"),
        a_chat_line("streamed", stream=True),
        a_chat_line("also good", n=2),
    ]
    batch = await running.batches.create(lines, metadata={"nightly": "yes"})
    outcome = await running.batches.outcome(batch.id)
    good, bad = outcome.completed["good"], outcome.failed["bad"]
    answer = good["response"]["body"]

    assert state_of(batch) == "validating"
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


async def test_lines_run_for_their_project_when_nothing_else_waits(
    running: RunningBatches,
) -> None:
    """On behalf of the batch's project, at the lowest priority."""
    batch = await running.of_project("acme").create([a_chat_line("a")])
    await running.of_project("acme").outcome(batch.id)
    (metadata,) = running.fake.seen.metadata

    assert metadata["x-corral-project"] == "acme"
    assert metadata["x-corral-priority"] == "batch"
    assert metadata["x-corral-scopes"] == "inference"


async def test_lines_ask_for_the_priority_of_batches_themselves(running: RunningBatches) -> None:
    """A service without a token of ours believes nothing of what the call says."""
    vectors = [a_line("a", EMBEDDINGS, input="x")]
    texts = [a_line("a", COMPLETIONS, prompt="x")]
    for lines, endpoint in ((vectors, EMBEDDINGS), (texts, COMPLETIONS)):
        batch = await running.batches.create(lines, endpoint=endpoint)
        await running.batches.outcome(batch.id)
    chat = await running.batches.create([a_chat_line("a")])
    await running.batches.outcome(chat.id)
    embedded, generated, chatted = running.fake.seen.requests

    assert embedded.priority == PRIORITY_BATCH
    assert generated.options.scheduling.priority == PRIORITY_BATCH
    assert chatted.options.scheduling.priority == PRIORITY_BATCH


async def test_completions_and_embeddings_are_endpoints_too(running: RunningBatches) -> None:
    """Each with OpenAI's object as its answer."""
    texts = await running.batches.create(
        [a_line("a", COMPLETIONS, prompt=["one", "two"], echo=True)], endpoint=COMPLETIONS
    )
    vectors = await running.batches.create(
        [a_line("a", EMBEDDINGS, input=["one", "two"])], endpoint=EMBEDDINGS
    )
    text = (await running.batches.outcome(texts.id)).completed["a"]["response"]["body"]
    ended = await running.batches.outcome(vectors.id)
    vector = ended.completed["a"]["response"]["body"]

    assert [choice["text"] for choice in text["choices"]] == ["oneHello world", "twoHello world"]
    assert [each["index"] for each in vector["data"]] == [0, 1]
    assert ended.batch.usage.input_tokens == vector["usage"]["prompt_tokens"] > 0


async def test_a_line_says_which_of_its_prompts_is_wrong(running: RunningBatches) -> None:
    """As the request does over HTTP."""
    running.fake.script = Script(refusal=MissingField(field="prompt"))
    batch = await running.batches.create(
        [a_line("a", COMPLETIONS, prompt=["", "two"]), a_line("b", COMPLETIONS, prompt="")],
        endpoint=COMPLETIONS,
    )
    failed = (await running.batches.outcome(batch.id)).failed
    errors = [failed[name]["response"]["body"]["error"] for name in "ab"]

    assert [error["param"] for error in errors] == ["prompt[0]", "prompt"]


async def test_responses_are_an_endpoint_of_which_nothing_else_is_kept(
    running: RunningBatches,
) -> None:
    """The object of the response is the answer; streams and conversations are refused."""
    batch = await running.batches.create(
        [
            a_line("a", RESPONSES, input="one", store=True),
            a_line("b", RESPONSES, input="one", stream=True),
            a_line("c", RESPONSES, input="one", conversation="conv_1"),
        ],
        endpoint=RESPONSES,
    )
    ended = await running.batches.outcome(batch.id)
    body = ended.completed["a"]["response"]["body"]

    assert (body["object"], body["status"], body["store"]) == ("response", "completed", False)
    assert body["output"][0]["content"][0]["text"] == "Hello world"
    assert ended.batch.usage.output_tokens == body["usage"]["output_tokens"] > 0
    assert {each["response"]["status_code"] for each in ended.failed.values()} == {400}
    with pytest.raises(ResponseNotFound):
        await ResponseClient(running.control.client).get(body["id"])


async def test_a_file_that_cannot_be_used_fails_the_batch(running: RunningBatches) -> None:
    """Every bad line by its number, and nothing runs."""
    lines = [a_chat_line("a"), "no object", a_chat_line("a"), a_chat_line("b", model="other")]
    batch = await running.batches.create(lines)
    outcome = await running.batches.outcome(batch.id)

    assert outcome.state == "failed"
    assert [(error.line, error.code) for error in outcome.batch.errors] == [
        (2, "invalid_json_line"),
        (3, "duplicate_custom_id"),
        (4, "mismatched_model"),
    ]
    assert outcome.counts == (0, 0, 0)
    assert not outcome.batch.output_file_id
    assert not outcome.batch.error_file_id
    assert not running.fake.tries


async def test_the_input_may_go_once_it_has_been_read(running: RunningBatches) -> None:
    """The lines are the batch's own."""
    hold = running.fake.hold("a")
    file = await running.batches.client.create(jsonl([a_chat_line("a")]), purpose=BATCH)
    batch = await running.batches.begin(file.id)
    await running.batches.until(batch.id, "in_progress")
    await running.batches.client.delete(file.id)
    hold.set()

    assert (await running.batches.outcome(batch.id)).state == "completed"


@pytest.mark.parametrize(
    ("purpose", "error"), [(USER_DATA, InvalidField), (None, FileNotFound)], ids=["purpose", "gone"]
)
async def test_the_input_must_be_there_for_a_batch(
    running: RunningBatches, purpose: Any, error: type[DomainError]
) -> None:
    """Another purpose, and a file that is gone, are refused before anything is done."""
    client = running.batches.client
    file = await client.create(b"{}", purpose=purpose or BATCH)
    if purpose is None:
        await client.delete(file.id)
    with pytest.raises(error) as refused:
        await running.batches.begin(file.id)

    assert refused.value.field == "input_file_id"
    assert not (await running.batches.page()).batches


async def test_other_projects_do_not_see_it(running: RunningBatches) -> None:
    """Neither the batch nor its file."""
    mine, other = running.of_project("mine"), running.of_project("other")
    batch = await mine.create([a_chat_line("a")])
    ended = (await mine.outcome(batch.id)).batch

    for call in (other.get, other.cancel, other.outcome):
        with pytest.raises(BatchNotFound):
            await call(batch.id)
    for file_id in (batch.input_file_id, ended.output_file_id):
        with pytest.raises(FileNotFound):
            await other.begin(file_id)
    assert not (await other.page()).batches


async def test_the_same_request_begins_one_batch(running: RunningBatches) -> None:
    """Its id with another content is refused."""
    file = await running.batches.client.create(jsonl([a_chat_line("a")]), purpose=BATCH)
    first, again = [await running.batches.begin(file.id, request_id="r") for _ in range(2)]
    with pytest.raises(RequestIdReused):
        await running.batches.begin(file.id, request_id="r", metadata={"k": "v"})

    assert first.id == again.id
    assert len((await running.batches.page()).batches) == 1


async def test_pages_go_from_new_to_old(running: RunningBatches) -> None:
    """By a token, or after an id."""
    ids = [(await running.batches.create([a_chat_line("a")])).id for _ in range(3)]
    first = await running.batches.page(page_size=2)
    rest = await running.batches.page(page_size=2, page_token=first.next_page_token)
    after = await running.batches.page(after=ids[1])

    assert [batch.id for batch in first.batches] == [ids[2], ids[1]]
    assert [batch.id for batch in rest.batches] == [batch.id for batch in after.batches] == ids[:1]
    assert not rest.next_page_token


async def test_a_batch_that_is_given_up_keeps_what_has_run(running: RunningBatches) -> None:
    """What runs is ended, what waits is in the error file; a second time changes nothing."""
    running.fake.hold("held")
    lines = [a_chat_line("done"), a_chat_line("held"), *(a_chat_line(f"{n}") for n in range(50))]
    batch = await running.batches.create(lines)
    await running.batches.until(batch.id, "in_progress", completed=1)
    first, again = [await running.batches.cancel(batch.id) for _ in range(2)]
    outcome = await running.batches.outcome(batch.id)
    total, completed, failed = outcome.counts

    assert state_of(first) == "cancelling"
    assert state_of(again) in ("cancelling", "cancelled")
    assert outcome.state == "cancelled"
    assert total == 52 == completed + failed
    assert (completed, failed) == (len(outcome.completed), len(outcome.failed))
    assert outcome.failed["held"]["response"] is None
    assert outcome.failed["held"]["error"]["code"] == "batch_cancelled"
    assert state_of(await running.batches.cancel(batch.id)) == "cancelled"


async def test_a_window_closes(running: RunningBatches) -> None:
    """What has run is kept, the rest expires; nothing more can be given up."""
    running.fake.plans["away"] = Plan(always=UpstreamUnavailable(service="x", retry_after=0.01))
    batch = await running.batches.create(
        [a_chat_line("done"), a_chat_line("away")],
        completion_window=Duration(seconds=3600),
        output_ttl=Duration(seconds=7200),
    )
    await running.batches.until(batch.id, "in_progress", completed=1)
    running.control.clock.advance(hours=1)
    outcome = await running.batches.outcome(batch.id)
    output = await running.batches.client.get(outcome.batch.output_file_id)
    with pytest.raises(BatchNotCancellable):
        await running.batches.cancel(batch.id)

    assert (outcome.state, outcome.counts) == ("expired", (2, 1, 1))
    assert outcome.failed["away"]["error"]["code"] == "batch_expired"
    assert output.filename == f"{batch.id}_output.jsonl"
    assert output.purpose == BATCH_OUTPUT
    assert output.expire_time.seconds - output.create_time.seconds == 7200


async def test_lines_that_begin_alike_run_together(tmp_path: Path) -> None:
    """However they are mixed in the file."""
    async with running_batches(tmp_path, batches={"lines_at_once": 1}) as running:
        lines = [a_chat_line(f"{kind}{n}") for n in range(3) for kind in "ab"]
        await running.batches.outcome((await running.batches.create(lines)).id)

        assert running.fake.order == ["a0", "a1", "a2", "b0", "b1", "b2"]


async def test_lines_are_read_by_their_bytes(tmp_path: Path, database_url: str | None) -> None:
    """No more of them than fit, those to run and those that ended; one that fits nowhere alone."""
    clock = SetClock()
    new = NewBatch(input_file_id="file-1", endpoint=BatchEndpoint.EMBEDDINGS)
    batch, sizes = new.make(IdSource(clock).new(BATCH_ID), clock.now), (40, 40, 500, 40)
    lines = [NewLine(number, b"", b"x" * size) for number, size in enumerate(sizes, start=1)]
    ends = [LineResult(line.number, LineState.COMPLETED, line.request * 9) for line in lines]

    async def fill(tx: Transaction) -> None:
        await BatchQueries(tx).add("p", batch)
        await BatchLineQueries(tx).add("p", batch.id, lines)

    async with a_database(tmp_path, database_url, clock) as database:
        transactions, pending, ended = database.transactions, [], []
        await transactions.write(fill)
        last = None
        while found := await transactions.read(_pending(batch.id, last, Portion(3, 100))):
            pending.append([line.number for line in found])
            last = found[-1]
        await transactions.write(lambda each: BatchLineQueries(each).end("p", batch.id, ends))
        after = 0
        while done := await transactions.read(_ended(batch.id, after, Portion(3, 1000))):
            ended.append([line.number for line in done])
            after = done[-1].number

    assert pending == ended == [[1, 2], [3], [4]]


def _pending(
    batch_id: str, after: PendingLine | None, most: Portion
) -> Callable[[Transaction], Awaitable[list[PendingLine]]]:
    return lambda tx: BatchLineQueries(tx).pending("p", batch_id, after, most)


def _ended(
    batch_id: str, after: int, most: Portion
) -> Callable[[Transaction], Awaitable[list[EndedLine]]]:
    return lambda tx: BatchLineQueries(tx).ended(
        "p", batch_id, completed=True, after=after, most=most
    )


async def test_lines_are_forgotten_when_their_batch_has_ended(
    tmp_path: Path, database_url: str | None
) -> None:
    """Those of batches that have not stay, and so do, for a while, those of one that failed without
    files: it may begin again."""
    clock = SetClock()
    new = NewBatch(input_file_id="file-1", endpoint=BatchEndpoint.CHAT_COMPLETIONS)
    ids = IdSource(clock)
    running, ended = (new.make(ids.new(BATCH_ID), clock.now) for _ in range(2))
    lines = [NewLine(number, b"", b"{}") for number in range(1, 4)]

    async def fill(tx: Transaction) -> None:
        for batch in (running, ended.refuse((LineProblem("x", "x"),), clock.now)):
            await BatchQueries(tx).add("p", batch)
            await BatchLineQueries(tx).add("p", batch.id, lines)

    async with a_database(tmp_path, database_url, clock) as database:
        await database.transactions.write(fill)
        dropped = [
            await database.transactions.write(_drop_lines(before, 2))
            for before in (clock.now, *[clock.now + timedelta(seconds=1)] * 3)
        ]
        left = await database.transactions.read(
            lambda each: BatchLineQueries(each).pending("p", running.id, None, READ_AT_ONCE)
        )

    assert dropped == [0, 2, 1, 0]
    assert [line.number for line in left] == [1, 2, 3]


def _drop_lines(before: datetime, limit: int) -> Callable[[Transaction], Awaitable[int]]:
    return lambda tx: CleanupQueries(tx).drop_batch_lines(before, limit)
