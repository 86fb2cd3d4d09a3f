"""Public surface for clients, read from the code: HTTP API, RPCs, errors and metrics."""

import importlib
from pathlib import Path
from typing import Any, Final

from fastapi.routing import iter_route_contexts
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import Default as default_pool
from google.protobuf.json_format import MessageToDict
from prometheus_client import CollectorRegistry, Metric

from gateway.app import build
from gateway.config import GatewaySettings
from gateway.http.docs import describe_api
from inference_svc.gauges import EngineGauges
from svc_kit import metrics
from svc_kit.errors import DomainError, kind_of
from svc_kit.errors.status import DOMAIN, OPENAI_CODES, status_row

ROOT: Final = Path(__file__).resolve().parents[1]
CODE_CASES: Final[tuple[dict[str, str], ...]] = (
    {},
    {"value": "1", "minimum": "2"},
    {"value": "1.5", "minimum": "2"},
    {"value": "3", "maximum": "2"},
    {"value": "3.5", "maximum": "2"},
    {"unit": "characters", "length": "0"},
    {"unit": "bytes", "length": "9"},
    {"unit": "items", "length": "0"},
)
"""Metadata of example errors, for reasons whose OpenAI code depends on the metadata."""


async def openapi() -> dict[str, Any]:
    """OpenAPI document of a gateway with default settings, and all its routes."""
    async with build(GatewaySettings()) as gateway:
        routes = [
            f"{','.join(sorted(route.methods or ())) or 'WEBSOCKET'} {route.path}"
            for route in map(_unwrap_route, iter_route_contexts(gateway.api.routes))
        ]
        return {"document": dict(describe_api(gateway.api)), "routes": sorted(routes)}


def _unwrap_route(route: Any) -> Any:
    return route if route.path else route.starlette_route


def protos() -> dict[str, Any]:
    """Corral's proto files as JSON, with lists of named objects keyed by name."""
    files = {}
    for path in sorted((ROOT / "gen").rglob("*_pb2.py")):
        name = path.relative_to(ROOT / "gen").as_posix()
        importlib.import_module(name.removesuffix(".py").replace("/", "."))
        message = FileDescriptorProto()
        file = name.replace("_pb2.py", ".proto")
        default_pool().FindFileByName(file).CopyToProto(message)
        files[file] = key_by_name(MessageToDict(message))
    return files


def key_by_name(node: Any) -> Any:
    """Key lists of named objects by name, so that a difference shows a name and not a position."""
    if isinstance(node, list):
        if node and all(isinstance(item, dict) and "name" in item for item in node):
            return {item.pop("name"): key_by_name(item) for item in node}
        return [key_by_name(item) for item in node]
    return (
        {key: key_by_name(value) for key, value in node.items()} if isinstance(node, dict) else node
    )


def error(cls: type[DomainError]) -> dict[str, Any]:
    """Domain, statuses, codes and metadata of an error class over gRPC, HTTP and OpenAI's API."""
    row, code = status_row(cls), OPENAI_CODES.get(cls.reason, cls.reason.lower())
    if callable(code):
        examples = [cls.with_reason(reason=cls.reason, message="", metadata=m) for m in CODE_CASES]
        codes = [code(example) for example in examples]
    else:
        codes = [code]
    return {
        "domain": DOMAIN,
        "kind": kind_of(cls).__name__,
        "grpc": row.grpc_code.name,
        "http": row.http_status,
        "openai_type": row.openai_type,
        "openai_codes": codes,
        "retryable": row.retryable,
        "metadata": sorted(cls.metadata_keys()),
        "message": " ".join((cls.__doc__ or "").split()),
    }


def all_metrics() -> dict[str, Any]:
    """Metrics of all services by name, each with its type, labels, buckets and help."""
    registry = CollectorRegistry()
    metrics.ProcessMetrics(registry, service="", version="")
    for cls in (
        metrics.HttpMetrics,
        metrics.RpcMetrics,
        metrics.CertificateMetrics,
        metrics.EngineMetrics,
        metrics.LimitMetrics,
        metrics.StreamMetrics,
        metrics.JobMetrics,
    ):
        cls(registry)
    counters = {
        family.name: _metric(collector, family)
        for collector in registry._collector_to_names
        for family in collector.collect()
    }
    gauges = EngineGauges(lambda: [], vllm_names=True).collect()
    return counters | {family.name: _metric(family, family) for family in gauges}


def _metric(collector: Any, family: Metric) -> dict[str, Any]:
    return {
        "type": family.type,
        "labels": list(getattr(collector, "_labelnames", ())),  # ProcessCollector has none
        "buckets": list(getattr(collector, "_kwargs", {}).get("buckets", ())),
        "help": family.documentation,
    }
