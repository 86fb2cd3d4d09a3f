"""What Corral's operators' plane tells the benchmark about a running engine."""

import grpc
from corral.inference.v1 import engine_service_pb2, engine_service_pb2_grpc, load_pb2

TIMEOUT_S = 60.0


def load(target: str, key: str = "") -> load_pb2.Load:
    """Return how busy the engine is; `key` has the scope admin, or is empty on loopback."""
    with grpc.insecure_channel(target) as channel:
        service = engine_service_pb2_grpc.EngineServiceStub(channel)
        request = engine_service_pb2.GetLoadRequest()
        return service.GetLoad(request, timeout=TIMEOUT_S, metadata=_metadata(key)).load


def server_info(target: str, key: str = "") -> engine_service_pb2.GetServerInfoResponse:
    """Return the server's description: the engine's process id, its restarts."""
    with grpc.insecure_channel(target) as channel:
        service = engine_service_pb2_grpc.EngineServiceStub(channel)
        request = engine_service_pb2.GetServerInfoRequest()
        return service.GetServerInfo(request, timeout=TIMEOUT_S, metadata=_metadata(key))


def step_seconds(load: load_pb2.Load) -> float:
    """Return what the steps of an engine took so far."""
    return sum(one.sum.ToTimedelta().total_seconds() for one in load.step_histograms)


def _metadata(key: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {key}"),) if key else ()
