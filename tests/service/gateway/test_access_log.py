"""The access log: one line a request, with who asked, for what, and what it cost."""

import json
import logging
from typing import Any

import pytest
from pydantic import SecretStr

from svc_kit.auth.keys import hash_key
from svc_kit.settings.groups import KeySettings
from tests.support.fake_inference import FakeInference, Script
from tests.support.loopback_gateway import run_gateway

KEY = "sk-corral-test"
SECRET = "the prompt of somebody"
CHAT = {"model": "fake", "messages": [{"role": "user", "content": SECRET}]}


async def log_of(
    caplog: pytest.LogCaptureFixture, path: str, body: dict[str, Any], script: Script | None = None
) -> dict[str, Any]:
    """Send a request with a key and return the fields of its line; probes are sent before it."""
    caplog.set_level(logging.INFO)
    fake = FakeInference()
    fake.script = script or fake.script
    key = KeySettings(name="laptop", sha256=SecretStr(hash_key(KEY)), project="blue")
    headers = {"authorization": f"Bearer {KEY}"}
    async with run_gateway(fake, keys=[key]) as gateway, gateway.client() as client:
        await client.get("/health")
        await client.get("/ready")
        await client.post(path, json=body, headers=headers)
    (record,) = [record for record in caplog.records if record.name == "gateway.access"]
    fields: dict[str, Any] = record.fields  # type: ignore[attr-defined]  # from `extra`
    assert SECRET not in json.dumps(fields)
    assert 0 <= fields.pop("first_byte_s") <= fields.pop("duration_s")
    assert fields.pop("sent_bytes") > 0
    return {name: value for name, value in fields.items() if name != "method"}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_chat_completion_has_key_model_tokens_and_times(
    caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    """Of all its choices, streamed or not; the times are the inference service's."""
    body = CHAT | {"stream": stream, "n": 2}
    fields = await log_of(caplog, "/v1/chat/completions", body, Script(times_s=(0.25, 0.75)))

    assert fields == {
        "path": "/v1/chat/completions",
        "status": "200",
        "key": "laptop",
        "model": "fake",
        "prompt_tokens": 3,
        "cached_tokens": 0,
        "completion_tokens": 6,
        "queue_s": 0.25,
        "first_token_s": 0.75,
    }


async def test_the_tokens_of_several_prompts_are_added(caplog: pytest.LogCaptureFixture) -> None:
    """Each prompt is a call of its own."""
    body = {"model": "fake", "prompt": ["a", "b", "c"]}
    fields = await log_of(caplog, "/v1/completions", body)

    assert (fields["prompt_tokens"], fields["completion_tokens"]) == (9, 9)


async def test_embeddings_have_prompt_tokens(caplog: pytest.LogCaptureFixture) -> None:
    """And the name of the model that answered."""
    fields = await log_of(caplog, "/v1/embeddings", {"model": "fake", "input": ["a", "b"]})

    assert (fields["model"], fields["prompt_tokens"]) == ("fake", 6)


async def test_a_refused_request_has_its_status(caplog: pytest.LogCaptureFixture) -> None:
    """And no tokens."""
    fields = await log_of(caplog, "/v1/chat/completions", CHAT | {"temperature": "hot"})

    assert fields == {"path": "/v1/chat/completions", "status": "400", "key": "laptop"}
