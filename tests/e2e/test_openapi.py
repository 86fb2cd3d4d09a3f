"""What the routes really send is what the OpenAPI document says: responses, events and errors."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from tests.support.checked_client import CheckedClient, send_line
from tests.support.media_models import write_pair
from tests.support.minilm import minilm_path
from tests.support.services import MODEL, corral_up
from tests.support.sounds import encode, sine

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

AUDIO, VERBOSE = "reads-audio", {"response_format": "verbose_json"}
REQUESTS: Final = Path(__file__).with_name("openapi_requests.txt")


@pytest.fixture
def api(tmp_path: Path) -> Iterator[CheckedClient]:
    """A client of a server with models for text, audio and embeddings."""
    pair = write_pair("qwen2a", tmp_path)
    flags = ("--model", f"{MODEL}=bundled", "--model", f"{AUDIO}={pair.model}", "--embedding-model")
    settings = {"per_model": {AUDIO: {"projector": str(pair.projector), "context_tokens": 2048}}}
    with (
        corral_up(tmp_path, *flags, f"minilm={minilm_path()}", inference=settings) as corral,
        httpx.Client(base_url=corral.url, trust_env=False, timeout=60) as client,
    ):
        yield CheckedClient(client)


def test_every_response_and_event_is_described(api: CheckedClient) -> None:
    """Of every route that this server can carry out, without undocumented fields."""
    names: dict[str, Any] = {"MODEL": MODEL}
    _send_files(api, names)
    lines = REQUESTS.read_text(encoding="utf-8").splitlines()
    for line in lines:
        send_line(api, line, names)

    unseen = {line[4:] for line in lines if line.startswith("NOT ")}
    assert api.operations - api.seen == unseen
    assert api.events >= {
        line.removeprefix("EVENT ") for line in lines if line.startswith("EVENT ")
    }


def _send_files(api: CheckedClient, names: dict[str, Any]) -> None:
    line = {"custom_id": "one", "method": "POST", "url": "/v1/chat/completions",
            "body": {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]}}  # fmt: skip
    contents = {"batch": json.dumps(line).encode(), "user_data": b"The sky is green."}
    for purpose, content in contents.items():
        form: dict[str, Any] = {"data": {"purpose": purpose}, "files": {"file": ("a.txt", content)}}
        names[f"{purpose}_file"] = api.call("POST", "/v1/files", **form)["id"]
    upload = api.call("POST", "/v1/uploads", json={"filename": "a", "purpose": "user_data",
                      "bytes": 1, "mime_type": "text/plain"})  # fmt: skip
    part = api.call("POST", f"/v1/uploads/{upload['id']}/parts", files={"data": b"a"})
    api.call("POST", f"/v1/uploads/{upload['id']}/complete", json={"part_ids": [part["id"]]})
    sound = {"file": ("a.wav", encode(sine(440, 16000), 16000, "WAV"))}
    for more in ({}, {"response_format": "text"}, VERBOSE, {"stream": "true"}):
        api.call("POST", "/v1/audio/transcriptions", data={"model": AUDIO} | more, files=sound)
    api.call("POST", "/v1/audio/translations", data={"model": AUDIO, **VERBOSE}, files=sound)
    api.call("POST", "/admin/models/unload", json={"model": AUDIO})
    for url in ("/v1/models", f"/v1/models/{MODEL}"):
        api.call("GET", url, headers={"anthropic-version": "2023-06-01"})
