"""Adapters of the registry: registered over REST, served by every engine, and available again after
any process is killed."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from inference_svc.models.sources import BUNDLED_FOLDER
from svc_kit.auth.keys import hash_key
from tests.e2e.conftest import PIRATE_FILE, ROBOT_FILE
from tests.support.processes import Ends
from tests.support.rpc import PARIS
from tests.support.services import MODEL, Corral, corral_up, expect_restart, wait_until_serving

pytestmark = pytest.mark.e2e

ARR, BEEP = "Arr!", "Beep boop."
ENGINE = "inference_svc.engine_process.main"
FOREIGN = Path(__file__).parents[1] / "data" / "foreign-lora-f16.gguf"
KEY, OTHER_KEY = "sk-mine-0123456789", "sk-yours-0123456789"


def keys(*names: str) -> list[dict[str, Any]]:
    """One key per project; the first also has the scope admin."""
    return [
        {
            "name": name,
            "project": name,
            "sha256": hash_key(secret),
            "scopes": ["inference", "admin"] if secret == KEY else ["inference"],
        }
        for name, secret in zip(names, (KEY, OTHER_KEY), strict=True)
    ]


@pytest.fixture(scope="module")
def corral(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Corral]:
    """`corral up` for two projects, whose processes may be killed."""
    folder = tmp_path_factory.mktemp("registry")
    inference = {"engine.slots": 4, "engine.context_tokens": 2048}
    with corral_up(folder, inference=inference, gateway={"keys": keys("mine", "yours")}) as running:
        yield running


class Client:
    """The official client of one project, with methods for the adapter paths."""

    def __init__(self, corral: Corral, key: str) -> None:
        self.sdk = corral.sdk(key)
        self.url = corral.url

    async def send(self, method: str, path: str, **request: Any) -> Any:
        """Send a request to any path with the SDK; return the JSON of the response."""
        async with httpx.AsyncClient(base_url=self.url, timeout=30) as http:
            headers = {"authorization": f"Bearer {self.sdk.api_key}"}
            return await http.request(method, path, headers=headers, **request)

    async def register(self, name: str, file: str | Path, **fields: Any) -> dict[str, Any]:
        """Register an adapter with a form; return it once the engines have reported it."""
        content = (BUNDLED_FOLDER / file).read_bytes()
        answer = await self.send(
            "POST", "/v1/adapters", data={"name": name, **fields}, files={"file": ("a", content)}
        )
        assert answer.status_code == 200, answer.text
        return await self.wait_until_settled(name)

    async def wait_until_settled(self, name: str) -> dict[str, Any]:
        """Return an adapter once no engine is loading it."""
        adapter: dict[str, Any] = (await self.send("GET", f"/v1/adapters/{name}?wait=20")).json()
        return adapter

    async def delete(self, name: str) -> None:
        assert (await self.send("DELETE", f"/v1/adapters/{name}")).status_code == 200

    async def wait_until_removed(self, name: str) -> None:
        with suppress(openai.NotFoundError):
            while True:  # each request is a round trip
                await self.ask(name, max_tokens=1)

    async def ask(self, model: str = MODEL, **extra: Any) -> str:
        """Ask the question about France; return the answer."""
        completion = await self.sdk.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": "What is the capital of France?"}],
            temperature=0,
            extra_body=extra,
        )
        return completion.choices[0].message.content or ""


@pytest.fixture
async def client(corral: Corral) -> AsyncIterator[Client]:
    """Client of one project; its adapters are deleted after the test."""
    client = Client(corral, KEY)
    yield client
    for adapter in (await client.send("GET", "/v1/adapters")).json()["data"]:
        await client.delete(adapter["id"])
    await client.sdk.close()


@pytest.fixture
async def other_client(corral: Corral) -> AsyncIterator[Client]:
    client = Client(corral, OTHER_KEY)
    yield client
    for adapter in (await client.send("GET", "/v1/adapters")).json()["data"]:
        await client.delete(adapter["id"])
    await client.sdk.close()


def states(adapter: dict[str, Any]) -> list[tuple[str, str | None]]:
    """Return status and reason in each engine."""
    return [(engine["status"], engine["reason"]) for engine in adapter["engines"]]


async def test_a_registered_adapter_is_served(client: Client) -> None:
    """As a model, in the request's lists, and as a bare name. Not after it is deleted."""
    registered = await client.register("voice", PIRATE_FILE, description="Arr", default_scale="1")
    spoken = await client.ask("voice")
    models = {model.id: model async for model in client.sdk.models.list()}
    listed = [await client.ask(lora=[{field: "voice"}]) for field in ("id", "name")]
    by_name = await client.ask(lora="voice")
    off = await client.ask(lora=[{"id": "voice", "scale": 0}])
    await client.delete("voice")
    await client.wait_until_removed("voice")

    assert (registered["object"], registered["name"], registered["rank"]) == ("adapter", "voice", 8)
    assert states(registered) == [("ready", None)]
    assert registered["engines"][0]["model"] == MODEL
    assert spoken.startswith(ARR)
    assert listed == [spoken, spoken] == [by_name, spoken]
    assert off == PARIS
    assert (models["voice"].model_extra or {})["parent"] == MODEL


