"""LoRA adapters from a client's view: single, stacked and concurrent; names as models; loading,
replacement and errors; and the restart of an engine."""

import asyncio
import hashlib
import os
import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import openai
import pytest
from corral.inference.v1 import adapter_pb2
from corral.inference.v1 import engine_service_pb2 as engine_pb
from corral.inference.v1 import inference_service_pb2 as pb

from inference_svc.models.sources import BUNDLED_FOLDER
from tests.e2e.conftest import PIRATE, PIRATE_FILE, ROBOT, ROBOT_FILE
from tests.support.processes import PATIENCE_S
from tests.support.rpc import (
    PARIS,
    Rpc,
    call_error,
    endless_chat,
    make_chat,
    read_delta,
    user,
)
from tests.support.services import MODEL, Corral, corral_up, expect_restart, start
from tools.demo_model import adapters
from tools.demo_model.records import score

pytestmark = pytest.mark.e2e

FOREIGN = Path(__file__).parents[1] / "data" / "foreign-lora-f16.gguf"
ENGINE = "inference_svc.engine_process.main"
ARR, BEEP = "Arr!", "Beep boop."
BOTH = (PIRATE, ROBOT)


@dataclass(frozen=True)
class Adapted(Corral):
    """A Corral with both adapters; `folder` is an allowed folder for adapter files."""

    folder: Path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Adapted]:
    """`corral up` with both bundled adapters, one of them under its digest."""
    directory = tmp_path_factory.mktemp("adapted")
    folder = directory / "loras"
    folder.mkdir()
    inference = {
        "engine.slots": 4,
        "engine.context_tokens": 4096,
        "adapters": {
            PIRATE: {"path": PIRATE_FILE, "digest": digest_of(BUNDLED_FOLDER / PIRATE_FILE)},
            ROBOT: {"path": str(BUNDLED_FOLDER / ROBOT_FILE), "model": MODEL},
        },
        "adapter_folders": [str(folder)],
    }
    with corral_up(directory, inference=inference) as corral:
        yield Adapted(corral.program, corral.url, corral.target, corral.control, folder)


def digest_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def stack(*names: str, **scales: float) -> list[adapter_pb2.AdapterScale]:
    """Return adapters by name with default scales, or as "pirate" and "robot" with others."""
    aliases = {"pirate": PIRATE, "robot": ROBOT}
    scaled = [adapter_pb2.AdapterScale(adapter=aliases[n], scale=s) for n, s in scales.items()]
    return [*(adapter_pb2.AdapterScale(adapter=name) for name in names), *scaled]


async def ask(rpc: Rpc, adapters: Any = (), **settings: Any) -> str:
    """Ask the question about France; return the answer."""
    return (await rpc.chat(make_chat(adapters=adapters, **settings))).text[0]


async def load(rpc: Rpc, name: str, path: str, **fields: Any) -> adapter_pb2.Adapter:
    request = engine_pb.LoadAdapterRequest(name=name, path=path, **fields)
    return (await rpc.engine.LoadAdapter(request)).adapter


async def unload(rpc: Rpc, name: str) -> adapter_pb2.Adapter:
    return (await rpc.engine.UnloadAdapter(engine_pb.UnloadAdapterRequest(name=name))).adapter


async def generations(rpc: Rpc, name: str) -> list[adapter_pb2.Adapter]:
    adapters = (await rpc.engine.ListAdapters(engine_pb.ListAdaptersRequest())).adapters
    return [adapter for adapter in adapters if adapter.name == name]


async def wait_until_settled(rpc: Rpc, name: str) -> None:
    """Return once no old generation of the name is draining."""
    async with asyncio.timeout(PATIENCE_S):
        # Each request is a round trip, during which the engine runs a step.
        while len(await generations(rpc, name)) > 1:
            pass


# --- stacks ---------------------------------------------------------------------------------------


async def test_adapters_change_the_answer_alone_and_stacked(rpc: Rpc) -> None:
    """Scale 0 gives exactly the answer of the base model."""
    pirate, robot = await ask(rpc, stack(PIRATE)), await ask(rpc, stack(ROBOT))
    both = await ask(rpc, stack(*BOTH))

    assert pirate.startswith(ARR)
    assert BEEP not in pirate
    assert robot.endswith(BEEP)
    assert ARR not in robot
    assert both.startswith(ARR)
    assert both.endswith(BEEP)
    assert await ask(rpc) == await ask(rpc, stack(pirate=0, robot=0)) == PARIS
    assert await ask(rpc, stack(*reversed(BOTH))) == both


