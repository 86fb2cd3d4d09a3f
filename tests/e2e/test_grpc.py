"""The RPCs of the inference service with a plain gRPC client."""

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import grpc
import pytest
from corral.inference.v1 import engine_service_pb2 as engine_pb
from corral.inference.v1 import generation_pb2
from corral.inference.v1 import inference_service_pb2 as pb
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message_factory import GetMessageClass

from tests.e2e.conftest import CONTEXT_TOKENS, ODD_NAME
from tests.support.rpc import (
    CAPITAL,
    PARIS,
    Rpc,
    call_error,
    endless_chat,
    gather,
    make_chat,
    make_completion,
    read_delta,
    read_error,
    user,
)
from tests.support.services import MODEL, Corral

pytestmark = pytest.mark.e2e

LISTS = [
    method
    for module in (pb, engine_pb)
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
    if method.name.startswith("List")
]
TURN = f"<|im_start|>user\n{CAPITAL}<|im_end|>\n<|im_start|>assistant\n"
"""The question rendered with the demo model's template."""


# --- generating -----------------------------------------------------------------------------------


async def test_chat_streams_events_in_order(rpc: Rpc) -> None:
    """Accepted, started, deltas, finished with a reason, then usage once."""
    answer = await rpc.chat(make_chat())

    assert answer.text[0] == PARIS
    assert answer.kinds[:2] == ["accepted", "started"]
    assert answer.kinds[-2:] == ["finished", "done"]
    assert set(answer.kinds[2:-2]) == {"delta"}
    assert answer.accepted.model == MODEL
    assert answer.accepted.request_id.startswith("req_")
    assert answer.finished[0].reason == generation_pb2.FINISH_REASON_STOP
    assert answer.finished[0].HasField("stop_token_id")
    usage = answer.done.usage
    assert usage.prompt_tokens == answer.accepted.prompt_tokens
    assert usage.completion_tokens == answer.finished[0].completion_tokens > 5


async def test_a_long_answer_is_streamed_in_many_deltas(rpc: Rpc) -> None:
    """A short one may be a single delta, because output is batched briefly."""
    story = make_chat(user("Tell me a story."), stopping={"max_tokens": 1000, "ignore_eos": True})
    answer = await rpc.chat(story)

    assert answer.kinds.count("delta") > 2


async def test_generate_continues_text_and_token_ids_alike(rpc: Rpc) -> None:
    """Both forms of the prompt get the same answer."""
    tokens = await rpc.inference.Tokenize(pb.TokenizeRequest(text=TURN, parse_special=True))
    as_ids = make_completion("")
    as_ids.token_ids.ids.extend(tokens.token_ids)
    from_text, from_ids = await rpc.generate(make_completion(TURN)), await rpc.generate(as_ids)

    assert from_text.text[0] == from_ids.text[0] == PARIS
    assert from_ids.accepted.prompt_tokens == len(tokens.token_ids)


async def test_a_stop_string_ends_the_choice_and_is_not_sent(rpc: Rpc) -> None:
    """Also if it spans parts of several tokens."""
    answer = await rpc.chat(make_chat(stopping={"stop": ["tal of Fr"]}))

    assert answer.text[0] == "The capi"
    assert answer.finished[0].stop_text == "tal of Fr"


async def test_choices_of_a_seeded_request_are_reproducible(rpc: Rpc) -> None:
    """They differ from one another."""
    request = make_chat(
        user("Tell me a story."),
        sampling={"temperature": 1.5, "seed": 7, "top_k": 0, "top_p": 1, "min_p": 0},
        stopping={"max_tokens": 12, "ignore_eos": True},
        num_choices=3,
    )
    first, second = await rpc.chat(request), await rpc.chat(request)

    assert len(set(first.text.values())) == 3
    assert first.text == second.text
    assert first.accepted.seed == 7
    assert first.done.usage.completion_tokens == 36


