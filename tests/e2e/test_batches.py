"""Batches with the demo model: the official SDK, and kills of all processes involved."""

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from corral.inference.v1 import engine_service_pb2 as engine_pb
from corral.inference.v1 import generation_pb2
from corral.inference.v1.load_pb2 import LiveRequest

from tests.support.batches import CHAT, batch_line, jsonl
from tests.support.rpc import CAPITAL, PARIS, Rpc, endless_chat, read_delta
from tests.support.sdk_batches import (
    CONTROL,
    ENGINE,
    FRONTEND,
    GATEWAY,
    LINES_AT_ONCE,
    POISON,
    assert_totals,
    count_answered,
    kill_process,
    make_chat_line,
    make_lines,
    read_batch,
    start_batch,
    wait_for_batch,
)
from tests.support.services import MODEL, RESTART_RETRIES, Corral, corral_up

pytestmark = pytest.mark.e2e

COMPUTED = (LiveRequest.STATE_PREFILL, LiveRequest.STATE_DECODE)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Corral]:
    """A Corral whose engine can be made to abort. Every test leaves it ready."""
    inference = {"engine.slots": 4, "engine.context_tokens": 1024, "engine.abort_on": POISON}
    control = {"batches.lines_at_once": LINES_AT_ONCE}
    folder = tmp_path_factory.mktemp("server")
    with corral_up(folder, inference=inference, control=control) as corral:
        yield corral


@pytest.fixture
def retrying_client(killed: Corral) -> Iterator[openai.OpenAI]:
    """The SDK with retries, for the server whose processes are killed."""
    with openai.OpenAI(
        base_url=killed.api, api_key="unused", max_retries=RESTART_RETRIES
    ) as connected:
        yield connected


def test_a_batch_is_created_listed_and_read(server: Corral, client: openai.OpenAI) -> None:
    """With the SDK; the output has results and errors."""
    lines = [
        make_chat_line("capital", CAPITAL, ignore_eos=None, temperature=0),
        make_chat_line("hot", temperature="hot"),
    ]
    file = client.files.create(file=("in.jsonl", jsonl(lines)), purpose="batch")
    begun = client.batches.create(
        input_file_id=file.id,
        endpoint="/v1/chat/completions",
        completion_window="24h",
        metadata={"nightly": "yes"},
        extra_body={"output_expires_after": {"anchor": "created_at", "seconds": 3600}},
    )
    wait_for_batch(server, begun.id)
    ended = read_batch(client, begun.id)
    batch, counts = ended.batch, ended.batch.request_counts
    answer = ended.completed["capital"]["response"]["body"]

    assert begun.id.startswith("batch_")
    assert (begun.object, begun.status, begun.endpoint) == ("batch", "validating", CHAT)
    assert (begun.completion_window, begun.metadata) == ("24h", {"nightly": "yes"})
    assert begun.expires_at == begun.created_at + 24 * 3600
    assert (batch.status, batch.model, batch.errors) == ("completed", MODEL, None)
    assert counts is not None
    assert (counts.total, counts.completed, counts.failed) == (2, 1, 1)
    assert batch.in_progress_at
    assert batch.finalizing_at
    assert batch.completed_at
    assert answer["choices"][0]["message"]["content"] == PARIS
    assert batch.usage is not None
    assert batch.usage.total_tokens == answer["usage"]["total_tokens"]
    assert ended.failed["hot"]["response"]["status_code"] == 400
    assert ended.failed["hot"]["response"]["body"]["error"]["param"] == "temperature"
    assert batch.output_file_id is not None
    output = client.files.retrieve(batch.output_file_id)
    assert (output.purpose, output.expires_at) == ("batch_output", output.created_at + 3600)
    assert batch.id in [listed.id for listed in client.batches.list(limit=1)]


@pytest.mark.parametrize("max_tokens", [0, 2])
def test_a_line_has_the_log_probabilities_of_its_prompts(
    server: Corral, client: openai.OpenAI, max_tokens: int
) -> None:
    """With `echo`, as over HTTP, for texts and token ids."""
    prompts: list[Any] = ["The capital of France", [40, 41, 42]]
    for prompt in (*prompts, [prompts[0], "It is"]):
        body = {"prompt": prompt, "echo": True, "logprobs": 2, "max_tokens": max_tokens}
        fields: dict[str, Any] = {"model": MODEL, "temperature": 0, **body}
        begun = start_batch(
            client, [batch_line("a", "/v1/completions", **fields)], endpoint="/v1/completions"
        )
        wait_for_batch(server, begun.id)
        line = read_batch(client, begun.id).completed["a"]["response"]["body"]
        choices: Any = client.completions.create(**fields).choices

        for choice, other in zip(line["choices"], choices, strict=True):
            logprobs, expected = choice["logprobs"], other.logprobs
            assert choice["text"] == other.text
            assert logprobs["tokens"] == expected.tokens
            assert logprobs["token_logprobs"][0] is None
            assert logprobs["token_logprobs"][1:] == pytest.approx(
                expected.token_logprobs[1:], abs=0.05
            )


def test_errors_of_an_input_file_have_line_numbers(server: Corral, client: openai.OpenAI) -> None:
    """In the batch's errors, like OpenAI's."""
    begun = start_batch(
        client,
        [make_chat_line("a"), make_chat_line("a"), batch_line("b", "/v1/embeddings", input="x")],
    )
    wait_for_batch(server, begun.id)
    batch = client.batches.retrieve(begun.id)

    assert batch.status == "failed"
    assert batch.failed_at
    assert batch.errors is not None
    assert [(error.line, error.code, error.param) for error in batch.errors.data or []] == [
        (2, "duplicate_custom_id", "custom_id"),
        (3, "invalid_url", "url"),
    ]


