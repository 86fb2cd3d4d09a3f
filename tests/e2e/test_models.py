"""Several models: served concurrently, loaded and unloaded during streams."""

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import openai
import pytest
from corral.inference.v1 import engine_service_pb2 as engine_pb
from corral.inference.v1 import inference_service_pb2 as pb
from corral.inference.v1 import model_pb2
from google.protobuf.json_format import MessageToDict

from tests.e2e.conftest import PIRATE_FILE
from tests.support.bert import random_bert
from tests.support.model_kinds import write_model_of_kind
from tests.support.rpc import (
    PARIS,
    Rpc,
    call_error,
    connect,
    endless_chat,
    make_chat,
    make_completion,
    read_delta,
    read_error,
)
from tests.support.services import LONG_CONTEXT, MODEL, Corral, corral_up, run_inference

pytestmark = pytest.mark.e2e

ENGINE = "inference_svc.engine_process.main"
ALIAS, NOISE, ENCODER, MANUAL, SECOND = "gpt-4o", "noise", "tiny-encoder", "by-hand", "second"
TRANSLATOR = "tiny-t5"
VOICE = "pirate"
ON_DEMAND = {"load": "on_demand", "slots": 3, "kv_type_k": "f32"}

State = model_pb2.Model.State


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Corral]:
    """`corral up` with the demo model and models that are loaded on demand."""
    folder = tmp_path_factory.mktemp("models")
    sources = {
        MODEL: "bundled",
        NOISE: write_model_of_kind("window", folder / "noise.gguf"),
        ENCODER: random_bert().write(folder / "encoder.gguf"),
        MANUAL: write_model_of_kind("recurrent", folder / "by-hand.gguf"),
        SECOND: "bundled",
        TRANSLATOR: write_model_of_kind("t5", folder / "t5.gguf"),
    }
    flags = [flag for name, path in sources.items() for flag in ("--model", f"{name}={path}")]
    per_model = {
        MODEL: {"aliases": [ALIAS], "pinned": True},
        NOISE: ON_DEMAND,
        ENCODER: {"load": "on_demand"},
        MANUAL: {"load": "manual"},
        SECOND: {"load": "on_demand", "layout": "unified"},
        TRANSLATOR: {"load": "on_demand", "slots": 3},
    }
    with corral_up(folder, *flags, inference={"per_model": per_model}) as corral:
        yield corral


def noise(model: str = NOISE, **settings: object) -> pb.GenerateRequest:
    """Return a request for a model with random weights."""
    request = make_completion("some words", **settings)
    request.model = model
    return request


def endless_noise() -> pb.GenerateRequest:
    return noise(stopping={"ignore_eos": True})


async def load(rpc: Rpc, model: str, *, wait: bool = True) -> model_pb2.Model:
    answer = await rpc.engine.LoadModel(engine_pb.LoadModelRequest(model=model, wait=wait))
    return answer.model


async def unload(rpc: Rpc, model: str, **options: bool) -> model_pb2.Model:
    answer = await rpc.engine.UnloadModel(engine_pb.UnloadModelRequest(model=model, **options))
    return answer.model


async def get(rpc: Rpc, model: str) -> model_pb2.Model:
    return (await rpc.inference.GetModel(pb.GetModelRequest(model=model))).model


async def wait_until_ready(rpc: Rpc, model: str) -> None:
    watch = rpc.engine.WatchModels(engine_pb.WatchModelsRequest(model=model))
    async for answer in watch:
        if answer.model.state == State.STATE_READY:
            break
    watch.cancel()


async def test_models_are_explained_whether_loaded_or_not(rpc: Rpc) -> None:
    """A loaded one has its real limits; another the plan for what is free now."""

    async def explain(model: str) -> dict[str, Any]:
        request = engine_pb.ExplainModelRequest(model=model, verify=True)
        answer = await rpc.engine.ExplainModel(request)
        sections: dict[str, Any] = MessageToDict(answer)["explanation"]
        return sections

    limits = (await get(rpc, MODEL)).resolved_limits
    loaded, other = await explain(MODEL), await explain(MANUAL)

    assert loaded["memory"]["reason"] == "it is loaded"
    assert loaded["memory"]["slots"] == limits.slots
    assert loaded["template"]["tool_calls"] == "hermes"
    assert {each["result"] for each in loaded["verification"].values()} == {"equal"}
    assert other["memory"]["reason"] != "it is loaded"
    assert other["unsure"] != []