async def test_logprobs_have_the_chosen_and_the_top_tokens(rpc: Rpc) -> None:
    """Greedy decoding chooses the top one; probabilities sum to at most 1."""
    answer = await rpc.chat(make_chat(output={"top_logprobs": 3, "token_ids": True}))
    logprobs = answer.logprobs[0]

    # The end token is hidden.
    assert [entry.chosen.token_id for entry in logprobs] == answer.tokens[0][:-1]
    assert b"".join(entry.chosen.token for entry in logprobs) == PARIS.encode()
    assert all(len(entry.top) == 3 for entry in logprobs)
    assert all(entry.top[0].token_id == entry.chosen.token_id for entry in logprobs)
    assert all(-5 < entry.chosen.logprob <= 0 for entry in logprobs)


@pytest.mark.parametrize("temperature", [0.0, 1.2])
async def test_a_resumed_stream_continues_identically(rpc: Rpc, temperature: float) -> None:
    """It needs only the output token ids so far and the seed."""
    settings: dict[str, Any] = {
        "sampling": {
            "temperature": temperature,
            "seed": 11,
            # The effect of these depends on all earlier tokens.
            "frequency_penalty": 1.5,
            "repetition_penalty": 1.3,
        },
        "stopping": {"max_tokens": 40, "ignore_eos": True},
        "output": {"token_ids": True},
    }
    full = await rpc.chat(make_chat(user("Tell me a story."), **settings))
    for cut in (1, 17, 39):
        so_far = generation_pb2.ResumedChoice(output_token_ids=full.tokens[0][:cut])
        tail = await rpc.chat(make_chat(user("Tell me a story."), resume=[so_far], **settings))

        assert tail.tokens[0] == full.tokens[0][cut:]
        assert full.text[0].endswith(tail.text[0])
        assert tail.finished[0].completion_tokens == 40


# --- tokens and prompts ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["Hello, world!\n", "Grüße, 世界 🐎", "  tabs\tand  spaces ", "<|im_end|> as text", ""]
)
async def test_tokenize_and_detokenize_are_inverse(rpc: Rpc, text: str) -> None:
    tokens = await rpc.inference.Tokenize(pb.TokenizeRequest(text=text, pieces=True))
    back = await rpc.inference.Detokenize(pb.DetokenizeRequest(token_ids=tokens.token_ids))

    assert back.text == text
    assert b"".join(tokens.pieces).decode() == text


async def test_counted_tokens_are_those_of_the_prompt(rpc: Rpc) -> None:
    """CountTokens, RenderChat and Accepted agree, for conversations and texts."""
    request = make_chat(user("How are you, my 🐎?"), stopping={"max_tokens": 1})
    counted = await rpc.inference.CountTokens(
        pb.CountTokensRequest(conversation=request.conversation)
    )
    rendered = await rpc.inference.RenderChat(
        pb.RenderChatRequest(conversation=request.conversation)
    )
    accepted = (await rpc.chat(request)).accepted
    as_text = await rpc.inference.CountTokens(pb.CountTokensRequest(text=CAPITAL))
    raw = make_completion(CAPITAL, stopping={"max_tokens": 1})
    raw.parse_special = False

    assert counted.prompt_tokens == len(rendered.token_ids) == accepted.prompt_tokens
    assert as_text.prompt_tokens == (await rpc.generate(raw)).accepted.prompt_tokens


async def test_a_chat_is_rendered_with_the_template(rpc: Rpc) -> None:
    """That of the demo model, with the generation prompt."""
    rendered = await rpc.inference.RenderChat(
        pb.RenderChatRequest(conversation=make_chat().conversation)
    )

    assert rendered.text == TURN


# --- models and load ------------------------------------------------------------------------------


@pytest.mark.parametrize("method", LISTS, ids=lambda method: method.name)
async def test_a_list_refuses_tokens_that_are_not_its_own(
    rpc: Rpc, method: MethodDescriptor
) -> None:
    """Forged ones, and that of another list."""
    page = await rpc.inference.ListModels(pb.ListModelsRequest(page_size=1))
    stub = rpc.inference if method.name == "ListModels" else rpc.engine
    forged = f"{page.next_page_token[:-4]}AAAA"
    for token in {"1", "é", forged, page.next_page_token} - {
        page.next_page_token if method.name == "ListModels" else ""
    }:
        request = GetMessageClass(method.input_type)(page_token=token)
        error = await call_error(getattr(stub, method.name)(request))
        assert (error.reason, error.metadata["field"]) == ("INVALID_FIELD", "page_token")


