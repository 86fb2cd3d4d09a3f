"""Stored keys for every RPC and route of all services."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc.aio
import httpx
import pytest
from corral.inference.v1 import engine_service_pb2_grpc, inference_service_pb2_grpc
from prometheus_client import CollectorRegistry

from gateway.app import running as running_gateway
from gateway.config import GatewaySettings
from svc_kit.auth.authenticator import ServiceToken, build_authenticator
from svc_kit.auth.control_keys import ControlKeys, control_key_lookup
from svc_kit.auth.keys import create_key
from svc_kit.auth.scopes import INCLUDED, Scope
from svc_kit.errors import (
    DomainError,
    PermissionDenied,
    Unauthenticated,
    Unavailable,
    UpstreamUnavailable,
)
from svc_kit.rpc.client import open_channel, translate_errors
from svc_kit.rpc.server import RpcServer, Service
from tests.support.control import RunningControl, run_control
from tests.support.operators import ADMIN, INFERENCE, Operator, make_timestamp
from tests.support.tokens import AUDIENCE, Issuer, run_issuer
from tools.rpc_methods import METHODS

CHAT = "/corral.inference.v1.InferenceService/Chat"
NO_MESSAGE = b"\xff\xff"
OPERATORS_ROUTES = {"/v1/load_lora_adapter", "/v1/unload_lora_adapter"}
ROUTES_OF_ALL = {"/v1/models", "/v1/models/model"}
"""Invalid request bytes: an authorized caller gets INVALID_ARGUMENT, without side effects."""


@asynccontextmanager
async def run_inference_server(
    control: RunningControl, *, token: str | None = None, cache_s: float = 30.0
) -> AsyncIterator[grpc.aio.Channel]:
    shown = token or read_token(control)
    async with AsyncExitStack() as stack:
        asking = await stack.enter_async_context(open_channel(control.target, token=shown))
        server = RpcServer(
            [
                Service(
                    inference_service_pb2_grpc.add_InferenceServiceServicer_to_server,
                    inference_service_pb2_grpc.InferenceServiceServicer(),
                    "corral.inference.v1.InferenceService",
                ),
                Service(
                    engine_service_pb2_grpc.add_EngineServiceServicer_to_server,
                    engine_service_pb2_grpc.EngineServiceServicer(),
                    "corral.inference.v1.EngineService",
                ),
            ],
            listen="127.0.0.1:0",
            authenticator=build_authenticator(
                listen="127.0.0.1:0",
                require_keys=True,
                service_token_file=control.folder / "token",
                stored_keys=ControlKeys(control_key_lookup(asking), cache_s=cache_s),
            ),
            registry=CollectorRegistry(),
        )
        await server.start()
        stack.push_async_callback(server.drain, 0)
        yield await stack.enter_async_context(open_channel(str(server.address)))


@pytest.fixture
async def control(tmp_path: Path) -> AsyncIterator[RunningControl]:
    async with run_control(tmp_path, require_keys=True) as running:
        yield running


def read_token(running: RunningControl) -> str:
    return ServiceToken.read(running.folder / "token").secret


async def call(channel: grpc.aio.Channel, method: str, key: str | None) -> None:
    """Send an invalid request. Raises the DomainError of the response."""
    metadata = () if key is None else (("authorization", f"Bearer {key}"),)
    # Not as a client stream: if a call is refused before its message, writing fails as INTERNAL.
    start: Any = channel.unary_stream(method)
    with translate_errors():
        async for _ in start(NO_MESSAGE, metadata=metadata):
            pass


async def outcome(channel: grpc.aio.Channel, method: str, key: str | None) -> str:
    """Return the reason of a refusal, or "reached" if the caller was authorized. A key that cannot
    be verified now is refused, too."""
    try:
        await call(channel, method, key)
    except (Unauthenticated, PermissionDenied, Unavailable) as error:
        return error.reason
    except DomainError:
        pass
    return "reached"


@dataclass(frozen=True)
class Keys:
    user: str
    admin: str
    expired: str
    revoked: str
    archived: str

    @classmethod
    async def make(cls, running: RunningControl) -> "Keys":
        """All except `user` and `admin` are unusable."""
        operator = Operator.of(running)
        both: dict[str, Any] = {"scopes": [ADMIN, INFERENCE]}
        await operator.create_project("closed")
        end = make_timestamp(running.clock() + timedelta(minutes=1))
        user = await operator.create_key()
        admin = await operator.create_key(scopes=[ADMIN])
        expired = await operator.create_key(expire_time=end, **both)
        revoked = await operator.create_key(**both)
        archived = await operator.create_key("closed", **both)
        running.clock.advance(minutes=1)
        await operator.revoke(revoked.key.id)
        await operator.archive("closed")
        made = (user, admin, expired, revoked, archived)
        return cls(*(each.secret for each in made))

    def refused(self) -> Iterator[tuple[str | None, str]]:
        """The expected reasons for unusable keys and for no key."""
        yield None, "API_KEY_MISSING"
        yield create_key(), "API_KEY_INVALID"
        yield "sk-something-else", "API_KEY_INVALID"
        yield self.expired, "API_KEY_EXPIRED"
        yield self.revoked, "API_KEY_REVOKED"
        yield self.archived, "PROJECT_ARCHIVED"


def expected_outcomes(
    scope: Scope, keys: Keys, service_token: str
) -> Iterator[tuple[str | None, str]]:
    """Yield every credential with the expected outcome for a method of a scope."""
    if scope is Scope.PUBLIC:
        yield None, "reached"
        return
    yield from keys.refused()
    holders = {service_token}
    if scope not in (Scope.SERVICE, Scope.ADMIN, Scope.ADMIN_READ):
        holders.add(keys.user)
    if scope is Scope.KNOWN or Scope.ADMIN in {scope, *INCLUDED.get(scope, ())}:
        holders.add(keys.admin)
    for key in (keys.user, keys.admin, service_token):
        yield key, "reached" if key in holders else "SCOPE_MISSING"


async def test_every_rpc_of_control_checks_keys(control: RunningControl) -> None:
    """Missing, wrong, expired, revoked, of an archived project, without the scope, and valid."""
    keys = await Keys.make(control)
    for method, options in METHODS.items():
        if not method.startswith("/corral.inference."):
            for key, answer in expected_outcomes(options.scope, keys, read_token(control)):
                assert await outcome(control.client.channel, method, key) == answer, method


async def test_every_rpc_of_inference_checks_keys(control: RunningControl) -> None:
    keys = await Keys.make(control)
    async with run_inference_server(control) as channel:
        for method, options in METHODS.items():
            if not method.startswith("/corral.control."):
                for key, answer in expected_outcomes(options.scope, keys, read_token(control)):
                    assert await outcome(channel, method, key) == answer, method


async def test_every_route_of_the_gateway_checks_keys(control: RunningControl) -> None:
    """All routes of its OpenAPI document, with OpenAI's error envelope."""
    keys = await Keys.make(control)
    settings = GatewaySettings(
        listen="127.0.0.1:0",
        management_listen=None,
        control_target=control.target,
        service_token_file=control.folder / "token",
        require_keys=True,
    )
    async with (
        running_gateway(settings) as gateway,
        httpx.AsyncClient(base_url=f"http://{gateway.http}", trust_env=False) as client,
    ):
        routes = [
            (verb.upper(), path.replace("{", "").replace("}", ""))
            for path, verbs in (await client.get("/openapi.json")).json()["paths"].items()
            for verb in verbs
            if path.startswith("/v1/")
        ]
        for verb, path in routes:
            right, narrow = keys.user, keys.admin
            if path in OPERATORS_ROUTES:
                right, narrow = narrow, right
            scope = [] if path in ROUTES_OF_ALL else [(narrow, "SCOPE_MISSING")]
            for key, reason in (*keys.refused(), *scope):
                headers = {} if key is None else {"authorization": f"Bearer {key}"}
                refused = await client.request(verb, path, headers=headers)
                denied = reason in ("SCOPE_MISSING", "PROJECT_ARCHIVED")
                assert refused.status_code == (403 if denied else 401), (verb, path)
                code = {"API_KEY_INVALID": "invalid_api_key", "API_KEY_MISSING": None}
                if not path.startswith("/v1/messages"):  # Anthropic's errors have no code
                    assert refused.json()["error"]["code"] == code.get(reason, reason.lower())
            headers = {"authorization": f"Bearer {right}"}
            reached = await client.request(verb, path, headers=headers)
            assert reached.status_code not in (401, 403), (verb, path)
        service = {"authorization": f"Bearer {read_token(control)}"}
        by_service = await client.get("/v1/models", headers=service)

    assert len(routes) >= 14
    assert by_service.status_code == 401


