"""Authorization over a real connection."""

from typing import Any

import pytest
from corral.inference.v1 import engine_service_pb2, engine_service_pb2_grpc
from corral.inference.v1 import inference_service_pb2 as pb

from svc_kit import errors
from svc_kit.auth.authenticator import Authenticator, ServiceToken, principal_metadata
from svc_kit.auth.keys import SettingsKeys, hash_key
from svc_kit.auth.principal import Principal, Priority, current_principal
from svc_kit.errors import DomainError
from svc_kit.rpc.client import open_channel, translate_errors
from svc_kit.rpc.server import RpcServer, Service
from svc_kit.settings.groups import KeySettings
from tests.support.rpc_servers import (
    METHOD,
    Context,
    Running,
    ScriptedInference,
    run_rpc_server,
    stub_on,
    two_tokens,
)

TOKEN = ServiceToken("svc-corral-test")
BLUE = Principal(
    project="blue", scopes=frozenset({"inference"}), priority=Priority.BATCH, key_id="ci"
)


def make_key(secret: str, **values: Any) -> KeySettings:
    return KeySettings.model_validate({"name": secret, "sha256": hash_key(secret), **values})


def with_keys() -> Authenticator:
    keys = [
        make_key("sk-user", project="red"),
        make_key("sk-admin", scopes=["admin"]),
        make_key("sk-old", expires_at="2020-01-01T00:00:00Z"),
    ]
    return Authenticator(verifier=SettingsKeys(keys), service_token=TOKEN)


async def attempt(running: Running, kind: str, *metadata: tuple[str, str]) -> None:
    """Call a method with metadata. Raises DomainError."""
    with translate_errors():
        if kind == "unary":
            await running.stub.Tokenize(pb.TokenizeRequest(), metadata=metadata)
        else:
            async for _ in running.stub.Generate(pb.GenerateRequest(), metadata=metadata):
                pass


def bearer(secret: str) -> tuple[str, str]:
    return ("authorization", f"Bearer {secret}")


@pytest.mark.parametrize("kind", ["unary", "stream"])
async def test_a_key_with_the_scope_may_call(kind: str) -> None:
    async with run_rpc_server(authenticator=with_keys()) as running:
        await attempt(running, kind, bearer("sk-user"))


@pytest.mark.parametrize("kind", ["unary", "stream"])
@pytest.mark.parametrize(
    ("metadata", "error"),
    [
        ([], errors.ApiKeyMissing()),
        ([bearer("sk-nobody")], errors.ApiKeyInvalid()),
        ([bearer("sk-old")], errors.ApiKeyExpired()),
        ([bearer("sk-admin")], None),
        ([bearer(TOKEN.secret), ("x-corral-project", "blue")], None),
    ],
)
async def test_a_refusal_has_the_reason(
    kind: str, metadata: list[tuple[str, str]], error: DomainError | None
) -> None:
    """Missing, unknown and expired keys, and keys without the scope, on calls and streams."""
    name = METHOD + ("Tokenize" if kind == "unary" else "Generate")
    expected = error or errors.ScopeMissing(scope="generate", method=name)
    async with run_rpc_server(authenticator=with_keys()) as running:
        with pytest.raises(DomainError) as raised:
            await attempt(running, kind, *metadata)

    assert raised.value == expected


async def test_the_servicer_is_not_reached_without_a_credential() -> None:
    """The request is not parsed."""
    reached = False

    async def tokenize(request: pb.TokenizeRequest, context: Context) -> pb.TokenizeResponse:
        nonlocal reached
        reached = True
        return await two_tokens(request, context)

    async with run_rpc_server(ScriptedInference(tokenize), authenticator=with_keys()) as running:
        call: Any = running.channel.unary_unary(f"{METHOD}Tokenize")
        with pytest.raises(errors.ApiKeyMissing), translate_errors():
            await call(b"\xff\xff")
        with pytest.raises(errors.ApiKeyMissing):
            await attempt(running, "unary")

    assert not reached


async def get_principal(*metadata: tuple[str, str], authenticator: Authenticator) -> Principal:
    seen = []

    async def tokenize(request: pb.TokenizeRequest, context: Context) -> pb.TokenizeResponse:
        seen.append(current_principal())
        return await two_tokens(request, context)

    async with run_rpc_server(ScriptedInference(tokenize), authenticator=authenticator) as running:
        await attempt(running, "unary", *metadata)
    return seen[0]


async def test_a_service_can_call_for_a_project() -> None:
    seen = await get_principal(
        bearer(TOKEN.secret), *principal_metadata(BLUE), authenticator=with_keys()
    )

    assert (seen.project, seen.scopes, seen.priority) == ("blue", BLUE.scopes, Priority.BATCH)


async def test_a_key_cannot_call_for_another_project() -> None:
    """The metadata is ignored."""
    seen = await get_principal(
        bearer("sk-user"), *principal_metadata(BLUE), authenticator=with_keys()
    )

    assert (seen.project, seen.priority, seen.is_service) == ("red", Priority.NORMAL, False)


async def test_a_keyless_caller_cannot_call_for_a_project() -> None:
    authenticator = Authenticator(keyless=["inference"], service_token=TOKEN)
    seen = await get_principal(*principal_metadata(BLUE), authenticator=authenticator)

    assert (seen.project, seen.is_service) == ("default", False)


async def test_a_channel_with_a_token_sends_it_with_every_call() -> None:
    """In addition to the metadata of each call."""
    async with (
        run_rpc_server(authenticator=with_keys()) as running,
        open_channel(running.target, token=TOKEN.secret) as channel,
    ):
        stub = stub_on(channel)
        await channel.channel_ready()
        await stub.Tokenize(pb.TokenizeRequest())
        async for _ in stub.Generate(pb.GenerateRequest(), metadata=principal_metadata(BLUE)):
            pass
        with pytest.raises(errors.ScopeMissing), translate_errors():
            await stub.Tokenize(pb.TokenizeRequest(), metadata=(("x-corral-project", "b"),))


async def test_methods_for_operators_require_the_scope_admin() -> None:
    """Other keys and keyless callers of a public address are refused."""
    from prometheus_client import CollectorRegistry

    server = RpcServer(
        [
            Service(
                engine_service_pb2_grpc.add_EngineServiceServicer_to_server,
                engine_service_pb2_grpc.EngineServiceServicer(),
                "corral.inference.v1.EngineService",
            )
        ],
        listen="127.0.0.1:0",
        authenticator=with_keys(),
        registry=CollectorRegistry(),
    )
    await server.start()
    outcomes = {}
    for key in ("sk-user", "sk-admin", TOKEN.secret):
        async with open_channel(str(server.address), token=key) as channel:
            stub = engine_service_pb2_grpc.EngineServiceStub(channel)
            try:
                with translate_errors():
                    await stub.Drain(engine_service_pb2.DrainRequest())
            except DomainError as error:
                outcomes[key] = error.reason
    await server.drain(0)

    # The servicer is the generated one: whoever reaches it gets UNIMPLEMENTED.
    assert outcomes == {
        "sk-user": "SCOPE_MISSING",
        "sk-admin": "FEATURE_UNSUPPORTED",
        TOKEN.secret: "FEATURE_UNSUPPORTED",
    }
