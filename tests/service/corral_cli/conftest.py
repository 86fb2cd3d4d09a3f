"""A gRPC server with the servicer of a test module."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from corral.inference.v1.engine_service_pb2_grpc import (
    EngineServiceServicer,
    add_EngineServiceServicer_to_server,
)
from corral.inference.v1.inference_service_pb2_grpc import (
    InferenceServiceServicer,
    add_InferenceServiceServicer_to_server,
)


@pytest.fixture
def target(servicer: Any) -> Iterator[str]:
    """Run a server with the `servicer` of the module; yield its address."""
    server = grpc.server(ThreadPoolExecutor(max_workers=2))
    if isinstance(servicer, InferenceServiceServicer):
        add_InferenceServiceServicer_to_server(servicer, server)
    if isinstance(servicer, EngineServiceServicer):
        add_EngineServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(grace=None).wait()