async def test_keys_are_not_invalid_if_the_service_token_is_wrong(
    control: RunningControl,
) -> None:
    """The wrong token is logged."""
    key = (await Operator.of(control).create_key()).secret
    async with run_inference_server(control, token="svc-corral-of-another") as channel:
        with pytest.raises(UpstreamUnavailable):
            await call(channel, CHAT, key)


@asynccontextmanager
async def run_with_issuer(
    folder: Path, issuer: Issuer, cache_s: float
) -> AsyncIterator[tuple[RunningControl, httpx.AsyncClient]]:
    accepted = {
        "name": "idp",
        "issuer": issuer.url,
        "audience": AUDIENCE,
        "projects": {"research": "lab", "staff": "office"},
    }
    async with run_control(folder, issuers=[accepted]) as control:
        settings = GatewaySettings(
            listen="127.0.0.1:0",
            management_listen=None,
            control_target=control.target,
            service_token_file=control.folder / "token",
            key_cache_s=cache_s,
            issuers=[accepted],
        )
        async with (
            running_gateway(settings) as gateway,
            httpx.AsyncClient(base_url=f"http://{gateway.http}", trust_env=False) as client,
        ):
            yield control, client


async def test_an_archived_project_stops_its_access_tokens(tmp_path: Path) -> None:
    """In the gateway and in the control service; those of projects that nobody has created stay
    valid."""
    async with run_issuer() as issuer, run_with_issuer(tmp_path, issuer, 0) as (control, client):
        lab, office = issuer.token(groups=["research"]), issuer.token(groups=["staff"])
        operator = Operator.of(control)
        await operator.create_project("lab")
        answers = []
        for _ in range(2):
            for token in (lab, office):
                listed = await client.get("/v1/files", headers={"authorization": f"Bearer {token}"})
                answers.append(listed.json().get("error", {}).get("code", listed.status_code))
                over_grpc = outcome(
                    control.client.channel, "/corral.control.v1.FileService/ListFiles", token
                )
                answers.append(await over_grpc)
            await operator.archive("lab")

    refused = ["project_archived", "PROJECT_ARCHIVED"]
    assert answers == [*(200, "reached"), *(200, "reached"), *refused, *(200, "reached")]