# --- concurrent models ----------------------------------------------------------------------------


async def test_models_are_served_concurrently(rpc: Rpc) -> None:
    """A chat continues while requests load two other models."""
    story = rpc.inference.Chat(endless_chat())
    await read_delta(story)
    embedded, continued, answer = await asyncio.gather(
        rpc.inference.Embed(pb.EmbedRequest(model=ENCODER, inputs=[pb.TextOrTokens(text="hello")])),
        rpc.generate(noise(stopping={"ignore_eos": True, "max_tokens": 8})),
        rpc.chat(make_chat()),
    )
    await read_delta(story)
    story.cancel()
    states = {
        model.name: model.state
        for model in (await rpc.inference.ListModels(pb.ListModelsRequest())).models
    }

    assert (embedded.model, continued.accepted.model) == (ENCODER, NOISE)
    assert continued.finished[0].completion_tokens == 8
    assert answer.text[0] == PARIS
    assert states[MODEL] == states[NOISE] == states[ENCODER] == State.STATE_READY


async def test_an_encoder_decoder_completes_texts(aclient: openai.AsyncOpenAI) -> None:
    """Each as if it were alone; the prompt counts with its end token."""

    async def complete(prompt: str) -> openai.types.Completion:
        return await aclient.completions.create(
            model=TRANSLATOR, prompt=prompt, max_tokens=12, temperature=0, n=1
        )

    prompts = ("translate this", "summarize: a long story", "translate that")
    alone = [await complete(prompt) for prompt in prompts]
    together = await asyncio.gather(*map(complete, prompts))

    assert [each.choices[0].text for each in together] == [each.choices[0].text for each in alone]
    assert len({each.choices[0].text for each in alone}) == len(prompts)
    assert alone[0].usage is not None
    # The bytes of the letters, three of each space, one of them before the text, and the end.
    assert alone[0].usage.prompt_tokens == len("translatethis") + 2 * 3 + 1


async def test_an_encoder_decoder_refuses_what_it_cannot(
    rpc: Rpc, aclient: openai.AsyncOpenAI
) -> None:
    """Chats, embeddings, and states that the prompt alone would determine."""
    chat = make_chat()
    chat.model = TRANSLATOR
    keep = noise(TRANSLATOR, cache={"keep": True})
    with pytest.raises(openai.APIStatusError) as embeds:
        await aclient.embeddings.create(model=TRANSLATOR, input="hello")

    assert embeds.value.status_code == 400
    assert (await read_error(rpc.inference.Chat(chat))).reason == "MODEL_CANNOT"
    assert (await read_error(rpc.inference.Generate(keep))).reason == "FEATURE_UNSUPPORTED"


async def test_the_sdk_finds_models_by_name_and_alias(aclient: openai.AsyncOpenAI) -> None:
    """In every state. The response has the model's name, not the alias."""
    listed = {model.id: model.model_dump() for model in (await aclient.models.list()).data}
    model = await aclient.models.retrieve(ALIAS)
    chat = await aclient.chat.completions.create(
        model=ALIAS, messages=[{"role": "user", "content": "Hello"}], max_tokens=4
    )
    vectors = await aclient.embeddings.create(model=ENCODER, input="hello")
    with pytest.raises(openai.NotFoundError) as unknown:
        await aclient.chat.completions.create(
            model="unknown", messages=[{"role": "user", "content": "Hello"}]
        )

    assert set(listed) >= {MODEL, NOISE, ENCODER, MANUAL, SECOND}
    assert (listed[MODEL]["state"], listed[MODEL]["aliases"]) == ("ready", [ALIAS])
    assert listed[MANUAL]["state"] == "available"
    assert (model.id, chat.model, vectors.model) == (MODEL, MODEL, ENCODER)
    assert unknown.value.code == "model_not_found"


