"""Which scopes open which routes: the same as over gRPC."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from corral.control.v1.audit_service_pb2 import ListAuditEventsRequest
from corral.control.v1.audit_service_pb2_grpc import AuditServiceStub
from httpx import AsyncClient
from pydantic import SecretStr

from gateway.routes import admin
from svc_kit.auth.keys import hash_key
from svc_kit.auth.principal import Principal
from svc_kit.auth.scopes import GRANTABLE, Scope
from svc_kit.settings.groups import KeySettings
from tests.support.control import run_control
from tests.support.fake_inference import FakeInference
from tests.support.loopback_gateway import run_gateway, run_inference_service
from tests.support.operators import Operator
from tools.rpc_methods import METHODS

SCOPES = sorted(GRANTABLE)
CALLS = admin._CALLS
FORBIDDEN = 403
IDS = {"key_id": "key_x", "limit_id": "limit_x"}


def scope_over_grpc(call: Any) -> Scope:
    method = call.request.DESCRIPTOR.name.removesuffix("Request")
    (scope,) = (o.scope for path, o in METHODS.items() if path.endswith(f"/{method}"))
    return scope


def make_key(scope: str) -> KeySettings:
    return KeySettings(name=scope, sha256=SecretStr(hash_key(scope)), scopes=frozenset({scope}))


async def is_refused(client: AsyncClient, method: str, path: str, scope: str) -> bool:
    """Whether a route refuses the key of a scope."""
    headers = {"authorization": f"Bearer {scope}"}
    body = b"{}" if method == "POST" else None
    headers["content-type"] = "application/json"
    answer = await client.request(method, path, headers=headers, content=body)
    return answer.status_code == FORBIDDEN


async def test_routes_of_operators_have_the_scopes_of_their_methods() -> None:
    """For every route and every scope; what a service answers then is another matter."""
    cases = [(call, scope) for call in CALLS for scope in SCOPES]
    async with (
        run_inference_service(FakeInference()) as services,
        run_gateway(
            keys=[make_key(scope) for scope in SCOPES], control_target=str(services.address)
        ) as gateway,
        gateway.client() as client,
    ):
        refused = await asyncio.gather(
            *(
                is_refused(client, call.verb, f"/admin{call.path.format_map(IDS)}", scope)
                for call, scope in cases
            )
        )

    def is_granted(call: Any, scope: str) -> bool:
        return Principal(scopes=frozenset({scope}), key_id="k").has(scope_over_grpc(call))

    wrong = [
        f"{scope}: {call.verb} {call.path}"
        for (call, scope), is_forbidden in zip(cases, refused, strict=True)
        if is_granted(call, scope) is is_forbidden
    ]
    assert wrong == []


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/fake", "/api/tags", "/api/version"])
async def test_models_are_shown_to_operators_too(path: str) -> None:
    """As over gRPC, where ListModels and GetModel need any of these scopes."""
    async with (
        run_gateway(keys=[make_key(scope) for scope in SCOPES]) as gateway,
        gateway.client() as client,
    ):
        refused = {scope for scope in SCOPES if await is_refused(client, "GET", path, scope)}

    assert refused == {"files", "files_read", "read"}


async def test_refused_calls_of_routes_are_in_the_audit_log(tmp_path: Path) -> None:
    """Once, and only those with the scope admin. No call is made to the service of the route."""
    key = make_key("inference")
    headers = {"authorization": "Bearer inference"}
    async with (
        run_control(tmp_path / "control") as control,
        run_gateway(
            keys=[key], control_target=control.target, service_token_file=control.folder / "token"
        ) as gateway,
        gateway.client(headers=headers) as client,
    ):
        answer = await client.post("/admin/keys", json={"name": "mine"})
        for _ in range(2):
            await client.post("/admin/models/unload", json={"model": "fake"})
        await client.get("/admin/keys")
        operator = Operator.of(control)
        stub, request = AuditServiceStub(operator.channel), ListAuditEventsRequest()
        events = (await operator.call(stub.ListAuditEvents, request)).events

    assert answer.json()["error"]["code"] == "scope_missing"
    assert [(event.actor, event.method, event.refusal) for event in events] == [
        ("inference", "EngineService/UnloadModel", "SCOPE_MISSING"),
        ("inference", "KeyService/CreateKey", "SCOPE_MISSING"),
    ]
