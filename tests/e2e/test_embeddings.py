"""Embeddings over gRPC and HTTP with an encoder and the demo model."""

import asyncio
import os
import signal
import time
from collections.abc import Iterator, Mapping
from typing import Any

import grpc
import numpy as np
import openai
import pytest
from corral.inference.v1 import engine_service_pb2 as engine_pb
from corral.inference.v1 import inference_service_pb2 as pb
from corral.inference.v1 import model_pb2

from tests.support.bert import TEXTS, Bert, random_bert
from tests.support.rpc import (
    PARIS,
    RichError,
    Rpc,
    call_error,
    endless_chat,
    make_chat,
    read_delta,
)
from tests.support.services import MODEL, Corral, corral_up

pytestmark = pytest.mark.e2e

ENCODER = "tiny-encoder"
CLOSE = 2e-3
QUEUED = 3


@pytest.fixture(scope="module")
def bert() -> Bert:
    """The encoder's weights."""
    return random_bert()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, bert: Bert) -> Iterator[Corral]:
    """`corral up` with the demo model and an encoder."""
    folder = tmp_path_factory.mktemp("embeddings")
    encoder = bert.write(folder / "encoder.gguf")
    flags = ("--model", "bundled", "--model", f"{ENCODER}={encoder}")
    sizes = {"engine.context_tokens": 2048, "engine.queued_requests": QUEUED}
    with corral_up(folder, *flags, inference=sizes) as corral:
        yield corral


def texts(*given: str, **fields: Any) -> pb.EmbedRequest:
    return pb.EmbedRequest(inputs=[pb.TextOrTokens(text=text) for text in given], **fields)


def tokens(*given: list[int], **fields: Any) -> pb.EmbedRequest:
    inputs = [pb.TextOrTokens(token_ids=pb.TokenIds(ids=ids)) for ids in given]
    return pb.EmbedRequest(inputs=inputs, **fields)


def vectors(answer: pb.EmbedResponse) -> list[np.ndarray[Any, np.dtype[np.float32]]]:
    return [np.array(each.values, np.float32) for each in answer.embeddings]


async def refusal(rpc: Rpc, request: pb.EmbedRequest, **options: Any) -> RichError:
    return await call_error(rpc.inference.Embed(request, **options))


async def test_vectors_are_those_of_the_reference_implementation(rpc: Rpc, bert: Bert) -> None:
    """In input order, normalized, with token counts. The encoder is the default model."""
    answer = await rpc.inference.Embed(texts(*TEXTS))
    counted = [
        (await rpc.inference.Tokenize(pb.TokenizeRequest(model=ENCODER, text=t, add_special=True)))
        for t in TEXTS
    ]
    ids = [list(each.token_ids) for each in counted]

    assert answer.model == ENCODER
    assert answer.prompt_tokens == sum(map(len, ids))
    for vector, each in zip(vectors(answer), ids, strict=True):
        assert np.abs(vector - bert.embedding(each)).max() < CLOSE
    from_ids = await rpc.inference.Embed(tokens(*ids))
    assert np.allclose(vectors(from_ids), vectors(answer), atol=CLOSE)


async def test_a_response_has_the_digest_of_the_model(rpc: Rpc) -> None:
    """On request; the response waits until the file is hashed."""
    response = await rpc.inference.Embed(texts("a fox", with_digest=True))
    untold = await rpc.inference.Embed(texts("a fox"))
    described = await rpc.inference.GetModel(pb.GetModelRequest(model=ENCODER))

    assert len(response.model_digest) == 64
    assert response.model_digest == described.model.digest
    assert not untold.model_digest


async def test_many_texts_are_counted_in_one_call(rpc: Rpc) -> None:
    """Each like Tokenize does. Not together with a prompt."""
    long_list = [*TEXTS, "", "word " * 5000]
    counted = await rpc.inference.CountTokens(pb.CountTokensRequest(model=ENCODER, texts=long_list))
    each = [
        len((await rpc.inference.Tokenize(pb.TokenizeRequest(model=ENCODER, text=t))).token_ids)
        for t in long_list
    ]
    request = pb.CountTokensRequest(text="a", texts=long_list)
    error = await call_error(rpc.inference.CountTokens(request))

    assert list(counted.text_tokens) == each
    assert counted.prompt_tokens == sum(each)
    assert error.reason == "INVALID_FIELD"


async def test_dimensions_and_normalize_are_applied(rpc: Rpc) -> None:
    """`dimensions` truncates and renormalizes; without `normalize` the vectors are raw."""
    (full,) = vectors(await rpc.inference.Embed(texts("a fox")))
    (short,) = vectors(await rpc.inference.Embed(texts("a fox", dimensions=8)))
    (raw,) = vectors(await rpc.inference.Embed(texts("a fox", normalize=False)))

    assert np.allclose(short, full[:8] / np.linalg.norm(full[:8]), atol=1e-5)
    assert np.linalg.norm(full) == pytest.approx(1, abs=1e-5)
    assert np.linalg.norm(raw) > 1.5
    assert np.allclose(raw / np.linalg.norm(raw), full, atol=1e-5)


