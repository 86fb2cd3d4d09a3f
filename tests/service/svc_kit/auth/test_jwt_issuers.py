"""Access tokens of an issuer that serves its keys over HTTP."""

import base64
import hashlib
import hmac
from collections.abc import AsyncIterator, Callable, Set
from datetime import UTC, datetime, timedelta
from typing import Any

import jwt
import pytest
from corral.inference.v1 import inference_service_pb2 as pb
from cryptography.hazmat.primitives import serialization
from pydantic import ValidationError

from svc_kit.auth.authenticator import build_authenticator
from svc_kit.auth.jwt_issuers import (
    CACHE_S,
    MAX_STALE_S,
    UNKNOWN_KEY_INTERVAL_S,
    IssuerKeys,
    JwtIssuers,
    _fetcher,
)
from svc_kit.auth.principal import Priority
from svc_kit.errors import (
    AccessTokenInvalid,
    AccessTokenWithoutProject,
    ApiKeyInvalid,
    ApiKeyMissing,
    DomainError,
    ScopeMissing,
    UpstreamUnavailable,
)
from svc_kit.rpc.client import open_channel, translate_errors
from svc_kit.settings.groups import IssuerSettings
from tests.support.fake_inference import FakeInference
from tests.support.loopback_gateway import run_gateway
from tests.support.rpc_servers import run_rpc_server, stub_on
from tests.support.tokens import AUDIENCE, Issuer, forge, new_key, run_issuer

CHAT = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}
MINUTE = timedelta(minutes=1)


@pytest.fixture
async def issuer() -> AsyncIterator[Issuer]:
    async with run_issuer() as running:
        yield running


def settings_of(issuer: Issuer, /, **settings: Any) -> IssuerSettings:
    """Settings that give the group research the project lab."""
    defaults = {
        "name": "idp",
        "issuer": issuer.url,
        "audience": AUDIENCE,
        "projects": {"admins": "ops", "research": "lab"},
    }
    return IssuerSettings.model_validate(defaults | settings)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def with_clock(issuer: Issuer) -> tuple[JwtIssuers, Clock]:
    """Accept the tokens of an issuer, with a clock for its keys."""
    settings, clock = settings_of(issuer), Clock()
    return JwtIssuers([(settings, IssuerKeys("idp", _fetcher(settings), clock=clock))]), clock


async def test_a_token_gives_project_scopes_and_priority(issuer: Issuer) -> None:
    """By its groups and scopes; its subject is in the id of the key."""
    verifier = JwtIssuers.from_settings([settings_of(issuer, priority="batch")])
    principal = await verifier.verify(issuer.token())

    assert (principal.project, principal.key_id) == ("lab", "idp:alice")
    assert principal.scopes == {"inference"}
    assert principal.priority is Priority.BATCH


@pytest.mark.parametrize(
    ("settings", "claims", "project", "scopes"),
    [
        ({}, {"groups": ["research", "admins"]}, "ops", {"inference"}),
        ({"default_project": "default"}, {"groups": None}, "default", {"inference"}),
        ({"scopes": {"llm": "admin"}}, {"scope": "llm corral:inference"}, "lab", {"admin"}),
        ({"scope_claim": "scp"}, {"scp": ["corral:read", 7]}, "lab", {"read"}),
        ({"default_scopes": ["generate"]}, {"scope": None}, "lab", {"generate"}),
        (
            {"groups_claim": "realm_access.roles"},
            {"realm_access": {"roles": ["research"]}},
            *("lab", {"inference"}),
        ),
        ({"groups_claim": "https://a.b/g"}, {"https://a.b/g": "research"}, "lab", {"inference"}),
        ({}, {"scope": {"corral:inference": 1}}, "lab", set()),
        ({}, {"scope": 5}, "lab", set()),
    ],
)
async def test_claims_are_mapped_by_the_settings(
    issuer: Issuer,
    settings: dict[str, Any],
    claims: dict[str, Any],
    project: str,
    scopes: Set[str],
) -> None:
    """The first group in the order of the settings counts; other scopes are ignored."""
    verifier = JwtIssuers.from_settings([settings_of(issuer, **settings)])
    principal = await verifier.verify(issuer.token(**claims))

    assert principal.project == project
    assert principal.scopes == scopes


async def test_a_token_without_a_mapped_group_is_refused(issuer: Issuer) -> None:
    """The error names the claim."""
    verifier = JwtIssuers.from_settings([settings_of(issuer)])
    with pytest.raises(AccessTokenWithoutProject, match="'groups'"):
        await verifier.verify(issuer.token(groups=["staff"]))


