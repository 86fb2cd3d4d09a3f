"""A plain HTTP client of the gateway, without an SDK."""

import ssl
from typing import Any

import httpx

from tests.support.processes import PATIENCE_S
from tests.support.rpc import CAPITAL
from tests.support.services import MODEL, Corral

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
JSON = {"content-type": "application/json"}
QUESTION = [{"role": "user", "content": CAPITAL}]


def plain_client(corral: Corral) -> httpx.AsyncClient:
    """Return a client without settings from the environment. It does not raise for status codes."""
    no_authorities = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # loading certificates is slow
    return httpx.AsyncClient(
        base_url=corral.url, timeout=PATIENCE_S, trust_env=False, verify=no_authorities
    )


def chat_body(**fields: Any) -> dict[str, Any]:
    """Return a valid chat body with additional fields."""
    return {"model": MODEL, "messages": QUESTION, **fields}


def error_of(response: httpx.Response) -> dict[str, Any]:
    """Return the error of OpenAI's envelope. Raises ValueError unless it has its four fields."""
    error: dict[str, Any] = response.json()["error"]
    if set(error) != {"message", "type", "param", "code"}:
        raise ValueError(f"not an OpenAI error: {error}")
    return error
