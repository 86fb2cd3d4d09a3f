"""Clients find the method of a request by its type."""

from collections.abc import Callable
from typing import Any, cast

import grpc.aio
import pytest
from corral.control.v1 import file_service_pb2 as pb

from gateway.auth import Credentials
from gateway.rpc import ControlClient


class Channel:
    """A channel whose unary calls return a file, and which records the names of methods."""

    def __init__(self) -> None:
        self.methods: list[str] = []

    def unary_unary(self, method: str, **_: object) -> Callable[..., Any]:
        self.methods.append(method)

        async def call(_request: object, **_options: object) -> pb.GetFileResponse:
            return pb.GetFileResponse()

        return call

    unary_stream = unary_unary


def client_of(channel: Channel) -> ControlClient:
    return ControlClient(cast(grpc.aio.Channel, channel), Credentials(None), 1.0).for_service()


async def test_a_request_is_sent_to_its_method() -> None:
    """Which is made once."""
    channel = Channel()
    client = client_of(channel)
    for _ in range(2):
        await client.call(pb.GetFileRequest(), pb.GetFileResponse)

    of_files = [method for method in channel.methods if "FileService" in method]
    assert of_files == ["/corral.control.v1.FileService/GetFile"]


async def test_a_reply_of_another_type_is_refused() -> None:
    """The code that reads it was written for another method."""
    client = client_of(Channel())

    with pytest.raises(TypeError, match="GetFileResponse"):
        await client.call(pb.GetFileRequest(), pb.DeleteFileResponse)
