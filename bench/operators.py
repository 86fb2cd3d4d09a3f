"""Reads the state of a running engine from `EngineService`."""

import grpc
from corral.inference.v1 import engine_service_pb2, engine_service_pb2_grpc, load_pb2

TIMEOUT_S = 60.0


def get_load(target: str, key: str = "") -> load_pb2.Load:
    """Return the engine's load. `key` needs the scope admin; it may be empty on loopback."""
    with grpc.insecure_channel(target) as channel:
        service = engine_service_pb2_grpc.EngineServiceStub(channel)
        request = engine_service_pb2.GetLoadRequest()
        return service.GetLoad(request, timeout=TIMEOUT_S, metadata=_metadata(key)).load


def get_server_info(target: str, key: str = "") -> engine_service_pb2.GetServerInfoResponse:
    """Return the server's description, including the engine's process id and restarts."""
    with grpc.insecure_channel(target) as channel:
        service = engine_service_pb2_grpc.EngineServiceStub(channel)
        request = engine_service_pb2.GetServerInfoRequest()
        return service.GetServerInfo(request, timeout=TIMEOUT_S, metadata=_metadata(key))


def step_seconds(load: load_pb2.Load) -> float:
    """Return the total duration of all engine steps so far."""
    return sum(histogram.sum.ToTimedelta().total_seconds() for histogram in load.step_histograms)


def _metadata(key: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {key}"),) if key else ()