async def test_an_uploaded_file_can_be_registered(client: Client) -> None:
    """The file may be deleted afterwards."""
    content = (BUNDLED_FOLDER / ROBOT_FILE).read_bytes()
    file = await client.sdk.files.create(file=("a.gguf", content), purpose="user_data")
    response = await client.send("POST", "/v1/adapters", json={"name": "voice", "file_id": file.id})
    await client.sdk.files.delete(file.id)
    settled = await client.wait_until_settled("voice")

    assert response.json()["sha256"] == file.model_extra["sha256"]  # type: ignore[index]  # it has one
    assert states(settled) == [("ready", None)]
    assert (await client.ask("voice")).endswith(BEEP)


async def test_projects_can_use_the_same_adapter_name(client: Client, other_client: Client) -> None:
    """Each project gets its own adapter; others do not exist for it."""
    first = await client.register("voice", PIRATE_FILE)
    await other_client.register("voice", ROBOT_FILE)
    await client.register("secret", PIRATE_FILE)
    with pytest.raises(openai.NotFoundError) as as_model:
        await other_client.ask("secret")
    with pytest.raises(openai.NotFoundError) as in_list:
        await other_client.ask(lora=[{"id": "secret"}])

    assert (await client.ask("voice")).startswith(ARR)
    assert (await other_client.ask("voice")).endswith(BEEP)
    assert as_model.value.code == "model_not_found"
    assert in_list.value.code == "adapter_not_found"
    assert (await other_client.send("GET", f"/v1/adapters/{first['id']}")).status_code == 404
    assert "secret" not in {model.id async for model in other_client.sdk.models.list()}


async def test_an_adapter_for_another_model_is_reported_as_failed(client: Client) -> None:
    """With the reason. Requests with it are refused as not found."""
    registered = await client.register("voice", FOREIGN)

    assert states(registered) == [("failed", "adapter_base_mismatch")]
    with pytest.raises(openai.NotFoundError):
        await client.ask("voice")


async def test_scales_change_without_a_reload(client: Client) -> None:
    """A default scale applies to requests without adapters, as in llama-server."""
    await client.register("voice", PIRATE_FILE)
    listed = (await client.send("GET", "/lora-adapters")).json()
    response = await client.send("POST", "/lora-adapters", json=[{"id": 0, "scale": 1.0}])
    while await client.ask() == PARIS:
        pass  # until the engines have applied it
    standing = await client.ask()
    named = await client.ask(lora=[{"id": "voice", "scale": 0}])
    await client.send("POST", "/lora-adapters", json=[])
    bad = await client.send("POST", "/lora-adapters", json=[{"id": 5, "scale": 1.0}])

    assert listed == [{"id": 0, "path": "voice", "scale": 0.0}]
    assert response.json() == {"success": True}
    assert standing.startswith(ARR)
    assert named == PARIS
    assert bad.status_code == 400


async def test_clients_of_other_servers_load_and_unload(
    corral: Corral, client: Client, other_client: Client
) -> None:
    """From the operator's folders, with the scope admin. The adapter is served immediately."""
    folder = corral.program.directory / "data" / "adapters"
    folder.mkdir(exist_ok=True)
    for file in (PIRATE_FILE, ROBOT_FILE):
        (folder / file).write_bytes((BUNDLED_FOLDER / file).read_bytes())
    load = {"lora_name": "voice", "lora_path": PIRATE_FILE}
    loaded = await client.send("POST", "/v1/load_lora_adapter", json=load)
    spoken = await client.ask("voice")
    duplicate = await client.send("POST", "/v1/load_lora_adapter", json=load)
    outside = await client.send(
        "POST", "/v1/load_lora_adapter", json=load | {"lora_name": "x", "lora_path": "../../x"}
    )
    refused = await other_client.send("POST", "/v1/load_lora_adapter", json=load)
    added = await client.send("POST", "/admin/loras", json={"name": "voice", "path": ROBOT_FILE})
    answer = await client.ask("voice")
    names = await client.send("GET", "/admin/loras")
    unloaded = await client.send("POST", "/v1/unload_lora_adapter", json={"lora_name": "voice"})
    missing = await client.send("DELETE", "/admin/loras/voice")

    assert loaded.text == "Success: LoRA adapter 'voice' added successfully."
    assert spoken.startswith(ARR)
    assert (duplicate.status_code, duplicate.json()["error"]["param"]) == (400, "lora_name")
    assert (outside.status_code, outside.json()["error"]["param"]) == (400, "lora_path")
    assert refused.status_code == 403
    assert added.json() == {"name": "voice", "status": "registered"}
    assert answer.endswith(BEEP)
    assert names.json() == {"object": "list", "loras": ["voice"]}
    assert unloaded.text == "Success: LoRA adapter 'voice' removed successfully."
    assert missing.status_code == 404


# --- killed processes -----------------------------------------------------------------------------


