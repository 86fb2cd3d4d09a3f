"""Reflection and channelz: what tools see of a server."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from google.protobuf import descriptor_pb2
from grpc_channelz.v1 import channelz_pb2, channelz_pb2_grpc  # type: ignore[import-untyped]
from grpc_reflection.v1alpha import reflection_pb2  # type: ignore[import-untyped]

from svc_kit import errors
from svc_kit.auth.authenticator import Authenticator
from svc_kit.auth.keys import SettingsKeys, hash_key
from svc_kit.errors import FeatureUnsupported
from svc_kit.rpc.client import translate_errors
from svc_kit.settings.groups import KeySettings, ServerSettings
from tests.support.rpc_servers import SERVICE, Running, run_rpc_server

V1 = "grpc.reflection.v1.ServerReflection"
V1ALPHA = "grpc.reflection.v1alpha.ServerReflection"


def ask(running: Running, version: str, requests: AsyncIterator[Any]) -> Any:
    """A call of a reflection service."""
    method: Any = running.channel.stream_stream(
        f"/{version}/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )
    return method(requests)


async def reflect(running: Running, version: str, **request: str) -> Any:
    """Ask one question of a reflection service."""

    async def requests() -> AsyncIterator[Any]:
        yield reflection_pb2.ServerReflectionRequest(**request)

    with translate_errors():
        answers = [answer async for answer in ask(running, version, requests())]
    return answers[0]


async def silence() -> AsyncIterator[Any]:
    """Nothing, ever: a write that meets the server's refusal would fail with INTERNAL."""
    await asyncio.Event().wait()
    yield


@pytest.mark.parametrize("version", [V1, V1ALPHA])
async def test_both_versions_list_the_services(version: str) -> None:
    """grpcurl asks for v1 first, Postman for v1alpha, new clients for v1 only."""
    async with run_rpc_server() as running:
        answer = await reflect(running, version, list_services="*")
    names = {service.name for service in answer.list_services_response.service}

    assert names == {SERVICE, "grpc.health.v1.Health", "grpc.channelz.v1.Channelz", V1, V1ALPHA}


@pytest.mark.parametrize("version", [V1, V1ALPHA])
@pytest.mark.parametrize("symbol", [SERVICE, f"{SERVICE}.Chat", V1, V1ALPHA])
async def test_both_versions_describe_every_service(version: str, symbol: str) -> None:
    """A listed service that cannot be described breaks `grpcurl describe`."""
    async with run_rpc_server() as running:
        answer = await reflect(running, version, file_containing_symbol=symbol)
    packages = {
        descriptor_pb2.FileDescriptorProto.FromString(raw).package
        for raw in answer.file_descriptor_response.file_descriptor_proto
    }

    assert any(symbol.startswith(f"{package}.") for package in packages)


async def test_reflection_wants_a_credential_where_the_server_does() -> None:
    """The schema is not secret, but who is not known learns nothing."""
    async with run_rpc_server(authenticator=Authenticator()) as running:
        with pytest.raises(errors.ApiKeyMissing), translate_errors():
            _ = [answer async for answer in ask(running, V1, silence())]


async def test_reflection_can_be_off() -> None:
    """Then its methods do not exist."""
    async with run_rpc_server(settings=ServerSettings(reflection=False)) as running:
        with pytest.raises(FeatureUnsupported), translate_errors():
            _ = [answer async for answer in ask(running, V1, silence())]


async def test_an_open_reflection_stream_does_not_hold_up_a_drain() -> None:
    """Tools leave it open."""
    async with run_rpc_server() as running:
        method: Any = running.channel.stream_stream(f"/{V1}/ServerReflectionInfo")
        call = method()
        await call.write(b"")
        await call.read()
        await running.server.drain(60)


async def test_what_is_not_there_is_not_found() -> None:
    """An answer of the protocol, not an error of the call."""
    async with run_rpc_server() as running:
        answer = await reflect(running, V1, file_containing_symbol="no.Such")

    assert answer.error_response.error_code == 5


# ---- channelz


def servers_of(running: Running, key: str = "any") -> Any:
    """Ask channelz for the servers of the process."""
    stub: Any = channelz_pb2_grpc.ChannelzStub(running.channel)
    return stub.GetServers(
        channelz_pb2.GetServersRequest(), metadata=(("authorization", f"Bearer {key}"),)
    )


async def test_channelz_shows_connections_to_operators() -> None:
    """On the server's own port."""
    async with run_rpc_server() as running:
        answer = await servers_of(running)

    assert answer.server


async def test_channelz_takes_the_scope_admin() -> None:
    """Addresses of other callers are not everybody's business."""
    key = KeySettings.model_validate({"name": "ci", "sha256": hash_key("sk-ci")})
    async with run_rpc_server(authenticator=Authenticator(verifier=SettingsKeys([key]))) as running:
        with pytest.raises(errors.ScopeMissing), translate_errors():
            await servers_of(running, "sk-ci")


async def test_channelz_can_be_off() -> None:
    """Then its methods do not exist."""
    async with run_rpc_server(settings=ServerSettings(channelz=False)) as running:
        with pytest.raises(FeatureUnsupported), translate_errors():
            await servers_of(running)
