"""Credentials that no client means: over HTTP, WebSockets and gRPC they are refused alike."""

import asyncio
import base64
import io
import json
import logging
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pytest
from corral.inference.v1.inference_service_pb2 import TokenizeRequest
from hypothesis import given
from hypothesis import strategies as st

from svc_kit.auth.authenticator import Authenticator, build_authenticator
from svc_kit.auth.jwt_issuers import IssuerKeys, JwtIssuers
from svc_kit.auth.keys import KeyChain, SettingsKeys, hash_key
from svc_kit.errors.kinds import PermissionDenied, Unauthenticated
from svc_kit.logs import configure_logging
from svc_kit.network import Address
from svc_kit.settings.groups import IssuerSettings, KeySettings
from tests.support.fake_inference import FakeInference
from tests.support.loopback_gateway import run_gateway
from tests.support.raw_http import open_connection
from tests.support.raw_http2 import open_grpc_connection
from tests.support.rpc_servers import METHOD, ScriptedInference, run_rpc_server, two_tokens
from tests.support.tokens import AUDIENCE, Issuer

KEY: Final = "sk-corral-secret"
KEYS: Final = (KeySettings.model_validate({"name": "app", "sha256": hash_key(KEY)}),)
ISSUER: Final = Issuer()
ISSUERS: Final = (
    IssuerSettings(name="idp", issuer=ISSUER.url, audience=AUDIENCE, projects={"research": "lab"}),
)
UNAUTHENTICATED: Final = 16
INVALID_ARGUMENT: Final = 3
Pairs = tuple[tuple[str, str], ...]


def encode(*parts: object) -> str:
    """A token of JSON values or texts; its signature is worth nothing."""
    texts = (part if isinstance(part, str) else json.dumps(part) for part in parts)
    encoded = (base64.urlsafe_b64encode(text.encode()).decode().rstrip("=") for text in texts)
    return ".".join((*encoded, "AAAA"))


def from_issuer(header: object) -> str:
    return encode(header, {"iss": ISSUER.url})


@dataclass(frozen=True)
class Service:
    """The addresses of a gateway and a gRPC server with the same keys and issuers."""

    http: Address
    grpc: Address

    async def answer(self, *headers: tuple[str, str]) -> tuple[int, int, int]:
        """The statuses over HTTP, for a WebSocket and over gRPC."""
        socket = (
            *(("upgrade", "websocket"), ("connection", "upgrade")),
            *(("sec-websocket-version", "13"), ("sec-websocket-key", "AAAAAAAAAAAAAAAAAAAAAA==")),
        )
        async with open_grpc_connection(self.grpc) as connection:
            await connection.call(f"{METHOD}Tokenize", None, *headers)
            code = await connection.status()
        return (
            await self._get("/v1/models", headers),
            await self._get("/v1/responses", (*headers, *socket)),
            code,
        )

    async def _get(self, path: str, headers: Pairs) -> int:
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
        async with open_connection(self.http) as connection:
            text = f"GET {path} HTTP/1.1\r\nhost: localhost\r\n{lines}\r\n"
            await connection.send(text.encode("latin-1"))
            status, _ = await connection.head()
        return status


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    authenticator = build_authenticator(listen="127.0.0.1:0", keys=KEYS, issuers=ISSUERS)
    async with (
        run_gateway(FakeInference(), keys=KEYS, issuers=ISSUERS) as gateway,
        run_rpc_server(authenticator=authenticator) as running,
    ):
        yield Service(gateway.address, running.server.address)


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """What is logged, as in production."""
    root, stream = logging.getLogger(), io.StringIO()
    before = root.handlers[:], root.level
    configure_logging("tests", json=True, stream=stream)
    yield stream
    root.handlers[:], root.level = before


TOKENS: Final = {
    "a space of another kind": f"{KEY}\xa0",
    "a long text of no encoding": "\xff" * 3000,
    "a list of algorithms": from_issuer({"alg": ["RS256"]}),
    "an object of algorithms": from_issuer({"alg": {"RS256": 1}}),
    "no algorithm": from_issuer({}),
    "a list of keys": from_issuer({"alg": "RS256", "kid": ["k1"]}),
    "a header that is a list": encode([], {}),
    "deep header": encode("[" * 3000, {}),
    "deep claims": encode({"alg": "RS256"}, "[" * 3000),
    "claims that are a number": encode({"alg": "RS256"}, 1),
    "a list of issuers": encode({"alg": "RS256"}, {"iss": [ISSUER.url]}),
    "not a number": encode({"alg": "RS256"}, '{"iss": NaN, "exp": 1e999}'),
    "detached": encode({"alg": "RS256", "b64": False, "crit": 1}, {}),
}


