"""The service by which routers use engines, `vllm.grpc.engine.VllmEngine`, by its own stub."""

import hashlib
import io
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any, Final
from zipfile import ZipFile

import grpc
import pytest
from corral.inference.v1 import generation_pb2
from corral.inference.v1 import inference_service_pb2 as inference_pb
from smg_grpc_proto.generated import common_pb2
from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from inference_svc.models.sources import BUNDLED_PATH
from svc_kit.auth.keys import create_key, hash_key
from svc_kit.auth.scopes import VLLM_METHODS
from tests.support.engine_log import FREED, assert_freed_at_once
from tests.support.engine_stand_in import run_engine
from tests.support.rpc import Rpc, connect, parse_error, read_error
from tests.support.services import MODEL, Corral, Inference, run_inference
from tests.support.smg import vllm_stub
from tools.demo_model.export_hf import export_tokenizer

pytestmark = pytest.mark.e2e

Metadata = tuple[tuple[str, str], ...]
CONTEXT_TOKENS: Final = 4096
PROJECTS: Final = {name: create_key() for name in ("mine", "yours", "other-model")}
MINE, YOURS, OTHER_MODEL = ((("authorization", f"Bearer {key}"),) for key in PROJECTS.values())
UNSERVED: Final = {"FlushCache", "StartProfile", "StopProfile", "SubscribeKvEvents"}
SAYS: Final = "The cat sat on the mat."
PROMPT: Final = "The capital of France"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    export_tokenizer(BUNDLED_PATH, folder)
    return folder


@pytest.fixture(scope="module")
def inference(tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inference]:
    """A service with a key for each project; that of one may not use the model."""
    keys = [
        {"name": name, "project": name, "sha256": hash_key(key), "scopes": ["inference", "admin"]}
        for name, key in PROJECTS.items()
    ]
    keys[-1] |= {"models": ["another"], "scopes": ["generate"]}
    settings: dict[str, Any] = {
        "engine.context_tokens": CONTEXT_TOKENS,
        "vllm_engine.enabled": True,
        "vllm_engine.tokenizer": str(tokenizer),
        "keys": keys,
    }
    with run_inference(tmp_path_factory.mktemp("vllm-engine"), settings) as running:
        yield running


@pytest.fixture
async def rpc(inference: Inference) -> AsyncIterator[Rpc]:
    async with connect(inference.target) as connected:
        yield connected


@pytest.fixture
def stub(rpc: Rpc) -> Any:
    return vllm_stub(rpc.channel)


def make_request(
    prompt: str | Sequence[int] = PROMPT,
    *,
    request_id: str = "one",
    stream: bool = False,
    **params: Any,
) -> pb.GenerateRequest:
    request = pb.GenerateRequest(
        request_id=request_id,
        stream=stream,
        sampling_params=pb.SamplingParams(**{"temperature": 0, "max_tokens": 8, **params}),
    )
    if isinstance(prompt, str):
        request.text = prompt
    else:
        request.tokenized.input_ids.extend(prompt)
    return request


async def generate(stub: Any, *prompt: Any, **params: Any) -> list[pb.GenerateResponse]:
    return [each async for each in stub.Generate(make_request(*prompt, **params), metadata=MINE)]


def endless(request_id: str) -> pb.GenerateRequest:
    """A request that goes on for seconds."""
    return make_request(request_id=request_id, stream=True, ignore_eos=True, max_tokens=2000)


async def test_the_tokens_are_those_of_the_other_service(stub: Any, rpc: Rpc) -> None:
    """With ids and with text, as a stream and as a whole."""
    own = inference_pb.GenerateRequest(text=PROMPT, parse_special=True)
    own.options.sampling.MergeFrom(_greedy())
    own.options.stopping.max_tokens = 8
    own.options.output.MergeFrom(
        generation_pb2.OutputOptions(token_ids=True, prompt_token_ids=True)
    )
    events = [each async for each in rpc.inference.Generate(own, metadata=MINE)]
    prompt = list(events[0].accepted.prompt_token_ids)
    expected = [token for event in events for token in event.delta.token_ids]

    whole = await generate(stub)
    streamed = await generate(stub, prompt, stream=True)

    assert [each.WhichOneof("response") for each in whole] == ["complete"]
    assert list(whole[0].complete.output_ids) == expected
    assert whole[0].complete.prompt_tokens == len(prompt)
    assert whole[0].complete.completion_tokens == len(expected)
    assert [token for each in streamed for token in each.chunk.token_ids] == expected
    assert list(streamed[-1].complete.output_ids) == expected
    assert streamed[-1].complete.finish_reason == whole[0].complete.finish_reason == "stop"


def _greedy() -> Any:
    request = inference_pb.GenerateRequest()
    request.options.sampling.temperature = 0
    return request.options.sampling


