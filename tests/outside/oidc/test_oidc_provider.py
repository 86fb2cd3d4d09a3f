"""Access tokens of oidc-provider, a certified OpenID Connect issuer, over HTTP and gRPC."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from corral.inference.v1 import inference_service_pb2 as pb

from svc_kit.auth.authenticator import build_authenticator
from svc_kit.auth.jwt_issuers import JwtIssuers
from svc_kit.errors import AccessTokenInvalid
from svc_kit.rpc.client import open_channel, translate_errors
from svc_kit.settings.groups import IssuerSettings
from tests.support.fake_inference import FakeInference
from tests.support.loopback_gateway import run_gateway
from tests.support.rpc_servers import run_rpc_server, stub_on

HERE = Path(__file__).parent
AUDIENCE = "https://corral.test"
CLIENTS = [
    {"id": "app", "secret": "s", "groups": ["staff", "research"]},
    {"id": "short", "secret": "s", "groups": ["research"], "ttl": 1},
    {"id": "outsider", "secret": "s", "groups": ["staff"]},
]
CHAT = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(
        not (HERE / "node_modules").is_dir(), reason="make test-clients installs oidc-provider"
    ),
]


@contextmanager
def run_provider(port: int = 0) -> Iterator[str]:
    values = {"ISSUER": json.dumps({"audience": AUDIENCE, "clients": CLIENTS})}
    process = subprocess.Popen(
        ["node", "issuer.mjs"],
        cwd=HERE,
        env=os.environ | values | {"ISSUER_PORT": str(port)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        yield process.stdout.readline().strip()
        process.stdin.close()


@pytest.fixture
def issuer() -> Iterator[str]:
    with run_provider() as url:
        yield url


def settings_of(issuer: str, **settings: Any) -> IssuerSettings:
    """Accept the tokens of the provider; those of the group research have the project lab."""
    defaults: dict[str, Any] = {"audience": AUDIENCE, "projects": {"research": "lab"}}
    return IssuerSettings.model_validate({"name": "op", "issuer": issuer, **defaults, **settings})


def get_token(
    issuer: str,
    client: str = "app",
    *,
    resource: str = AUDIENCE,
    scope: str = "corral:inference",
) -> str:
    discovery = httpx.get(f"{issuer}/.well-known/openid-configuration", trust_env=False).json()
    form = {"grant_type": "client_credentials", "client_id": client, "client_secret": "s"}
    answer = httpx.post(
        discovery["token_endpoint"],
        data=form | {"resource": resource, "scope": scope},
        trust_env=False,
    )
    token: str = answer.raise_for_status().json()["access_token"]
    return token


async def test_tokens_of_the_provider_are_accepted(issuer: str) -> None:
    """With ES256 and RS256; groups and scopes are translated."""
    for resource in (AUDIENCE, "https://other.test"):
        verifier = JwtIssuers.from_settings([settings_of(issuer, audience=resource)])
        token = get_token(issuer, resource=resource, scope="corral:read corral:admin")
        principal = await verifier.verify(token)

        assert (principal.project, principal.key_id) == ("lab", "op:app")
        assert principal.scopes == {"read", "admin"}


async def test_tokens_of_the_provider_work_over_http(issuer: str) -> None:
    """Those of another audience, with too few scopes or without a project do not."""
    tokens = [
        get_token(issuer),
        get_token(issuer, resource="https://other.test"),
        get_token(issuer, scope="corral:read"),
        get_token(issuer, "outsider"),
    ]
    async with (
        run_gateway(FakeInference(), issuers=(settings_of(issuer),)) as gateway,
        gateway.client() as client,
    ):
        statuses = [
            (
                await client.post(
                    "/v1/chat/completions", json=CHAT, headers={"authorization": f"Bearer {token}"}
                )
            ).status_code
            for token in tokens
        ]

    assert statuses == [200, 401, 403, 403]


async def test_tokens_of_the_provider_work_over_grpc(issuer: str) -> None:
    """Until they expire, for a client whose tokens live for a second."""
    settings = settings_of(issuer, leeway_s=0)
    authenticator = build_authenticator(listen="127.0.0.1:1", issuers=[settings])
    async with run_rpc_server(authenticator=authenticator) as running:

        async def call(token: str) -> None:
            async with open_channel(running.target, token=token) as channel:
                with translate_errors():
                    await stub_on(channel).Tokenize(pb.TokenizeRequest())

        await call(get_token(issuer))
        short = get_token(issuer, "short")

        async def call_for_ever() -> None:
            while True:
                await call(short)

        with pytest.raises(AccessTokenInvalid, match="expired"):
            await call_for_ever()


async def test_tokens_stay_valid_while_the_provider_is_away() -> None:
    """With the keys that it had. Tokens of its next start have new keys."""
    with run_provider() as issuer:
        verifier = JwtIssuers.from_settings([settings_of(issuer)])
        old = get_token(issuer)
        await verifier.verify(old)
    await verifier.verify(old)
    with run_provider(port=urlsplit(issuer).port or 0) as again:
        restarted = JwtIssuers.from_settings([settings_of(again)])
        await restarted.verify(get_token(again))
        with pytest.raises(AccessTokenInvalid, match="none of the issuer's"):
            await restarted.verify(old)