@pytest.mark.parametrize("name", TOKENS)
async def test_any_text_as_a_token_is_unauthenticated(
    service: Service, log: io.StringIO, name: str
) -> None:
    """Never an internal error, and nothing of it is in the log."""
    token = TOKENS[name]
    answer = await service.answer(("authorization", f"Bearer {token}"))

    assert answer == (401, 401, UNAUTHENTICATED)
    assert KEY not in log.getvalue()
    assert "error" not in log.getvalue()
    assert max(map(len, log.getvalue().splitlines())) < 1000


RIGHT: Final = ("authorization", f"Bearer {KEY}")


@pytest.mark.parametrize(
    "headers",
    [
        (RIGHT, RIGHT),
        (RIGHT, ("authorization", "Bearer other")),
        (("authorization", "Bearer other"), RIGHT),
        (RIGHT, ("x-api-key", "other")),
        (RIGHT, ("x-api-key", "")),
        (("x-api-key", KEY), ("api-key", "other")),
        (("x-api-key", KEY), ("x-api-key", KEY)),
    ],
)
async def test_several_credentials_are_refused(service: Service, headers: Pairs) -> None:
    """Two servers in a row could choose different ones."""
    assert await service.answer(*headers) == (400, 400, INVALID_ARGUMENT)


async def test_one_credential_is_accepted_in_each_header(service: Service) -> None:
    """Over all protocols, also the same one in several, as some clients send it; the gRPC call is
    complete but for its message."""
    headers = (RIGHT, ("x-api-key", KEY), ("api-key", KEY))
    for sent in (*((each,) for each in headers), headers[:2], headers):
        assert await service.answer(*sent) == (200, 101, INVALID_ARGUMENT)


async def test_headers_that_are_not_text_are_not_errors(log: io.StringIO) -> None:
    """The name of a method, which grpc.aio decodes in the loop that accepts all calls, neither ends
    that loop nor a running call."""
    began, release = asyncio.Event(), asyncio.Event()

    async def wait(request: Any, context: Any) -> Any:
        began.set()
        await release.wait()
        return await two_tokens(request, context)

    authenticator = Authenticator(keyless=["inference"])
    async with run_rpc_server(ScriptedInference(wait), authenticator=authenticator) as running:
        call = asyncio.ensure_future(running.stub.Tokenize(TokenizeRequest()))
        await began.wait()
        for method, pair in (
            ("/\xff", ("a", "b")),
            (f"{METHOD}\xff", ("a", "b")),
            (f"{METHOD}Unheard", ("x-corral-project", "\xff")),
            (f"{METHOD}Unheard", ("user-agent", f"{KEY}\xff")),
        ):
            async with open_grpc_connection(running.server.address) as connection:
                await connection.call(method, None, pair)
                await connection.status()
        release.set()
        assert (await call).token_ids == [1, 2]
        assert (await running.stub.Tokenize(TokenizeRequest())).token_ids == [1, 2]

    assert '"level": "error"' not in log.getvalue()


JSON: Final = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
HEADERS: Final = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("alg", "kid", "crit", "b64", "typ"), JSON | st.just("RS256"))
)
CLAIMS: Final = st.fixed_dictionaries(
    {"iss": JSON | st.just(ISSUER.url)},
    optional=dict.fromkeys(("exp", "nbf", "iat", "aud", "sub", "groups", "scope", "jti"), JSON),
)
AUTHORIZATIONS: Final = st.one_of(
    st.text(max_size=100),
    st.binary(max_size=100).map(lambda raw: "Bearer " + raw.decode("latin-1")),
    st.builds(lambda *parts: f"Bearer {encode(*parts)}", HEADERS | JSON, CLAIMS | JSON),
)


@given(authorization=AUTHORIZATIONS)
def test_any_authorization_is_refused(authorization: str) -> None:
    authenticator = build_authenticator(listen="127.0.0.1:0", keys=KEYS, issuers=ISSUERS)
    with pytest.raises(Unauthenticated):
        asyncio.run(authenticator.identify(authorization))


@given(header=HEADERS, claims=CLAIMS)
def test_any_signed_claims_give_a_principal_or_a_refusal(
    header: dict[str, Any], claims: dict[str, Any]
) -> None:
    async def verify() -> None:
        keys = IssuerKeys("idp", ISSUER.public_keys)
        verifier = KeyChain([SettingsKeys(KEYS), JwtIssuers([(ISSUERS[0], keys)])])
        await verifier.verify(ISSUER.sign(header, claims | {"iss": ISSUER.url}))

    try:
        asyncio.run(verify())
    except (Unauthenticated, PermissionDenied):
        pass