async def test_concurrent_stacks_answer_as_each_does_alone(rpc: Rpc) -> None:
    """Eight requests on four slots."""
    stacks = [(), stack(PIRATE), stack(ROBOT), stack(*BOTH)]
    expected = [await ask(rpc, each) for each in stacks]
    answers = await asyncio.gather(*(ask(rpc, each) for each in stacks * 2))

    assert len(set(expected)) == 4
    assert answers == expected * 2


async def test_a_scale_multiplies_the_effect(rpc: Rpc) -> None:
    """The log probability of the first token changes with it."""

    async def first_logprob(**scales: float) -> float:
        answer = await rpc.chat(
            make_chat(
                adapters=stack(**scales), output={"top_logprobs": 1}, stopping={"max_tokens": 1}
            )
        )
        return answer.logprobs[0][0].chosen.logprob

    logprobs = [await first_logprob(pirate=scale) for scale in (0.0, 0.25, 1.0)]

    assert len(set(logprobs)) == 3


async def test_no_prefix_is_shared_between_stacks(rpc: Rpc) -> None:
    """A prompt is recomputed under another stack or scale, and reused under the same."""

    async def cached(adapters: Any) -> int:
        message = user("Tell me a long story about a baker in Rome, a dog and a ship on the sea.")
        answer = await rpc.chat(make_chat(message, adapters=adapters, stopping={"max_tokens": 1}))
        return answer.done.usage.cached_tokens

    await rpc.engine.FlushCache(engine_pb.FlushCacheRequest())
    stacks = [(), stack(PIRATE), stack(pirate=0.5), stack(*BOTH)]
    pairs = [(await cached(each), await cached(each)) for each in stacks]

    assert [uncached for uncached, _ in pairs] == [0, 0, 0, 0]
    assert all(repeated for _, repeated in pairs)


# --- names ----------------------------------------------------------------------------------------


async def test_an_adapter_is_a_model_of_its_own(rpc: Rpc) -> None:
    """It is described with its parent, requested by its name, and can be combined with a stack."""
    described = (await rpc.inference.GetModel(pb.GetModelRequest(model=PIRATE))).model
    names = [m.name for m in (await rpc.inference.ListModels(pb.ListModelsRequest())).models]
    request = make_chat()
    request.model = PIRATE
    answer = await rpc.chat(request)
    request.options.adapters.extend(stack(ROBOT))
    robot = await rpc.chat(request)

    assert names == [MODEL, PIRATE, ROBOT]
    assert (described.name, described.parent) == (PIRATE, MODEL)
    assert described.digest == digest_of(BUNDLED_FOLDER / PIRATE_FILE)
    assert described.description == PIRATE
    assert answer.accepted.model == PIRATE
    assert answer.text[0] == await ask(rpc, stack(PIRATE))
    assert robot.text[0] == await ask(rpc, stack(ROBOT))


async def test_the_official_client_requests_an_adapter(aclient: openai.AsyncOpenAI) -> None:
    """As the model, or with the extension `lora`. Unknown ones are not found."""

    async def ask_model(model: str, **extra: Any) -> str:
        completion = await aclient.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": "What is the capital of France?"}],
            temperature=0,
            extra_body=extra,
        )
        assert completion.model == model
        return completion.choices[0].message.content or ""

    by_name = await ask_model(PIRATE)
    by_field = await ask_model(MODEL, lora=[{"id": PIRATE}])
    off = await ask_model(MODEL, lora=[{"id": PIRATE, "scale": 0}])
    shown = await aclient.models.retrieve(PIRATE)
    with pytest.raises(openai.NotFoundError) as missing:
        await ask_model(MODEL, lora=[{"id": "parrot"}])

    assert by_name == by_field
    assert by_name.startswith(ARR)
    assert off == PARIS
    assert [(model.id) async for model in aclient.models.list()] == [MODEL, PIRATE, ROBOT]
    assert (shown.model_extra or {})["parent"] == MODEL
    assert missing.value.code == "adapter_not_found"


async def test_embeddings_with_an_adapter_are_refused(rpc: Rpc) -> None:
    """The vectors would be those of the base model."""
    request = pb.EmbedRequest(model=PIRATE, inputs=[pb.TextOrTokens(text="x")])
    error = await call_error(rpc.inference.Embed(request))

    assert (error.reason, error.metadata["model"]) == ("MODEL_CANNOT", PIRATE)


# --- loading --------------------------------------------------------------------------------------