def test_a_batch_can_be_cancelled(server: Corral, client: openai.OpenAI) -> None:
    """Results are kept, the other lines are reported as cancelled. A finished one stays."""
    begun = start_batch(client, [make_chat_line(f"{n}", max_tokens=2000) for n in range(8)])
    cancelling = client.batches.cancel(begun.id)
    wait_for_batch(server, begun.id)
    ended = read_batch(client, begun.id)
    batch = start_batch(client, [])
    wait_for_batch(server, batch.id)
    with pytest.raises(openai.BadRequestError, match="status 'failed'"):
        client.batches.cancel(batch.id)
    with pytest.raises(openai.NotFoundError, match="No such Batch object"):
        client.batches.retrieve(f"{begun.id[:-4]}0000")

    assert cancelling.status == "cancelling"
    assert ended.batch.status == "cancelled"
    assert {line["error"]["code"] for line in ended.failed.values()} <= {"batch_cancelled"}


async def test_interactive_requests_preempt_batch_lines(
    server: Corral, client: openai.OpenAI, rpc: Rpc
) -> None:
    """With all slots and the queue full of lines, a chat gets its first token before a waiting line
    starts. A running line is preempted and resumes afterwards."""
    slots = 4
    begun = start_batch(client, [make_chat_line(f"{n}", max_tokens=3000) for n in range(3 * slots)])
    running, waiting = await live_lines(rpc, running=slots)
    while len(waiting) < 2 * slots:
        running, waiting = await live_lines(rpc, running=slots)
    chat = rpc.inference.Chat(endless_chat())
    await read_delta(chat)
    still_running, still_waiting = await live_lines(rpc)
    chat.cancel()
    resumed, _ = await live_lines(rpc, running=slots)
    client.batches.cancel(begun.id)
    wait_for_batch(server, begun.id)

    assert len(running) == slots
    assert still_running < running
    assert still_waiting == waiting | (running - still_running)
    assert resumed == running


async def live_lines(rpc: Rpc, *, running: int = 0) -> tuple[set[str], set[str]]:
    """Return the running and waiting batch lines, once at least `running` are running."""
    while True:
        requests = (await rpc.engine.ListRequests(engine_pb.ListRequestsRequest())).requests
        lines = [line for line in requests if line.priority == generation_pb2.PRIORITY_BATCH]
        computed = {
            line.request_id
            for line in lines
            if any(choice.state in COMPUTED for choice in line.choices)
        }
        if len(computed) >= running:
            return computed, {line.request_id for line in lines} - computed


def test_fault_injection_is_off_by_default(client: openai.OpenAI) -> None:
    """The stop text that would abort the engine has no effect."""
    answer = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": CAPITAL}], temperature=0, stop=[POISON]
    )

    assert answer.choices[0].message.content == PARIS


# --- kills ----------------------------------------------------------------------------------------


def test_after_kills_only_lines_in_flight_are_recomputed(
    killed: Corral, retrying_client: openai.OpenAI
) -> None:
    """Every line is in the output once."""
    before = count_answered(killed)
    batch = start_batch(retrying_client, make_lines(60))
    for completed, command in ((10, CONTROL), (25, ENGINE), (40, CONTROL)):
        wait_for_batch(killed, batch.id, completed)
        kill_process(killed, command)
    wait_for_batch(killed, batch.id)
    ended = read_batch(retrying_client, batch.id)
    answered = count_answered(killed) - before

    assert (ended.batch.status, ended.failed) == ("completed", {})
    assert sorted(ended.completed) == [line["custom_id"] for line in make_lines(60)]
    assert 60 <= answered <= 60 + 2 * 2 * LINES_AT_ONCE
    assert_totals(ended)


def test_a_batch_continues_after_frontend_and_gateway_are_killed(
    killed: Corral, retrying_client: openai.OpenAI
) -> None:
    """Every line is in the output once."""
    program, mark = killed.program, killed.program.bookmark()
    batch = start_batch(retrying_client, make_lines(40))
    wait_for_batch(killed, batch.id, 10)
    kill_process(killed, GATEWAY)
    kill_process(killed, FRONTEND)
    wait_for_batch(killed, batch.id)
    program.wait_for_line("gateway is back", after=mark)
    ended = read_batch(retrying_client, batch.id)

    assert (ended.batch.status, ended.failed) == ("completed", {})
    assert len(ended.completed) == 40
    assert_totals(ended)


def test_a_request_that_aborts_the_engine_fails_alone(
    killed: Corral, retrying_client: openai.OpenAI
) -> None:
    """One error line, results for all others, at most three aborted engines."""
    mark = killed.program.bookmark()
    lines = make_lines(40)
    lines[20] = make_chat_line("line-020", stop=[POISON])
    batch = start_batch(retrying_client, lines)
    wait_for_batch(killed, batch.id)
    ended = read_batch(retrying_client, batch.id)
    deaths = [line for line in killed.program.stderr[mark:] if "engine process ended" in line.text]

    assert (ended.batch.status, len(ended.completed)) == ("completed", 39)
    assert list(ended.failed) == ["line-020"]
    assert ended.failed["line-020"]["error"]["code"] == "engine_crashed"
    assert len(deaths) == 3