async def test_a_crash_affects_one_model_only(server: Corral, rpc: Rpc) -> None:
    """Streams and new requests of the other model continue."""
    await load(rpc, NOISE)
    await unload(rpc, ENCODER)
    await unload(rpc, TRANSLATOR)
    info = await rpc.engine.GetServerInfo(engine_pb.GetServerInfoRequest())
    engines = {each.pid for each in server.program.family() if ENGINE in each.command}
    (victim,) = engines - {info.engine_pid}
    story, aborted = rpc.inference.Chat(endless_chat()), rpc.inference.Generate(endless_noise())
    await read_delta(story)
    await anext(aiter(aborted))
    os.kill(victim, signal.SIGKILL)
    failure = await read_error(aborted)
    for _ in range(3):
        await read_delta(story)
    answer = await rpc.chat(make_chat())
    story.cancel()
    await wait_until_ready(rpc, NOISE)

    assert failure.reason == "ENGINE_RESTARTING"
    assert answer.text[0] == PARIS


# --- loaded and unloaded --------------------------------------------------------------------------


async def test_a_load_in_the_background_is_watched(rpc: Rpc) -> None:
    """With states and progress, while a stream continues."""
    await unload(rpc, NOISE)
    story = rpc.inference.Chat(endless_chat())
    await read_delta(story)
    watch = rpc.engine.WatchModels(engine_pb.WatchModelsRequest(model=NOISE))
    models = [(await anext(aiter(watch))).model]
    begun = await load(rpc, NOISE, wait=False)
    async for answer in watch:
        models.append(answer.model)
        if answer.model.state == State.STATE_READY:
            break
    watch.cancel()
    await read_delta(story)
    story.cancel()

    assert begun.state in (State.STATE_LOADING, State.STATE_READY)
    states = [model.state for model in models]
    assert states[0] == State.STATE_AVAILABLE
    assert set(states[1:-1]) <= {State.STATE_LOADING}
    phases = [model.load_progress.phase for model in models if model.HasField("load_progress")]
    assert phases == sorted(phases)
    assert models[-1].memory_bytes > models[-1].size_bytes


async def test_requested_and_resolved_limits_are_shown(rpc: Rpc) -> None:
    await unload(rpc, NOISE)
    before = await get(rpc, NOISE)
    limits = model_pb2.ModelLimits(slots=2, threads=1)
    request = engine_pb.LoadModelRequest(model=NOISE, limits=limits, wait=True)
    after = (await rpc.engine.LoadModel(request)).model

    assert before.requested_limits.slots in (2, 3)
    assert before.requested_limits.context_tokens == LONG_CONTEXT
    assert not before.HasField("resolved_limits")
    assert before.HasField("default_sampling")
    assert (after.requested_limits.slots, after.resolved_limits.slots) == (2, 2)
    assert after.resolved_limits.context_tokens == LONG_CONTEXT
    assert after.num_uses == 0


async def test_a_manual_model_is_not_loaded_by_requests(rpc: Rpc) -> None:
    """Requests are refused before the load and after the unload."""
    before = await read_error(rpc.inference.Generate(noise(MANUAL)))
    await load(rpc, MANUAL)
    served = await rpc.generate(noise(MANUAL, stopping={"ignore_eos": True, "max_tokens": 4}))
    unloaded = await unload(rpc, MANUAL)
    after = await read_error(rpc.inference.Generate(noise(MANUAL)))

    assert (before.code, before.reason) == (
        grpc.StatusCode.FAILED_PRECONDITION,
        "MODEL_NOT_LOADED",
    )
    assert served.finished[0].completion_tokens == 4
    assert unloaded.state == State.STATE_AVAILABLE
    assert after.reason == "MODEL_NOT_LOADED"