async def test_the_demo_model_embeds(rpc: Rpc) -> None:
    """In a separate context; similar texts have closer vectors."""
    answer = await rpc.inference.Embed(
        texts(
            "What is the capital of France?",
            "What is the capital of Spain?",
            "Once upon a time there was a little fox who lived in a forest.",
            model=MODEL,
        )
    )
    first, like, unlike = vectors(answer)

    assert first.shape == (256,)
    assert float(first @ like) > float(first @ unlike) + 0.05


REFUSED: Mapping[str, tuple[pb.EmbedRequest, str, dict[str, str]]] = {
    "no inputs": (texts(), "MISSING_FIELD", {"field": "inputs"}),
    "an empty text": (texts("a", ""), "MISSING_FIELD", {"field": "inputs[1]"}),
    "no tokens": (tokens([]), "MISSING_FIELD", {"field": "inputs[0]"}),
    "too many": (texts(*["a"] * 2049), "TOO_LONG", {"length": "2049", "limit": "2048"}),
    "no dimensions": (texts("a", dimensions=0), "OUT_OF_RANGE", {"field": "dimensions"}),
    "too many dimensions": (texts("a", dimensions=33), "OUT_OF_RANGE", {"maximum": "32"}),
    "a token beyond the vocabulary": (
        tokens([2, 26]),
        "TOKEN_OUT_OF_VOCABULARY",
        {"token": "26", "vocabulary_size": "26"},
    ),
    "a negative token": (tokens([-1]), "TOKEN_OUT_OF_VOCABULARY", {"token": "-1"}),
    "longer than the encoder's positions": (
        tokens([5], [5] * 65),
        "CONTEXT_LENGTH_EXCEEDED",
        {"field": "inputs[1]", "prompt_tokens": "65", "context_tokens": "64"},
    ),
    "a long text": (
        texts("fox " * 5000),
        "CONTEXT_LENGTH_EXCEEDED",
        {"field": "inputs[0]", "context_tokens": "64"},
    ),
    "an unknown model": (texts("a", model="gpt-9"), "MODEL_NOT_FOUND", {"model": "gpt-9"}),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_invalid_inputs_are_refused_with_their_sizes(rpc: Rpc, case: str) -> None:
    """With field and limit, before anything is computed. The next request succeeds."""
    request, reason, details = REFUSED[case]
    error = await refusal(rpc, request)

    assert error.reason == reason
    assert details.items() <= error.metadata.items()
    assert len((await rpc.inference.Embed(texts("a fox"))).embeddings) == 1


async def test_an_encoder_does_not_chat(rpc: Rpc) -> None:
    """The error has the model's class; the model's description has its capabilities."""
    chat = make_chat()
    chat.model = ENCODER
    error = await call_error(rpc.chat(chat))
    shown = (await rpc.inference.GetModel(pb.GetModelRequest(model=ENCODER))).model

    assert error.code is grpc.StatusCode.FAILED_PRECONDITION
    assert (error.reason, error.metadata["model_class"]) == ("MODEL_CANNOT", "encoder")
    assert shown.model_class == model_pb2.MODEL_CLASS_ENCODER
    assert (shown.pooling, shown.resolved_limits.context_tokens) == ("mean", 64)
    assert shown.resolved_limits.kv_bytes == 0


async def test_the_official_client_gets_the_same_vectors(
    rpc: Rpc, aclient: openai.AsyncOpenAI
) -> None:
    """Base64 (the default) and numbers, texts and tokens, truncated dimensions."""
    (over_grpc,) = vectors(await rpc.inference.Embed(texts("the quick fox")))
    ids = (
        await rpc.inference.Tokenize(
            pb.TokenizeRequest(model=ENCODER, text="the quick fox", add_special=True)
        )
    ).token_ids
    packed = await aclient.embeddings.create(model=ENCODER, input="the quick fox")
    plain = await aclient.embeddings.create(
        model=ENCODER, input=["the quick fox", "a cat"], encoding_format="float"
    )
    from_ids = await aclient.embeddings.create(model=ENCODER, input=[list(ids)])
    short = await aclient.embeddings.create(model=ENCODER, input="a dog", dimensions=4)
    demo = await aclient.embeddings.create(model=MODEL, input="a dog")
    with pytest.raises(openai.BadRequestError) as refusal:
        await aclient.embeddings.create(model=ENCODER, input=["a", "fox " * 100])

    for answer in (packed, plain, from_ids):
        assert np.allclose(answer.data[0].embedding, over_grpc, atol=CLOSE)
    assert [each.index for each in plain.data] == [0, 1]
    assert packed.usage.prompt_tokens == packed.usage.total_tokens == len(ids)
    assert len(short.data[0].embedding) == 4
    assert np.linalg.norm(short.data[0].embedding) == pytest.approx(1, abs=1e-5)
    assert len(demo.data[0].embedding) == 256
    assert (refusal.value.param, refusal.value.code) == ("input[1]", "context_length_exceeded")


# --- sharing the engine ---------------------------------------------------------------------------


def large_job(**fields: Any) -> pb.EmbedRequest:
    """Return a request that takes the demo model seconds."""
    return tokens(*[[5 + number % 100] * 400 for number in range(512)], model=MODEL, **fields)


async def list_live_ids(rpc: Rpc) -> list[str]:
    listed = await rpc.engine.ListRequests(engine_pb.ListRequestsRequest())
    return [each.request_id for each in listed.requests]


async def wait_until_live(rpc: Rpc, count: int) -> list[str]:
    """Return the ids once there are `count`. Each poll is an RPC."""
    async with asyncio.timeout(50):
        while len(ids := await list_live_ids(rpc)) != count:
            pass
    return ids


async def test_chat_and_embeddings_share_the_engine(rpc: Rpc) -> None:
    """A chat is answered during a long embedding job, and short jobs during an endless chat."""
    job = asyncio.ensure_future(rpc.inference.Embed(large_job()))
    await wait_until_live(rpc, 1)
    answer = await rpc.chat(make_chat())
    job_was_running = not job.done()
    job.cancel()
    await wait_until_live(rpc, 0)
    stream = rpc.inference.Chat(endless_chat())
    await read_delta(stream)
    started = time.monotonic()
    for _ in range(5):
        await rpc.inference.Embed(texts("a fox", "a dog", model=MODEL))
    took = time.monotonic() - started
    await read_delta(stream)
    stream.cancel()

    assert answer.text[0] == PARIS
    assert job_was_running
    assert took < 50


async def test_a_cancelled_or_expired_call_ends_in_the_engine(rpc: Rpc) -> None:
    """The error of an expired deadline has the phase."""
    job = asyncio.ensure_future(rpc.inference.Embed(large_job()))
    await wait_until_live(rpc, 1)
    job.cancel()
    await wait_until_live(rpc, 0)
    started = time.monotonic()
    await rpc.inference.Embed(texts("a fox", model=MODEL))
    at_once = time.monotonic() - started
    expired = await refusal(rpc, large_job(), timeout=0.3)
    await wait_until_live(rpc, 0)

    assert at_once < 2
    assert expired.code is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_an_operator_sees_and_aborts_a_job(rpc: Rpc) -> None:
    """It is listed with its tokens, and fails with the reason when aborted."""
    job = asyncio.ensure_future(rpc.inference.Embed(large_job()))
    (request_id,) = await wait_until_live(rpc, 1)
    listed = (await rpc.engine.ListRequests(engine_pb.ListRequestsRequest())).requests
    await rpc.engine.Abort(engine_pb.AbortRequest(request_ids=[request_id]))
    error = await call_error(job)

    assert (listed[0].model, listed[0].prompt_tokens) == (MODEL, 512 * 400)
    assert error.reason == "ABORTED_BY_OPERATOR"


async def test_the_queue_of_jobs_is_bounded(rpc: Rpc) -> None:
    """A job beyond the limit is refused with a retry delay; the others complete."""
    jobs = [asyncio.ensure_future(rpc.inference.Embed(large_job())) for _ in range(QUEUED)]
    await wait_until_live(rpc, QUEUED)
    error = await refusal(rpc, texts("a", model=MODEL))
    others = await rpc.inference.Embed(texts("a fox"))
    for job in jobs:
        job.cancel()
    await wait_until_live(rpc, 0)

    assert (error.code, error.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL")
    assert error.retry_after
    assert others.model == ENCODER


async def retry_until_answered(rpc: Rpc, request: pb.EmbedRequest) -> pb.EmbedResponse:
    """Retry until the model's engine is back. Each try is an RPC."""
    async with asyncio.timeout(50):
        while True:
            try:
                return await rpc.inference.Embed(request)
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise


async def test_a_job_whose_engine_is_killed_can_be_retried(rpc: Rpc) -> None:
    """The call fails as UNAVAILABLE with a retry delay."""
    job = asyncio.ensure_future(rpc.inference.Embed(large_job()))
    await wait_until_live(rpc, 1)
    info = await rpc.engine.GetServerInfo(engine_pb.GetServerInfoRequest())
    os.kill(info.engine_pid, signal.SIGKILL)
    error = await call_error(job)
    answer = await retry_until_answered(rpc, texts("a fox", model=MODEL))

    assert (error.code, error.reason) == (grpc.StatusCode.UNAVAILABLE, "ENGINE_RESTARTING")
    assert error.retry_after
    assert len(answer.embeddings) == 1