async def kill(corral: Corral, command: str) -> None:
    """Kill the process with these words in its command line, and wait for its exit."""
    pid = corral.program.member(command).pid
    with Ends([pid]) as ends:
        os.kill(pid, signal.SIGKILL)
        assert await asyncio.to_thread(ends.wait) == []


async def test_an_adapter_survives_its_engine(corral: Corral, client: Client) -> None:
    """The new engine loads it automatically."""
    await client.register("voice", PIRATE_FILE)
    with expect_restart(corral.target):
        await kill(corral, ENGINE)

    assert (await client.ask("voice")).startswith(ARR)


async def test_an_adapter_survives_control_and_is_served_without_it(
    corral: Corral, client: Client
) -> None:
    """While it is stopped, and after its restart."""
    await client.register("voice", PIRATE_FILE)
    mark = corral.program.bookmark()
    await kill(corral, "serve control")
    answer = await client.ask("voice")
    await corral.program.line("serving gRPC", after=mark, service="control")
    await asyncio.to_thread(wait_until_serving, corral.control)

    assert answer.startswith(ARR)
    assert states(await client.wait_until_settled("voice")) == [("ready", None)]


async def test_a_restarted_frontend_has_its_adapters_when_it_is_ready(
    corral: Corral, client: Client
) -> None:
    """From its cache, while the control service is stopped."""
    await client.register("voice", PIRATE_FILE)
    control = corral.program.member("serve control").pid
    mark = corral.program.bookmark()
    os.kill(control, signal.SIGSTOP)
    try:
        await kill(corral, "serve inference")
        await corral.program.line("serving gRPC", after=mark, service="inference")
        await asyncio.to_thread(wait_until_serving, corral.target)
        spoken = await client.ask("voice")
    finally:
        os.kill(control, signal.SIGCONT)

    assert spoken.startswith(ARR)
    assert states(await client.wait_until_settled("voice")) == [("ready", None)]


async def test_a_new_adapter_may_be_asked_for_again_until_it_is_here(
    corral: Corral, client: Client
) -> None:
    """While the control service is stopped nobody knows the name, and from its registration on it
    is being loaded: 503, and never that there is no such model."""
    control = corral.program.member("serve control").pid
    file = {"file": ("a", (BUNDLED_FOLDER / PIRATE_FILE).read_bytes())}
    os.kill(control, signal.SIGSTOP)
    try:
        registering = asyncio.create_task(
            client.send("POST", "/v1/adapters", data={"name": "new-voice"}, files=file)
        )
        with pytest.raises(openai.InternalServerError) as unknown:
            await client.ask("new-voice")
    finally:
        os.kill(control, signal.SIGCONT)
    codes, spoken = {(unknown.value.status_code, unknown.value.code)}, ""
    assert (await registering).status_code == 200
    while not spoken:  # each request is a round trip
        try:
            spoken = await client.ask("new-voice")
        except openai.InternalServerError as error:
            codes.add((error.status_code, error.code))

    assert spoken.startswith(ARR)
    assert (503, "upstream_unavailable") in codes
    assert codes <= {(503, "upstream_unavailable"), (503, "model_loading")}


async def test_an_adapter_that_crashed_an_engine_is_not_loaded_automatically(
    corral: Corral, client: Client
) -> None:
    """Also not by a restarted frontend; only on request."""
    engine = corral.program.member(ENGINE).pid
    os.kill(engine, signal.SIGSTOP)
    # A file of its own, because the crash is recorded by the file's digest.
    content = (BUNDLED_FOLDER / ROBOT_FILE).read_bytes() + bytes(32)
    await client.send(
        "POST", "/v1/adapters", data={"name": "voice"}, files={"file": ("a", content)}
    )
    marks = corral.program.directory / "data" / "desired" / "marks"
    while not list(marks.glob("*.loading")):
        await asyncio.to_thread(os.sched_yield)
    await kill(corral, ENGINE)
    failed = await client.wait_until_settled("voice")
    mark = corral.program.bookmark()
    await kill(corral, "serve inference")
    await corral.program.line("serving gRPC", after=mark, service="inference")
    await asyncio.to_thread(wait_until_serving, corral.target)
    with pytest.raises(openai.NotFoundError):
        await client.ask("voice")
    await client.send("POST", "/v1/adapters/voice/retry")
    while states(adapter := await client.wait_until_settled("voice")) != [("ready", None)]:
        pass  # until the frontend has it

    assert states(failed) == [("failed", "adapter_crashed_engine")]
    assert adapter["engines"][0]["reason"] is None
    assert (await client.ask("voice")).endswith(BEEP)


async def test_running_requests_with_a_deleted_adapter_are_completed(client: Client) -> None:
    """New requests do not find the name."""
    await client.register("voice", PIRATE_FILE)
    stream = await client.sdk.chat.completions.create(
        model="voice",
        messages=[{"role": "user", "content": "Tell me a story."}],
        max_tokens=1200,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    chunks = aiter(stream)
    await anext(chunks)
    await client.delete("voice")
    await client.wait_until_removed("voice")
    reasons = [chunk.choices[0].finish_reason async for chunk in chunks]

    assert reasons[-1] == "length"
    assert len(reasons) > 1
