"""Errors have the form of the API that a request belongs to."""

from collections.abc import Mapping, Sequence

import httpx
import pytest
from pydantic import SecretStr

from svc_kit.auth.keys import hash_key
from svc_kit.settings.groups import KeySettings
from tests.support.loopback_gateway import run_gateway

VERSION = {"anthropic-version": "2023-06-01"}


@pytest.mark.parametrize(
    ("path", "headers", "routes"),
    [
        ("/v1/nothing", {}, ("/v1/chat/completions", "/v1/responses", "/v1/models", "/v1/files")),
        ("/v1/messages/nothing", {}, ("/v1/messages", "/v1/messages/count_tokens", "/v1/models")),
        ("/v1/nothing", VERSION, ("/v1/messages/batches", "/v1/models")),
        ("/api/nothing", {}, ("/api/chat", "/api/generate", "/api/embed", "/api/tags")),
        ("/completion/nothing", {}, ("/completion", "/infill", "/tokenize", "/props")),
    ],
)
async def test_unknown_routes_name_those_of_their_api(
    client: httpx.AsyncClient, path: str, headers: Mapping[str, str], routes: Sequence[str]
) -> None:
    """The header decides where the path does not. Those of operators are not named."""
    answer = await client.post(path, headers=headers)
    known = answer.text.partition("This API has: ")[2].partition('"')[0].split(", ")

    assert answer.status_code == 404
    assert set(routes) <= set(known)
    assert not [path for path in known if path.startswith("/admin")]


async def test_other_routes_answer_in_the_form_of_openai(client: httpx.AsyncClient) -> None:
    """Also those whose path only begins alike."""
    answer = await client.get("/v1/messages2")

    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "route_not_found"


async def test_a_key_may_be_sent_in_x_api_key() -> None:
    """A wrong key is refused in the dialect's form."""
    keys = (KeySettings(name="app", sha256=SecretStr(hash_key("secret"))),)
    async with run_gateway(keys=keys) as gateway, gateway.client() as client:
        right = await client.get("/v1/models/fake", headers={"x-api-key": "secret"})
        wrong = await client.get("/v1/models/fake", headers={"x-api-key": "other", **VERSION})
        none = await client.get("/v1/models/fake", headers=VERSION)

    assert [each.status_code for each in (right, wrong, none)] == [200, 401, 401]
    assert [each.json()["error"]["type"] for each in (wrong, none)] == ["authentication_error"] * 2


async def test_every_answer_has_the_id_of_its_request_under_both_names(
    client: httpx.AsyncClient,
) -> None:
    """OpenAI's and Anthropic's SDK read different headers."""
    answer = await client.get("/v1/models")

    assert answer.headers["request-id"] == answer.headers["x-request-id"]