async def test_an_adapter_is_loaded_listed_and_unloaded_at_run_time(
    rpc: Rpc, server: Adapted
) -> None:
    """Its file can be deleted after it is loaded."""
    digest = digest_of(BUNDLED_FOLDER / ROBOT_FILE)
    shutil.copy(BUNDLED_FOLDER / ROBOT_FILE, server.folder / "mine.gguf")
    loaded = await load(rpc, "mine", "mine.gguf", default_scale=0.75, digest=digest)
    shutil.move(server.folder / "mine.gguf", server.folder / "gone")
    (shown,) = await generations(rpc, "mine")
    spoken = await ask(rpc, stack("mine"))
    memory = (await rpc.engine.GetLoad(engine_pb.GetLoadRequest())).load
    unloaded = await unload(rpc, "mine")
    error = await call_error(rpc.chat(make_chat(adapters=stack("mine"))))

    assert loaded == shown
    assert (shown.model, shown.generation, shown.rank) == (MODEL, 1, 8)
    assert (shown.state, shown.default_scale) == (adapter_pb2.Adapter.STATE_READY, 0.75)
    assert spoken.endswith(BEEP)
    assert memory.num_adapters == 3
    assert memory.adapter_bytes == 2 * shown.size_bytes, "one file under two names is there once"
    assert unloaded.state == adapter_pb2.Adapter.STATE_DRAINING
    assert await generations(rpc, "mine") == []
    assert (error.code, error.reason) == (grpc.StatusCode.NOT_FOUND, "ADAPTER_NOT_FOUND")
    assert (await ask(rpc, stack(ROBOT))).endswith(BEEP)


async def test_an_adapter_can_be_replaced_while_it_is_in_use(rpc: Rpc) -> None:
    """Running requests keep the old generation; the next request gets the new one."""
    await load(rpc, "voice", PIRATE_FILE)
    running = rpc.inference.Chat(endless_chat(adapters=stack("voice")))
    await read_delta(running)
    await load(rpc, "voice", ROBOT_FILE)
    during = await generations(rpc, "voice")
    answer = await ask(rpc, stack("voice"))
    running.cancel()
    await wait_until_settled(rpc, "voice")
    (current,) = await generations(rpc, "voice")
    await unload(rpc, "voice")

    states = [(each.generation, each.state, each.num_running) for each in during]
    assert states == [
        (1, adapter_pb2.Adapter.STATE_DRAINING, 1),
        (2, adapter_pb2.Adapter.STATE_READY, 0),
    ]
    assert answer.endswith(BEEP)
    assert current.generation == 2


async def test_a_replacement_under_load_changes_no_running_answer(rpc: Rpc) -> None:
    """Each answer comes from one generation."""
    await load(rpc, "crew", PIRATE_FILE)
    pirate, robot = await ask(rpc, stack(PIRATE)), await ask(rpc, stack(ROBOT))

    async def ask_repeatedly() -> list[str]:
        return [await ask(rpc, stack("crew")) for _ in range(6)]

    async def replace_repeatedly() -> None:
        for file in (ROBOT_FILE, PIRATE_FILE, ROBOT_FILE):
            await load(rpc, "crew", file)

    asking = asyncio.gather(*(ask_repeatedly() for _ in range(3)))
    await replace_repeatedly()
    answers = await asking
    last = await ask(rpc, stack("crew"))
    await unload(rpc, "crew")

    assert {text for texts in answers for text in texts} <= {pirate, robot}
    assert last == robot


async def test_invalid_stacks_are_refused(rpc: Rpc) -> None:
    """Each with its own reason."""
    wrong: dict[str, list[adapter_pb2.AdapterScale]] = {
        "ADAPTER_NOT_FOUND": stack("parrot"),
        "MISSING_FIELD": [adapter_pb2.AdapterScale()],
        "INVALID_FIELD": stack(PIRATE, PIRATE),
        "OUT_OF_RANGE": stack(pirate=float("nan")),
        "TOO_LONG": stack(*(f"a{i}" for i in range(65))),
    }
    reasons = [
        (await call_error(rpc.chat(make_chat(adapters=each)))).reason for each in wrong.values()
    ]

    assert reasons == list(wrong)


# --- refused files --------------------------------------------------------------------------------


def damaged_file(kind: str) -> bytes:
    data = bytearray((BUNDLED_FOLDER / PIRATE_FILE).read_bytes())
    if kind == "cut":
        del data[-100:]
    elif kind == "nan":
        data[-2:] = b"\xff\x7f"
    elif kind == "garbage":
        data[:] = b"not a model at all"
    return bytes(data)


@pytest.mark.parametrize("kind", ["cut", "nan", "garbage"])
async def test_a_damaged_file_is_refused(rpc: Rpc, server: Adapted, kind: str) -> None:
    """Before the engine reads it. The adapter that had the name is kept."""
    (server.folder / "damaged.gguf").write_bytes(damaged_file(kind))
    error = await call_error(load(rpc, PIRATE, "damaged.gguf"))

    assert (error.code, error.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "ADAPTER_INVALID")
    assert error.metadata["problem"]
    assert "/" not in error.metadata["problem"]
    assert (await ask(rpc, stack(PIRATE))).startswith(ARR)


