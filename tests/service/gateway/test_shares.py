"""The shares of projects in what the gateway does at once."""

import asyncio
from typing import Any

import orjson
from pydantic import SecretStr

from svc_kit.auth.keys import hash_key
from svc_kit.settings.groups import KeySettings
from tests.support.fake_inference import FakeInference, Script
from tests.support.loopback_gateway import run_gateway

CHAT: dict[str, Any] = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}


def key(project: str) -> KeySettings:
    return KeySettings(name=project, sha256=SecretStr(hash_key(project)), project=project)


def bearer(project: str) -> dict[str, str]:
    """The header of a project's key."""
    return {"authorization": f"Bearer {project}"}


async def test_a_project_with_all_requests_leaves_the_share_of_another() -> None:
    """The other is served beyond `max_requests`; the first is told its share."""
    fake, gate, keys = FakeInference(), asyncio.Event(), tuple(map(key, "ab"))
    fake.script = Script(gate=gate)
    async with (
        run_gateway(fake, keys=keys, inference_keys=keys, max_requests=1) as gateway,
        gateway.client() as client,
        asyncio.TaskGroup() as group,
    ):
        chat = group.create_task(
            client.post("/v1/chat/completions", json=CHAT, headers=bearer("a"))
        )
        await fake.calls.arrived.wait()
        refused = await client.get("/v1/models", headers=bearer("a"))
        served = await client.get("/v1/models", headers=bearer("b"))
        gate.set()

    statuses = (chat.result().status_code, refused.status_code, served.status_code)
    assert statuses == (200, 429, 200)
    assert "Your project has 1 of its share of 1" in refused.json()["error"]["message"]


async def test_large_bodies_share_memory_and_it_is_released() -> None:
    """Bodies that fit only one after the other are all served, with and without their size."""
    fake = FakeInference()
    fake.script = Script()
    text = "x" * 700_000
    raw = orjson.dumps({**CHAT, "messages": [{"role": "user", "content": text}]})

    async def pieces() -> Any:
        for first in range(0, len(raw), 100_000):
            yield raw[first : first + 100_000]

    json_type = {"content-type": "application/json"}
    async with (
        run_gateway(
            fake, body_limit_bytes=2**20, body_memory_bytes=2**21, receive_timeout_s=20
        ) as gateway,
        gateway.client() as client,
    ):
        answers = await asyncio.gather(
            *(
                client.post("/v1/chat/completions", content=content, headers=json_type)
                for content in [raw, pieces(), raw, pieces()]
            )
        )

    assert [answer.status_code for answer in answers] == [200] * 4
    parts = [request.conversation.messages[0].parts[0] for request in fake.calls.requests]
    assert [len(part.text) for part in parts] == [len(text)] * 4


async def test_a_text_without_room_for_its_objects_is_refused_while_it_arrives() -> None:
    """The gateway does not wait for its end."""
    message = b'{"role":"user","content":"x"},'

    async def pieces() -> Any:
        yield b'{"model":"fake","messages":['
        for _ in range(70):
            yield message * 2000  # the text never ends

    async with run_gateway() as gateway, gateway.client() as client:
        answer = await client.post(
            "/v1/chat/completions", content=pieces(), headers={"content-type": "application/json"}
        )

    assert answer.status_code == 400
    assert "arrays and objects" in answer.json()["error"]["message"]
