"""A gateway and a fake inference service on free loopback ports."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from corral.inference.v1 import inference_service_pb2_grpc
from prometheus_client import CollectorRegistry

from gateway.app import running
from gateway.config import GatewaySettings
from svc_kit.auth.authenticator import build_authenticator
from svc_kit.network import Address
from svc_kit.rpc.server import RpcServer, Service
from svc_kit.settings.groups import KeySettings
from tests.support.fake_inference import FakeInference
from tests.support.raw_http import RawConnection, open_connection

LOOPBACK = "127.0.0.1:0"
PATIENCE_S = 50.0
"""Timeout of a test. uvloop swallows the exception of pytest-timeout's alarm."""
SERVICE = "corral.inference.v1.InferenceService"


@dataclass(frozen=True)
class Loopback:
    address: Address
    fake: FakeInference
    inference: RpcServer
    management: Address | None

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    def client(self, **options: Any) -> httpx.AsyncClient:
        """An HTTP client. Error statuses do not raise."""
        return httpx.AsyncClient(base_url=self.url, trust_env=False, timeout=20, **options)


@asynccontextmanager
async def run_inference_service(
    fake: FakeInference,
    *,
    keys: tuple[KeySettings, ...] = (),
    service_token_file: Path | None = None,
) -> AsyncIterator[RpcServer]:
    """Run the fake as a gRPC server with all interceptors."""
    add = inference_service_pb2_grpc.add_InferenceServiceServicer_to_server
    server = RpcServer(
        [Service(add, fake, SERVICE)],
        listen=LOOPBACK,
        authenticator=build_authenticator(
            listen=LOOPBACK, keys=keys, service_token_file=service_token_file
        ),
        registry=CollectorRegistry(),
    )
    await server.start()
    server.set_serving(True)
    try:
        yield server
    finally:
        await server.drain(0)


@asynccontextmanager
async def run_gateway(
    fake: FakeInference | None = None,
    *,
    inference_keys: tuple[KeySettings, ...] = (),
    patience_s: float = PATIENCE_S,
    **settings: Any,
) -> AsyncIterator[Loopback]:
    """Run a gateway with these settings in front of the fake, for `patience_s` at most."""
    fake = fake or FakeInference()
    token_file = settings.get("service_token_file")
    async with (
        asyncio.timeout(patience_s),
        run_inference_service(
            fake, keys=inference_keys, service_token_file=token_file
        ) as inference,
    ):
        defaults = {
            "listen": LOOPBACK,
            "management_listen": None,
            "inference_target": str(inference.address),
            "drain_grace_s": 5.0,
        }
        async with running(GatewaySettings(**(defaults | settings))) as endpoints:
            yield Loopback(endpoints.http, fake, inference, endpoints.management)


@asynccontextmanager
async def run_and_connect(
    fake: FakeInference | None = None, *, receive_buffer: int | None = None, **settings: Any
) -> AsyncIterator[RawConnection]:
    async with (
        run_gateway(fake, **settings) as gateway,
        open_connection(gateway.address, receive_buffer=receive_buffer) as connection,
    ):
        yield connection


@asynccontextmanager
async def run_gateway_until(
    stop: asyncio.Event, fake: FakeInference, **settings: Any
) -> AsyncIterator[Loopback]:
    started: asyncio.Future[Loopback] = asyncio.get_running_loop().create_future()

    async def run() -> None:
        async with run_gateway(fake, **settings) as gateway:
            started.set_result(gateway)
            await stop.wait()

    task = asyncio.create_task(run())
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield await started
    finally:
        stop.set()
        await task