async def test_an_unload_waits_for_streams_or_aborts_them(rpc: Rpc) -> None:
    """With `force` they fail with MODEL_UNLOADED."""
    await load(rpc, NOISE)
    stream = rpc.inference.Generate(noise(stopping={"ignore_eos": True, "max_tokens": 3000}))
    await anext(aiter(stream))
    unloading = await unload(rpc, NOISE, wait=False)
    events = [response.WhichOneof("event") async for response in stream]
    await unload(rpc, NOISE)
    aborted = rpc.inference.Generate(endless_noise())
    await anext(aiter(aborted))
    unloaded = await unload(rpc, NOISE, force=True)
    failure = await read_error(aborted)

    assert (unloading.state, events[-1]) == (State.STATE_UNLOADING, "done")
    assert unloaded.state == State.STATE_AVAILABLE
    assert (failure.code, failure.reason) == (grpc.StatusCode.UNAVAILABLE, "MODEL_UNLOADED")
    assert failure.metadata == {"model": NOISE}


async def test_an_adapter_is_loaded_with_its_model(rpc: Rpc) -> None:
    """It is registered while the model is not loaded; its name loads the model."""
    await unload(rpc, SECOND)
    request = engine_pb.LoadAdapterRequest(name=VOICE, model=SECOND, path=PIRATE_FILE)
    adapter = (await rpc.engine.LoadAdapter(request)).adapter
    before = await get(rpc, VOICE)
    chat = make_chat()
    chat.model = VOICE
    answers, limits = [], []
    for _ in range(2):
        answers.append(await rpc.chat(chat))
        limits.append((await get(rpc, SECOND)).resolved_limits)
        await unload(rpc, SECOND)
    await rpc.engine.UnloadAdapter(engine_pb.UnloadAdapterRequest(name=VOICE))
    error = await read_error(rpc.inference.Chat(chat))

    assert adapter.model == before.parent == SECOND
    assert before.state == State.STATE_AVAILABLE
    assert answers[0].text[0] == answers[1].text[0] != PARIS
    assert [answer.accepted.model for answer in answers] == [VOICE, VOICE]
    assert error.reason == "MODEL_NOT_FOUND"
    assert [each.layout for each in limits] == [model_pb2.KV_LAYOUT_UNIFIED] * 2
    assert (await get(rpc, MODEL)).resolved_limits.layout == model_pb2.KV_LAYOUT_STREAMS


async def test_the_least_recently_used_model_is_evicted(rpc: Rpc, tmp_path: Path) -> None:
    """By measured memory. It is loaded again on the next request."""
    await unload(rpc, NOISE)
    model_bytes = (await load(rpc, NOISE)).memory_bytes
    names = ["a", "b", "c"]
    path = write_model_of_kind("window", tmp_path / "model.gguf")
    settings = {
        "models": [f"{name}={path}" for name in names],
        "per_model": dict.fromkeys(names, ON_DEMAND),
        "pool.memory_mib": int(2.7 * model_bytes) >> 20,  # two models, but not three
    }

    with run_inference(tmp_path, settings) as service:
        async with connect(service.target) as client:
            states = []
            for name in [*names, "a"]:
                await client.generate(noise(name, stopping={"max_tokens": 2}))
                listed = await client.inference.ListModels(pb.ListModelsRequest())
                states.append([model.state for model in listed.models])

    available, ready = State.STATE_AVAILABLE, State.STATE_READY
    assert states == [
        [ready, available, available],
        [ready, ready, available],
        [available, ready, ready],
        [ready, available, ready],
    ]


async def test_a_model_whose_file_was_replaced_is_not_reloaded(tmp_path: Path) -> None:
    """Its metadata and digest are those of the old file. The loaded model continues to serve."""
    path, replacement = tmp_path / "model.gguf", tmp_path / "new.gguf"
    random_bert(seed=1).write(path)
    random_bert(seed=2).write(replacement)
    request = pb.EmbedRequest(inputs=[pb.TextOrTokens(text="hello")])
    with run_inference(tmp_path, {"models": [f"m={path}"]}) as service:
        async with connect(service.target) as client:
            first = await client.inference.Embed(request)
            replacement.replace(path)
            second = await client.inference.Embed(request)
            await unload(client, "m", wait=True)
            failure = await call_error(load(client, "m"))

    assert first == second
    assert failure.reason == "MODEL_LOAD_FAILED"
    assert "replaced or written to since the start" in failure.metadata["problem"]
