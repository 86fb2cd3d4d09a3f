"""A plain HTTP client's view of the gateway, which hides nothing as an SDK would."""

import ssl
from typing import Any

import httpx

from tests.support.rpc import CAPITAL
from tests.support.services import MODEL, Corral

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
JSON = {"content-type": "application/json"}
QUESTION = [{"role": "user", "content": CAPITAL}]


def plain_client(corral: Corral) -> httpx.AsyncClient:
    """A client that takes no settings from its surroundings; errors are answers like others."""
    no_authorities = ssl.SSLContext(
        ssl.PROTOCOL_TLS_CLIENT
    )  # reading them takes longer than a test
    return httpx.AsyncClient(
        base_url=corral.url, timeout=20, trust_env=False, verify=no_authorities
    )


def chat_body(**fields: Any) -> dict[str, Any]:
    """A good chat body with some fields that may not be."""
    return {"model": MODEL, "messages": QUESTION, **fields}


def error_of(response: httpx.Response) -> dict[str, Any]:
    """What OpenAI's error envelope holds. Raises ValueError unless it has its four fields."""
    error: dict[str, Any] = response.json()["error"]
    if set(error) != {"message", "type", "param", "code"}:
        raise ValueError(f"not an OpenAI error: {error}")
    return error