async def test_choices_are_told_apart_by_their_index(stub: Any) -> None:
    responses = await generate(
        stub, stream=True, n=2, temperature=1, seed=5, ignore_eos=True, max_tokens=6
    )

    completes = {e.complete.index: e.complete for e in responses if e.HasField("complete")}
    assert completes.keys() == {0, 1}
    for index, complete in completes.items():
        chunks = [e.chunk for e in responses if e.HasField("chunk") and e.chunk.index == index]
        assert [t for chunk in chunks for t in chunk.token_ids] == list(complete.output_ids)
        assert (complete.finish_reason, complete.completion_tokens) == ("length", 6)
    assert completes[0].output_ids != completes[1].output_ids


async def test_a_repeated_prompt_is_cached_and_says_so(stub: Any) -> None:
    prompt = "word " * 200
    await generate(stub, prompt, max_tokens=1)
    (again,) = await generate(stub, prompt, max_tokens=1)

    assert again.complete.cached_tokens > again.complete.prompt_tokens / 2


async def test_a_constraint_holds_from_the_first_token(stub: Any, rpc: Rpc) -> None:
    choice = pb.ChoiceConstraint(choices=["zebra"])
    (response,) = await generate(stub, choice=choice, max_tokens=20)

    ids = inference_pb.DetokenizeRequest(token_ids=response.complete.output_ids)
    answer = await rpc.inference.Detokenize(ids, metadata=MINE)
    assert answer.text == "zebra"


async def test_an_abort_ends_a_request_of_the_same_project(stub: Any) -> None:
    """Its stream ends with what there is, as in vLLM. Others go on."""
    ends, goes_on = (stub.Generate(endless(name), metadata=MINE) for name in ("ends", "goes-on"))
    for stream in (ends, goes_on):
        await anext(aiter(stream))

    await stub.Abort(pb.AbortRequest(request_ids=["goes-on"]), metadata=YOURS)
    await stub.Abort(pb.AbortRequest(request_ids=["unknown", "", "ends"]), metadata=MINE)
    aborted, other = [[each async for each in stream][-1] for stream in (ends, goes_on)]

    assert aborted.complete.finish_reason == "abort"
    assert aborted.complete.completion_tokens == len(aborted.complete.output_ids) > 0
    assert other.complete.finish_reason == "length"


async def test_a_client_that_leaves_frees_its_slot(inference: Inference, stub: Any) -> None:
    mark = inference.program.bookmark()
    stream = stub.Generate(endless("gone"), metadata=MINE)
    await anext(aiter(stream))
    stream.cancel()
    freed = await inference.program.line(FREED, after=mark, service="engine")

    assert_freed_at_once(freed, "decode")


async def test_a_call_is_logged_with_its_key_and_tokens(inference: Inference, stub: Any) -> None:
    """What is logged is what usage counts."""
    mark = inference.program.bookmark()
    (response,) = await generate(stub)
    counts = {name: getattr(response.complete, name) for name in ("prompt_tokens", "cached_tokens")}

    assert await inference.program.line(
        "call ended",
        after=mark,
        method="/vllm.grpc.engine.VllmEngine/Generate",
        key="mine",
        model=MODEL,
        completion_tokens=response.complete.completion_tokens,
        **counts,
    )


async def test_an_upstream_is_served_as_a_local_model_is(tmp_path: Path) -> None:
    with run_engine("llama_server", SAYS) as engine:
        upstream = {"urls": [engine.url], "tokenizer": "bundled"}
        settings = {"upstreams": {"big": upstream}, "vllm_engine.enabled": True}
        with run_inference(tmp_path, settings) as inference:
            async with connect(inference.target) as rpc:
                stub = vllm_stub(rpc.channel)
                info = await stub.GetModelInfo(pb.GetModelInfoRequest(), wait_for_ready=True)
                stream = stub.Generate(make_request(max_tokens=40))
                (response,) = [each async for each in stream]
                ids = inference_pb.DetokenizeRequest(token_ids=response.complete.output_ids)
                answer = await rpc.inference.Detokenize(ids)

    assert (info.served_model_name, answer.text) == ("big", SAYS)
    assert info.model_path == ""  # else routers would not use the tokenizer that they are told


async def test_an_embedding_is_that_of_the_other_service(stub: Any, rpc: Rpc) -> None:
    ids = [1, 2, 3]
    tokens = inference_pb.TextOrTokens(token_ids=inference_pb.TokenIds(ids=ids))
    request = pb.EmbedRequest(request_id="e", tokenized=pb.TokenizedInput(input_ids=ids))
    own = await rpc.inference.Embed(
        inference_pb.EmbedRequest(model=MODEL, inputs=[tokens]), metadata=MINE
    )

    answer = await stub.Embed(request, metadata=MINE)

    assert list(answer.embedding) == pytest.approx(list(own.embeddings[0].values), abs=1e-4)
    assert (answer.embedding_dim, answer.prompt_tokens) == (len(answer.embedding), 3)


