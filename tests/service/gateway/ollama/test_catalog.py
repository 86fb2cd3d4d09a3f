"""Ollama's routes for models and embeddings in front of a fake service."""

import json
from typing import Any

import pytest
from corral.inference.v1 import model_pb2
from httpx import AsyncClient
from pydantic import SecretStr

from svc_kit.auth.keys import hash_key
from svc_kit.settings.groups import KeySettings
from tests.support.fake_inference import FakeInference, Script
from tests.support.loopback_gateway import run_gateway

DIGEST = "ab" * 32
KEY = KeySettings(name="test", sha256=SecretStr(hash_key("sk-corral-test")))


def describe(fake: FakeInference) -> None:
    """Give the fake's first model the fields of a real one."""
    model = fake.models[0]
    model.architecture, model.digest, model.quantization = "llama", DIGEST, "q8_0"
    model.size_bytes, model.num_parameters, model.memory_bytes = 5_000, 5_300_000, 9_000
    model.chat_template, model.trained_context_tokens = "{{ messages }}", 512
    model.turn_format.tool_calls = "hermes"
    model.thinking.mode = model_pb2.ThinkingSupport.MODE_SWITCHABLE
    model.input_modalities.append(model_pb2.MODALITY_IMAGE)
    model.infills = True
    model.default_sampling.temperature = 0.5


async def test_models_are_listed_with_a_tag(fake: FakeInference, client: AsyncClient) -> None:
    """A name that has one keeps it. The digest has 64 digits."""
    describe(fake)
    first, second = (await client.get("/api/tags")).json()["models"]

    assert (first["name"], first["model"]) == ("fake:latest", "fake:latest")
    assert second["name"] == "org/other:1b"
    assert (first["size"], first["digest"]) == (5_000, DIGEST)
    assert first["details"] == {
        "parent_model": "",
        "format": "gguf",
        "family": "llama",
        "families": ["llama"],
        "parameter_size": "5.3M",
        "quantization_level": "Q8_0",
    }


async def test_only_loaded_models_run(fake: FakeInference, client: AsyncClient) -> None:
    """With the memory of their process."""
    describe(fake)
    fake.models[1].state = model_pb2.Model.STATE_AVAILABLE
    (running,) = (await client.get("/api/ps")).json()["models"]

    assert (running["name"], running["size"], running["size_vram"]) == ("fake:latest", 9_000, 0)
    assert running["context_length"] == 4096
    assert running["expires_at"] > "2100"


@pytest.mark.parametrize("field", ["model", "name"])
async def test_a_model_is_described(field: str, fake: FakeInference, client: AsyncClient) -> None:
    """By the name with or without the tag."""
    describe(fake)
    shown = (await client.post("/api/show", json={field: "fake:latest"})).json()

    assert shown["capabilities"] == ["completion", "tools", "insert", "vision", "thinking"]
    assert shown["template"] == "{{ messages }}"
    assert shown["parameters"] == "temperature 0.5"
    assert shown["model_info"]["general.architecture"] == "llama"
    assert shown["model_info"]["llama.context_length"] == 512


async def test_the_server_says_that_it_is_there(client: AsyncClient) -> None:
    plain, head = await client.get("/"), await client.head("/")
    browser = await client.get("/", headers={"accept": "text/html,*/*"})
    version = (await client.get("/api/version")).json()["version"]

    assert (plain.status_code, plain.text) == (200, "Ollama is running")
    assert (head.status_code, browser.status_code) == (200, 307)
    assert all(part.isdigit() for part in version.split("."))


async def test_a_pull_of_what_is_there_succeeds(client: AsyncClient) -> None:
    """In lines, or with one object. Names of Ollama's registry, and very long ones, are refused."""
    there = await client.post("/api/pull", json={"model": "fake:latest"})
    whole = await client.post("/api/pull", json={"model": "fake", "stream": False})
    refused = [
        await client.post("/api/pull", json={"name": name})
        for name in ("llama3.2", "owner/model:7b", "hf.co/owner", "registry.ollama.ai/library/a")
    ]

    long = await client.post("/api/pull", json={"model": "https://" + "http://" * 40})

    assert long.status_code == 400
    assert "Invalid 'model': at most 256 characters" in long.json()["error"]
    lines = ["pulling manifest", "success"]
    assert [json.loads(line)["status"] for line in there.iter_lines()] == lines
    assert there.headers["content-type"] == "application/x-ndjson"
    assert whole.json() == {"status": "success"}
    assert [answer.status_code for answer in refused] == [400] * 4
    assert all("write hf.co/OWNER/REPO" in answer.json()["error"] for answer in refused)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/api/create"),
        ("POST", "/api/push"),
        ("POST", "/api/blobs/sha256:0"),
    ],
)
async def test_models_are_not_managed(method: str, path: str, client: AsyncClient) -> None:
    """The text says who does."""
    answer = await client.request(method, path, json={"model": "fake"})

    assert answer.status_code == 501
    assert "operator" in answer.json()["error"]


async def test_embeddings_have_both_forms(fake: FakeInference, client: AsyncClient) -> None:
    """The older one is not normalized."""
    new = (await client.post("/api/embed", json={"model": "fake", "input": ["four", "to"]})).json()
    old = await client.post("/api/embeddings", json={"model": "fake", "prompt": "four"})
    empty = await client.post("/api/embed", json={"model": "fake", "input": ""})
    first, second = fake.calls.requests

    assert new["embeddings"] == [[4, 0.5], [2, 0.5]]
    assert (new["model"], new["prompt_eval_count"]) == ("fake", 6)
    assert old.json() == {"embedding": [4, 0.5]}
    assert empty.json()["embeddings"] == []
    assert (first.truncate, first.normalize or not first.HasField("normalize")) == (True, True)
    assert (second.truncate, second.normalize) == (True, False)


async def test_every_route_checks_the_key() -> None:
    """Without one the text is Ollama's."""
    keys = (KEY,)
    body: dict[str, Any] = {"model": "fake", "input": "hi", "prompt": "hi"}
    paths = ("chat", "generate", "embed", "embeddings", "show", "pull", "copy")
    async with run_gateway(keys=keys) as gateway, gateway.client() as client:
        answers = [await client.post(f"/api/{path}", json=body) for path in paths]
        answers += [await client.get(f"/api/{path}") for path in ("tags", "ps")]

    assert {answer.status_code for answer in answers} == {401}
    assert [answer.json() for answer in answers] == [{"error": "unauthorized"}] * len(answers)


async def test_unloading_is_for_operators() -> None:
    keys = (KEY,)
    headers = {"authorization": "Bearer sk-corral-test"}
    fake = FakeInference()
    fake.script = Script()
    async with run_gateway(fake, keys=keys) as gateway, gateway.client() as client:
        answer = await client.post(
            "/api/generate", json={"model": "fake", "keep_alive": 0}, headers=headers
        )

    assert answer.status_code == 403
    assert "admin" in answer.json()["error"]


async def test_unknown_routes_name_those_that_are_there(client: AsyncClient) -> None:
    answer = await client.post("/api/chatt", json={})

    assert answer.status_code == 404
    assert "/api/generate" in answer.json()["error"]