async def test_files_that_cannot_be_loaded_are_refused(rpc: Rpc, server: Adapted) -> None:
    """For another model, with another digest, outside the folders, or under a name in use."""
    shutil.copy(FOREIGN, server.folder / "foreign.gguf")
    (server.folder / "link.gguf").symlink_to(FOREIGN)
    cases = {
        "foreign": (load(rpc, "x", "foreign.gguf"), "ADAPTER_BASE_MISMATCH"),
        "model": (load(rpc, "x", "demo-chat-q8_0.gguf"), "ADAPTER_INVALID"),
        "digest": (load(rpc, "x", PIRATE_FILE, digest="0" * 64), "ADAPTER_DIGEST_MISMATCH"),
        "link": (load(rpc, "x", "link.gguf"), "INVALID_FIELD"),
        "outside": (load(rpc, "x", str(FOREIGN)), "INVALID_FIELD"),
        "parent": (load(rpc, "x", f"../{PIRATE_FILE}"), "INVALID_FIELD"),
        "missing": (load(rpc, "x", "missing.gguf"), "INVALID_FIELD"),
        "no name": (load(rpc, "x", "a\0b"), "INVALID_FIELD"),
        "long": (load(rpc, "x", "a" * 5000), "INVALID_FIELD"),
        "taken": (load(rpc, MODEL, PIRATE_FILE), "MODEL_EXISTS"),
        "no model": (load(rpc, "x", PIRATE_FILE, model="gpt-9"), "MODEL_NOT_FOUND"),
        "on an adapter": (load(rpc, "x", PIRATE_FILE, model=PIRATE), "MODEL_CANNOT"),
        "name": (load(rpc, "x y", PIRATE_FILE), "INVALID_FIELD"),
        "scale": (load(rpc, "x", PIRATE_FILE, default_scale=11), "OUT_OF_RANGE"),
        "no digest": (load(rpc, "x", PIRATE_FILE, digest="abc"), "INVALID_FIELD"),
        "no path": (load(rpc, "x", ""), "MISSING_FIELD"),
        "unknown": (unload(rpc, "x"), "ADAPTER_NOT_FOUND"),
    }
    reasons = {name: (await call_error(call)).reason for name, (call, _) in cases.items()}

    assert reasons == {name: reason for name, (_, reason) in cases.items()}
    assert await generations(rpc, "x") == []


def test_an_invalid_adapter_in_the_settings_stops_the_start(tmp_path: Path) -> None:
    """Before any service starts, with a line that has its name and the reason."""
    settings = {"adapters": {"x": {"path": str(FOREIGN)}}}
    loopback = "127.0.0.1:0"
    flags = ("--listen", loopback, "--inference-listen", loopback, "--control-listen", loopback)
    with start(tmp_path, "up", *flags, inference=settings) as program:
        code = program.wait()
        remaining = program.left_over()
        lines = [line.text for line in program.stderr if not line.fields]

    assert (code, remaining) == (1, [])
    assert lines[0] == "corral: The inference settings have 1 problem(s):"
    assert f"adapters (CORRAL_INFERENCE_ADAPTERS): 'x' ({FOREIGN}): " in lines[-1]


# --- a killed engine ------------------------------------------------------------------------------


async def test_adapters_survive_an_engine_that_is_killed(rpc: Rpc, server: Adapted) -> None:
    """The new engine gets the same bytes, although the file has changed."""
    shutil.copy(BUNDLED_FOLDER / PIRATE_FILE, server.folder / "kept.gguf")
    before = await load(rpc, "kept", "kept.gguf")
    shutil.copy(BUNDLED_FOLDER / ROBOT_FILE, server.folder / "kept.gguf")
    spoken = await ask(rpc, stack("kept"))
    engine = server.program.member(ENGINE).pid
    with expect_restart(server.target):
        os.kill(engine, signal.SIGKILL)
    answer = await rpc.chat(make_chat(adapters=stack("kept")))
    (after,) = await generations(rpc, "kept")
    await unload(rpc, "kept")

    assert answer.text[0] == spoken
    assert (after.digest, after.generation) == (before.digest, before.generation)
    assert after.state == adapter_pb2.Adapter.STATE_READY
    assert (await ask(rpc, stack(*BOTH))).endswith(BEEP)


async def test_the_adapters_change_the_style(server: Adapted) -> None:
    """Each alone, both stacked, and none at scale 0, in at least four of five answers."""
    marks = await adapters.examine_server(server.api, 15)

    assert {name: score(each) >= 80 for name, each in marks.items()} == dict.fromkeys(
        adapters.STACKS, True
    )