@pytest.mark.parametrize(
    ("claims", "problem"),
    [
        ({"exp": -MINUTE}, "expired"),
        ({"nbf": MINUTE}, "not yet valid"),
        ({"aud": "https://another.test"}, "Audience"),
        ({"aud": None}, "aud"),
        ({"exp": None}, "exp"),
        ({"sub": None}, "sub"),
        ({"sub": ""}, "sub"),
        ({"sub": "a\nb"}, "sub"),
        ({"sub": "a" * 256}, "sub"),
        ({"iss": "https://evil.test"}, "issuer"),
        ({"iss": None}, "issuer"),
    ],
)
async def test_a_token_with_wrong_claims_is_refused(
    issuer: Issuer, claims: dict[str, Any], problem: str
) -> None:
    """Although its signature is right. Times are relative to now."""
    verifier = JwtIssuers.from_settings([settings_of(issuer)])
    for name, value in claims.items():
        if isinstance(value, timedelta):
            claims = claims | {name: datetime.now(UTC) + value}
    with pytest.raises(AccessTokenInvalid, match=problem):
        await verifier.verify(issuer.token(**claims))


async def test_clocks_may_differ_by_the_leeway(issuer: Issuer) -> None:
    """30 seconds by default."""
    verifier = JwtIssuers.from_settings([settings_of(issuer)])
    now, difference = datetime.now(UTC), timedelta(seconds=10)
    late, early = now - difference, now + difference
    await verifier.verify(issuer.token(exp=late))
    await verifier.verify(issuer.token(nbf=early))
    strict = JwtIssuers.from_settings([settings_of(issuer, leeway_s=0)])
    with pytest.raises(AccessTokenInvalid):
        await strict.verify(issuer.token(exp=late))


def sign_with_public_key(issuer: Issuer) -> str:
    """A token with an HMAC whose secret is the public key (algorithm confusion)."""
    pem = issuer.keys["k1"].public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )  # fmt: skip
    head, body, _ = forge(issuer.token(), header={"alg": "HS256"}).split(".")
    mac = hmac.new(pem, f"{head}.{body}".encode(), hashlib.sha256).digest()
    return f"{head}.{body}.{base64.urlsafe_b64encode(mac).decode().rstrip('=')}"


def sign_with_own_key(issuer: Issuer) -> str:
    """A token that brings its own key in the header."""
    thief = Issuer(url=issuer.url, keys={"k1": new_key()})
    headers = {"kid": "k1", "jwk": thief.public("k1"), "jku": "https://evil.test/jwks"}
    claims = jwt.decode(thief.token(), options={"verify_signature": False})
    return jwt.encode(claims, thief.keys["k1"], algorithm="RS256", headers=headers)


FORGERIES: dict[str, Callable[[Issuer], str]] = {
    "none": lambda issuer: forge(issuer.token(), header={"alg": "none"}),
    "no signature": lambda issuer: issuer.token().rpartition(".")[0] + ".",
    "algorithm confusion": sign_with_public_key,
    "own key": sign_with_own_key,
    "other claims": lambda issuer: forge(issuer.token(), groups=["admins"]),
    "a list of issuers": lambda issuer: forge(issuer.token(), iss=[issuer.url]),
    "another algorithm": lambda issuer: issuer.token(alg="RS512"),
    "unknown extension": lambda issuer: forge(issuer.token(), header={"crit": ["x"], "x": 1}),
}


@pytest.mark.parametrize("name", FORGERIES)
async def test_a_forged_token_is_refused(issuer: Issuer, name: str) -> None:
    """Algorithms and keys are those of the settings and of the issuer, not of the header."""
    verifier = JwtIssuers.from_settings([settings_of(issuer)])
    token = FORGERIES[name](issuer)
    with pytest.raises((AccessTokenInvalid, ApiKeyInvalid)):
        await verifier.verify(token)


@pytest.mark.parametrize("text", ["", "a", "a.b.c", "sk-corral-x", "eyJhbGciOiJub25lIn0.e30."])
async def test_a_text_that_is_no_token_is_an_invalid_key_or_token(
    issuer: Issuer, text: str
) -> None:
    """Nothing is fetched for it."""
    verifier = JwtIssuers.from_settings([settings_of(issuer)])
    with pytest.raises((AccessTokenInvalid, ApiKeyInvalid)):
        await verifier.verify(text)
    assert issuer.num_fetches == 0


async def test_keys_are_fetched_once_and_again_when_stale(issuer: Issuer) -> None:
    """The old ones stay in use while the issuer is away, for a day."""
    verifier, clock = with_clock(issuer)
    for _ in range(3):
        await verifier.verify(issuer.token())
    assert issuer.num_fetches == 2  # the discovery document, and the keys

    issuer.is_away = True
    clock.now = CACHE_S
    await verifier.verify(issuer.token())
    clock.now = MAX_STALE_S - 1
    await verifier.verify(issuer.token())
    clock.now = MAX_STALE_S
    with pytest.raises(UpstreamUnavailable, match="idp"):
        await verifier.verify(issuer.token())
    issuer.is_away = False
    await verifier.verify(issuer.token())