async def test_the_model_and_the_server_are_described(stub: Any) -> None:
    health = await stub.HealthCheck(pb.HealthCheckRequest(), metadata=MINE)
    model = await stub.GetModelInfo(pb.GetModelInfoRequest(), metadata=MINE)
    server = await stub.GetServerInfo(pb.GetServerInfoRequest(), metadata=MINE)
    loads = await stub.GetLoads(pb.GetLoadsRequest(dp_rank=0), metadata=MINE)

    assert (health.healthy, health.message) == (True, "the model is ready")
    assert (model.served_model_name, model.model_path) == (MODEL, MODEL)
    assert model.is_generation
    assert (model.max_context_length, model.vocab_size) == (CONTEXT_TOKENS, 2048)
    assert list(model.eos_token_ids) == [2041, 2039]
    assert (server.max_num_seqs, server.data_parallel_size) == (2, 1)
    assert server.constrained_decoding_start == "first_token"
    assert (loads.dp_rank_count, loads.loads[0].max_running_requests) == (1, 2)
    assert loads.loads[0].max_total_num_tokens == 2 * CONTEXT_TOKENS
    other_rank = await stub.GetLoads(pb.GetLoadsRequest(dp_rank=1), metadata=MINE)
    assert not other_rank.loads


async def test_the_tokenizer_is_streamed_with_its_digest(stub: Any, tokenizer: Path) -> None:
    request = common_pb2.GetTokenizerRequest()
    chunks = [each async for each in stub.GetTokenizer(request, metadata=MINE)]

    data = b"".join(each.data for each in chunks)
    assert [each.sha256 for each in chunks[:-1]] == [""] * (len(chunks) - 1)
    assert chunks[-1].sha256 == hashlib.sha256(data).hexdigest()
    with ZipFile(io.BytesIO(data)) as archive:
        assert archive.read("tokenizer.json") == (tokenizer / "tokenizer.json").read_bytes()


@pytest.mark.parametrize(
    ("request_", "code", "reason", "field"),
    [
        (
            make_request([1] * CONTEXT_TOKENS),
            "INVALID_ARGUMENT",
            "CONTEXT_LENGTH_EXCEEDED",
            "input",
        ),
        (make_request([4000]), "INVALID_ARGUMENT", "TOKEN_OUT_OF_VOCABULARY", "input"),
        (make_request(json_schema="{"), "INVALID_ARGUMENT", "SCHEMA_INVALID", "json_schema"),
        (
            make_request(structural_tag="{}"),
            "INVALID_ARGUMENT",
            "UNSUPPORTED_FIELD",
            "structural_tag",
        ),
        (make_request(logprobs=21), "INVALID_ARGUMENT", "OUT_OF_RANGE", "logprobs"),
    ],
    ids=["length", "vocabulary", "schema", "unsupported", "range"],
)
async def test_a_refusal_names_the_field_of_the_contract(
    stub: Any, request_: pb.GenerateRequest, code: str, reason: str, field: str
) -> None:
    error = await read_error(stub.Generate(request_, metadata=MINE))

    assert (error.code.name, error.reason) == (code, reason)
    assert error.metadata["field"] == field


async def test_every_method_needs_a_key_that_may_use_the_model(rpc: Rpc) -> None:
    for path, options in VLLM_METHODS.items():
        name = path.rpartition("/")[2]
        for metadata, wanted in (((), "UNAUTHENTICATED"), (OTHER_MODEL, "PERMISSION_DENIED")):
            if metadata and (name in UNSERVED or options.scope.value == "known" or name == "Abort"):
                continue
            assert await outcome(rpc, path, metadata) == wanted, (name, wanted)


async def test_methods_that_are_not_served_are_refused_by_name(rpc: Rpc) -> None:
    for name in UNSERVED:
        assert await outcome(rpc, f"/vllm.grpc.engine.VllmEngine/{name}", MINE) == "UNIMPLEMENTED"


async def test_the_service_is_off_by_default(up: Corral) -> None:
    async with connect(up.target) as rpc:
        outcomes = {await outcome(rpc, path, ()) for path in VLLM_METHODS}

    assert outcomes == {"UNIMPLEMENTED"}


async def outcome(rpc: Rpc, path: str, metadata: Metadata) -> str:
    """The code of a call; its request is one that all methods with fields accept."""
    tokens = pb.TokenizedInput(input_ids=[1])
    raw = pb.EmbedRequest(tokenized=tokens).SerializeToString()
    is_generate = path.endswith("/Generate")
    call: Any = rpc.channel.unary_stream(path)
    request = make_request([1]).SerializeToString() if is_generate else raw
    try:
        async for _ in call(request, metadata=metadata, timeout=30):
            pass
    except grpc.aio.AioRpcError as error:
        return parse_error(error).code.name
    return "OK"
