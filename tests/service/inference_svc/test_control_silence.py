"""Following a control process that stops without closing its connections."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from corral.control.v1 import adapter_service_pb2 as pb
from corral.control.v1 import adapter_service_pb2_grpc as rpc
from prometheus_client import CollectorRegistry

from inference_svc.adapter_sync.control_client import GrpcControl
from inference_svc.adapter_sync.state import DesiredState
from svc_kit.auth.authenticator import ServiceToken, build_authenticator
from svc_kit.errors import UpstreamUnavailable
from svc_kit.rpc.client import open_channel
from svc_kit.rpc.server import RpcServer, Service
from tests.support.control import write_service_token
from tests.support.loopback_gateway import LOOPBACK


class Control(rpc.AdapterServiceServicer):
    """Sends the state and heartbeats, then nothing more."""

    def __init__(self, num_heartbeats: int) -> None:
        self._num_heartbeats = num_heartbeats

    async def WatchDesired(
        self, request: pb.WatchDesiredRequest, context: Any
    ) -> AsyncIterator[pb.WatchDesiredResponse]:
        """Send events without a change, and stop."""
        yield pb.WatchDesiredResponse(revision="7", state=pb.DesiredState())
        for _ in range(self._num_heartbeats):
            await asyncio.sleep(0.02)
            yield pb.WatchDesiredResponse(revision="7", change=pb.DesiredChange())
        await asyncio.Event().wait()


@asynccontextmanager
async def run_control(servicer: Control, token_file: Path) -> AsyncIterator[str]:
    """Run the servicer; yield its address."""
    server = RpcServer(
        [
            Service(
                rpc.add_AdapterServiceServicer_to_server,
                servicer,
                "corral.control.v1.AdapterService",
            )
        ],
        listen=LOOPBACK,
        authenticator=build_authenticator(listen=LOOPBACK, service_token_file=token_file),
        registry=CollectorRegistry(),
    )
    await server.start()
    try:
        yield str(server.address)
    finally:
        await server.drain(0)


async def test_silence_ends_the_watch_and_heartbeats_are_no_changes(tmp_path: Path) -> None:
    """With an error after which the state is asked for again, on a new connection."""
    num_connections = 0
    token_file = write_service_token(tmp_path)
    token = ServiceToken.read(token_file).secret
    async with (
        run_control(Control(num_heartbeats=5), token_file) as target,
        open_channel(target, token=token) as channel,
    ):

        def connect() -> grpc.aio.Channel:
            nonlocal num_connections
            num_connections += 1
            return open_channel(target, token=token)

        watch = GrpcControl(channel, connect, silence_s=0.5).watch(DesiredState())
        states = [await anext(watch)]
        with pytest.raises(UpstreamUnavailable):
            await anext(watch)

    assert states == [DesiredState("7")]
    assert num_connections == 1