async def test_models_are_listed_in_pages_and_described(rpc: Rpc) -> None:
    """Sorted by name, with their effective limits."""
    first = await rpc.inference.ListModels(pb.ListModelsRequest(page_size=1))
    second = await rpc.inference.ListModels(pb.ListModelsRequest(page_token=first.next_page_token))
    model = (await rpc.inference.GetModel(pb.GetModelRequest())).model

    assert [first.models[0].name, *(m.name for m in second.models)] == [ODD_NAME, MODEL]
    assert not second.next_page_token
    assert model.name == MODEL, "an empty name means the server's first model"
    assert (model.requested_limits.slots, model.resolved_limits.slots) == (4, 4)
    assert model.resolved_limits.context_tokens == CONTEXT_TOKENS
    assert model.resolved_limits.kv_bytes > 0
    assert (model.vocabulary_size, model.architecture) == (2048, "llama")
    assert model.chat_template_source == "gguf"
    assert model.default_sampling.HasField("temperature")


async def test_the_server_info_is_complete(rpc: Rpc) -> None:
    """Version, state and process of the engine, and request limits."""
    info = await rpc.engine.GetServerInfo(engine_pb.GetServerInfoRequest())

    assert info.version
    assert info.engine_state == engine_pb.ENGINE_STATE_SERVING
    assert info.engine_pid > 0
    assert info.limits.queued_requests > 0
    assert "resume" in info.features


async def test_watched_load_shows_a_request(rpc: Rpc) -> None:
    interval = Duration(nanos=100_000_000)
    watch = rpc.engine.WatchLoad(engine_pb.WatchLoadRequest(interval=interval), timeout=20)
    loads = watch.__aiter__()
    before = (await anext(loads)).load
    stream = rpc.inference.Chat(endless_chat())
    await read_delta(stream)
    running = (await anext(loads)).load
    while running.num_running == 0:
        running = (await anext(loads)).load
    stream.cancel()
    after = (await anext(loads)).load
    while after.num_running:
        after = (await anext(loads)).load
    watch.cancel()

    assert before.num_slots == 8, "two models of four slots"
    assert after.num_steps > before.num_steps
    assert after.completion_tokens_total > before.completion_tokens_total


@pytest.mark.parametrize(
    "interval", [Duration(nanos=1_000_000), Duration(seconds=10**15)], ids=["short", "long"]
)
async def test_an_interval_out_of_range_is_refused(rpc: Rpc, interval: Duration) -> None:
    """Including durations that Python's timedelta cannot represent."""
    request = engine_pb.WatchLoadRequest(interval=interval)
    error = await read_error(rpc.engine.WatchLoad(request, timeout=10))

    assert (error.reason, error.metadata["field"]) == ("OUT_OF_RANGE", "interval")
    assert error.metadata["minimum"] == "0.1"


# --- live requests --------------------------------------------------------------------------------


async def test_a_live_request_is_listed_and_can_be_aborted(rpc: Rpc) -> None:
    """By the id of `Accepted`. Its stream has the reason; a second abort has no effect."""
    request = endless_chat()
    request.options.label = "mine"
    stream = rpc.inference.Chat(request)
    request_id = await read_delta(stream)
    listed = await rpc.engine.ListRequests(engine_pb.ListRequestsRequest())
    abort = engine_pb.AbortRequest(request_ids=[request_id, "req_unknown"])
    outcomes = (await rpc.engine.Abort(abort)).outcomes
    ended = await read_error(stream)
    again = (await rpc.engine.Abort(abort)).outcomes

    (entry,) = [live for live in listed.requests if live.request_id == request_id]
    assert (entry.label, entry.model, entry.project) == ("mine", MODEL, "default")
    assert entry.choices[0].HasField("slot")
    assert [outcome.kind for outcome in outcomes] == [
        engine_pb.AbortOutcome.KIND_ABORTED,
        engine_pb.AbortOutcome.KIND_NOT_RUNNING,
    ]
    assert ended.code is grpc.StatusCode.CANCELLED
    assert ended.reason == "ABORTED_BY_OPERATOR"
    assert again[0].kind == engine_pb.AbortOutcome.KIND_NOT_RUNNING


