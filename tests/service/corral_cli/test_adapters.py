"""`corral adapters` against a gRPC server that records the requests."""

from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest
from click.testing import CliRunner, Result
from corral.inference.v1 import adapter_pb2
from corral.inference.v1 import engine_service_pb2 as pb
from corral.inference.v1 import engine_service_pb2_grpc as stubs

from corral_cli.adapters import adapters

VOICE = adapter_pb2.Adapter(
    name="voice",
    model="demo",
    digest="0123456789abcdef" * 4,
    generation=2,
    state=adapter_pb2.Adapter.STATE_DRAINING,
    default_scale=0.5,
    rank=8,
    size_bytes=2_500_000,
    num_running=1,
)
LINE = (
    "voice    for demo, generation 2, draining, 1 running, rank 8, scale 0.5, 2.5 MB, "
    "SHA-256 0123456789ab\n"
)


@dataclass
class Engine(stubs.EngineServiceServicer):
    """Has one adapter and records load requests."""

    requests: list[Any] = field(default_factory=list)

    def ListAdapters(
        self, request: pb.ListAdaptersRequest, context: grpc.ServicerContext
    ) -> pb.ListAdaptersResponse:
        return pb.ListAdaptersResponse(adapters=[VOICE])

    def LoadAdapter(
        self, request: pb.LoadAdapterRequest, context: grpc.ServicerContext
    ) -> pb.LoadAdapterResponse:
        self.requests.append(request)
        return pb.LoadAdapterResponse(adapter=VOICE)

    def UnloadAdapter(
        self, request: pb.UnloadAdapterRequest, context: grpc.ServicerContext
    ) -> pb.UnloadAdapterResponse:
        if request.name != VOICE.name:
            context.abort(grpc.StatusCode.NOT_FOUND, "no such adapter")
        return pb.UnloadAdapterResponse(adapter=VOICE)


@pytest.fixture
def servicer() -> Engine:
    return Engine()


def run(target: str, *arguments: str) -> Result:
    return CliRunner().invoke(adapters, [*arguments, "--target", target])


def test_adapters_are_listed_one_per_line(target: str) -> None:
    """With state, rank, scale and size."""
    assert run(target, "list", "--loaded").output == LINE


def test_a_loaded_adapter_is_printed(target: str, servicer: Engine) -> None:
    """Options that were not given stay unset."""
    result = run(target, "load", "voice", "v.gguf", "--model", "demo", "--scale", "0")
    run(target, "load", "voice", "v.gguf")
    first, second = servicer.requests

    assert result.output == LINE
    assert (first.name, first.path, first.model) == ("voice", "v.gguf", "demo")
    assert first.HasField("default_scale")
    assert not second.HasField("default_scale")


def test_an_adapter_is_unloaded_by_name(target: str) -> None:
    unknown = run(target, "unload", "parrot")

    assert run(target, "unload", "voice").output == LINE
    assert unknown.exit_code == 1
    assert unknown.output == "Error: no such adapter\n"
