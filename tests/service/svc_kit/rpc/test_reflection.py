"""Server reflection and channelz."""

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


def open_stream(running: Running, version: str, requests: AsyncIterator[Any]) -> Any:
    method: Any = running.channel.stream_stream(
        f"/{version}/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )
    return method(requests)


async def reflect(running: Running, version: str, **request: str) -> Any:
    async def requests() -> AsyncIterator[Any]:
        yield reflection_pb2.ServerReflectionRequest(**request)

    with translate_errors():
        answers = [answer async for answer in open_stream(running, version, requests())]
    return answers[0]


async def no_requests() -> AsyncIterator[Any]:
    """Send nothing: a write after the server refused the call would fail with INTERNAL."""
    await asyncio.Event().wait()
    yield


@pytest.mark.parametrize("version", [V1, V1ALPHA])
@pytest.mark.parametrize("symbol", [SERVICE, f"{SERVICE}.Chat", V1, V1ALPHA])
async def test_both_versions_describe_every_service(version: str, symbol: str) -> None:
    """As `grpcurl describe` requires."""
    async with run_rpc_server() as running:
        answer = await reflect(running, version, file_containing_symbol=symbol)
    packages = {
        descriptor_pb2.FileDescriptorProto.FromString(raw).package
        for raw in answer.file_descriptor_response.file_descriptor_proto
    }

    assert any(symbol.startswith(f"{package}.") for package in packages)


async def test_reflection_requires_a_credential_if_the_server_does() -> None:
    """Without one it reveals nothing."""
    async with run_rpc_server(authenticator=Authenticator()) as running:
        with pytest.raises(errors.ApiKeyMissing), translate_errors():
            _ = [answer async for answer in open_stream(running, V1, no_requests())]


async def test_reflection_can_be_disabled() -> None:
    """Its methods are then unimplemented."""
    async with run_rpc_server(settings=ServerSettings(reflection=False)) as running:
        with pytest.raises(FeatureUnsupported), translate_errors():
            _ = [answer async for answer in open_stream(running, V1, no_requests())]


async def test_an_open_reflection_stream_does_not_delay_a_drain() -> None:
    """Some tools leave it open."""
    async with run_rpc_server() as running:
        method: Any = running.channel.stream_stream(f"/{V1}/ServerReflectionInfo")
        call = method()
        await call.write(b"")
        await call.read()
        await running.server.drain(60)


async def test_the_reasons_of_errors_are_described() -> None:
    """With the error details that have them, though no message refers to either."""
    async with run_rpc_server() as running:
        for symbol in ("corral.error.v1.ErrorReason", "google.rpc.ErrorInfo"):
            answer = await reflect(running, V1, file_containing_symbol=symbol)
            assert answer.file_descriptor_response.file_descriptor_proto


async def test_an_unknown_symbol_is_not_found() -> None:
    """As an error response of the protocol; the call succeeds."""
    async with run_rpc_server() as running:
        answer = await reflect(running, V1, file_containing_symbol="no.Such")

    assert answer.error_response.error_code == 5


# ---- channelz


def get_servers(running: Running, key: str = "any") -> Any:
    stub: Any = channelz_pb2_grpc.ChannelzStub(running.channel)
    return stub.GetServers(
        channelz_pb2.GetServersRequest(), metadata=(("authorization", f"Bearer {key}"),)
    )


async def test_channelz_lists_servers_for_operators() -> None:
    async with run_rpc_server() as running:
        answer = await get_servers(running)

    assert answer.server


async def test_channelz_requires_the_scope_admin() -> None:
    """It reveals addresses of other callers."""
    key = KeySettings.model_validate({"name": "ci", "sha256": hash_key("sk-ci")})
    async with run_rpc_server(authenticator=Authenticator(verifier=SettingsKeys([key]))) as running:
        with pytest.raises(errors.ScopeMissing), translate_errors():
            await get_servers(running, "sk-ci")


async def test_channelz_can_be_disabled() -> None:
    """Its methods are then unimplemented."""
    async with run_rpc_server(settings=ServerSettings(channelz=False)) as running:
        with pytest.raises(FeatureUnsupported), translate_errors():
            await get_servers(running)