async def test_a_deadline_ends_the_call_and_frees_the_slot(rpc: Rpc, up: Corral) -> None:
    """The server logs its end: as expired, or as cancelled by the client, whose deadline is the
    same."""
    mark = up.program.bookmark()
    started = time.monotonic()
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await gather(rpc.inference.Chat(endless_chat(), timeout=0.5))
    took = time.monotonic() - started
    chat = "/corral.inference.v1.InferenceService/Chat"
    await up.program.line("call ended", after=mark, method=chat)
    await wait_until_idle(rpc)

    assert failure.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert took > 0.4


async def wait_until_idle(rpc: Rpc) -> None:
    """Return when no request is live. Each poll is an RPC."""
    async with asyncio.timeout(50):
        while (await rpc.engine.ListRequests(engine_pb.ListRequestsRequest())).requests:
            pass


async def test_flushing_clears_the_prefix_cache(rpc: Rpc) -> None:
    """The second request reuses its prefix, the one after a flush does not."""

    async def cached() -> generation_pb2.Usage:
        return (
            await gather(rpc.inference.Chat(make_chat(user("Tell me of foxes. " * 9))))
        ).done.usage

    before = await cached()
    again = await cached()
    flushed = await rpc.engine.FlushCache(engine_pb.FlushCacheRequest())
    after = await cached()

    assert again.cached_tokens == before.prompt_tokens - 1
    assert again.cache_source == generation_pb2.CACHE_SOURCE_SLOT
    assert flushed.num_tokens >= before.prompt_tokens
    assert (after.cached_tokens, after.cache_source) == (0, 0)


# --- errors ---------------------------------------------------------------------------------------


FAILING: Mapping[str, tuple[pb.ChatRequest, grpc.StatusCode, str]] = {
    "unknown model": (
        pb.ChatRequest(model="gpt-9", conversation=make_chat().conversation),
        grpc.StatusCode.NOT_FOUND,
        "MODEL_NOT_FOUND",
    ),
    "no messages": (pb.ChatRequest(), grpc.StatusCode.INVALID_ARGUMENT, "MISSING_FIELD"),
    "label": (make_chat(label="x" * 257), grpc.StatusCode.INVALID_ARGUMENT, "TOO_LONG"),
}


@pytest.mark.parametrize("case", FAILING)
async def test_every_error_has_its_reason_and_the_request_id(rpc: Rpc, case: str) -> None:
    """ErrorInfo with Corral's domain, the request id of the log, and a message."""
    request, code, reason = FAILING[case]
    error = await read_error(rpc.inference.Chat(request))

    assert (error.code, error.reason, error.domain) == (code, reason, "corral")
    assert error.request_id.startswith("req_")
    assert error.message


async def test_the_request_id_is_generated_by_the_server(rpc: Rpc, up: Corral) -> None:
    """A caller's id is only logged. The server's id is in the initial and trailing metadata."""
    mark = up.program.bookmark()
    call = rpc.inference.Chat(make_chat(), metadata=(("x-request-id", "mine-17"),))
    answer = await gather(call)
    initial, trailing = dict(await call.initial_metadata()), dict(await call.trailing_metadata())
    await up.program.line("call ended", after=mark, caller_request_id="mine-17")
    lines = [each.fields for each in up.program.stderr[mark:]]
    (line,) = [each for each in lines if each.get("caller_request_id") == "mine-17"]

    assert line["model"] == answer.accepted.model
    assert line["completion_tokens"] == answer.done.usage.completion_tokens
    assert 0 <= line["queue_ms"] <= line["first_token_ms"] <= line["duration_ms"]
    assert answer.accepted.request_id.startswith("req_")
    assert initial["x-request-id"] == trailing["x-request-id"] == answer.accepted.request_id