async def test_an_unknown_key_causes_one_fetch_in_30_seconds(issuer: Issuer) -> None:
    """A new key of the issuer is accepted at once if the last fetch is older."""
    verifier, clock = with_clock(issuer)
    await verifier.verify(issuer.token())
    clock.now = UNKNOWN_KEY_INTERVAL_S
    issuer.keys["k2"] = new_key()
    await verifier.verify(issuer.token("k2"))
    after_rotation = issuer.num_fetches
    stranger = Issuer(url=issuer.url, keys={f"x{number}": new_key() for number in range(2)})
    for key_id in stranger.keys:
        with pytest.raises(AccessTokenInvalid, match="none of the issuer's"):
            await verifier.verify(stranger.token(key_id))
    during = issuer.num_fetches
    clock.now += UNKNOWN_KEY_INTERVAL_S
    for key_id in stranger.keys:
        with pytest.raises(AccessTokenInvalid):
            await verifier.verify(stranger.token(key_id))

    assert (after_rotation, during, issuer.num_fetches) == (4, 4, 6)


async def test_a_removed_key_is_refused_after_the_next_fetch(issuer: Issuer) -> None:
    """Which an unknown key or the age of the keys causes."""
    verifier, clock = with_clock(issuer)
    old = issuer.token()
    await verifier.verify(old)
    issuer.keys = {"k2": new_key()}
    clock.now = UNKNOWN_KEY_INTERVAL_S
    await verifier.verify(issuer.token("k2"))
    with pytest.raises(AccessTokenInvalid):
        await verifier.verify(old)


async def test_a_discovery_document_of_another_issuer_is_refused(issuer: Issuer) -> None:
    """And one that sends to a plain http address."""
    for alters in ({"issuer": "https://evil.test"}, {"jwks_uri": "http://192.0.2.1/jwks"}):
        issuer.alters = alters
        with pytest.raises(UpstreamUnavailable):
            await JwtIssuers.from_settings([settings_of(issuer)]).verify(issuer.token())


@pytest.mark.parametrize(
    "settings",
    [
        {"issuer": "http://issuer.test"},
        {"issuer": "ftp://127.0.0.1"},
        {"jwks_url": "http://192.0.2.1/jwks"},
        {"algorithms": ["HS256"]},
        {"algorithms": ["none"]},
        {"scopes": {"x": "service"}},
        {"audience": ""},
        {"name": "a b"},
        {"projects": {"g": ""}},
    ],
)
def test_settings_that_would_be_unsafe_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        settings_of(Issuer(), **settings)


async def test_tokens_are_credentials_over_http(issuer: Issuer) -> None:
    """Callers without one are refused, on loopback too."""
    fake, settings = FakeInference(), settings_of(issuer)
    async with run_gateway(fake, issuers=(settings,)) as gateway, gateway.client() as client:

        async def status(token: str | None) -> tuple[int, str | None]:
            headers = {} if token is None else {"authorization": f"Bearer {token}"}
            answer = await client.post("/v1/chat/completions", json=CHAT, headers=headers)
            error = answer.json().get("error")
            return answer.status_code, error and error["code"]

        outcomes = [
            await status(issuer.token()),
            await status(None),
            await status("placeholder"),
            await status(issuer.token(exp=datetime.now(UTC) - MINUTE)),
            await status(issuer.token(scope="corral:read")),
            await status(issuer.token(groups=[])),
        ]
        issuer.is_away = True

    assert outcomes == [
        (200, None),
        (401, None),
        (401, "invalid_api_key"),
        (401, "invalid_api_key"),
        (403, "scope_missing"),
        (403, "access_token_without_project"),
    ]


async def test_tokens_are_credentials_over_grpc(issuer: Issuer) -> None:
    """With the same errors as keys."""
    authenticator = build_authenticator(listen="127.0.0.1:1", issuers=[settings_of(issuer)])
    cases: list[tuple[str | None, type[DomainError] | None]] = [
        (issuer.token(), None),
        (None, ApiKeyMissing),
        (issuer.token(aud="x"), AccessTokenInvalid),
        (issuer.token(scope=""), ScopeMissing),
    ]
    async with run_rpc_server(authenticator=authenticator) as running:
        for token, error in cases:
            async with open_channel(running.target, token=token) as channel:
                with translate_errors():
                    if error is None:
                        await stub_on(channel).Tokenize(pb.TokenizeRequest())
                        continue
                with pytest.raises(error), translate_errors():
                    await stub_on(channel).Tokenize(pb.TokenizeRequest())
