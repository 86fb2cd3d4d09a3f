"""The surface for clients, read from the code: the HTTP API, RPCs, errors and metrics."""

import importlib
from pathlib import Path
from typing import Any, Final

from fastapi.routing import iter_route_contexts
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import Default as default_pool
from google.protobuf.json_format import MessageToDict
from prometheus_client import CollectorRegistry, Metric

from gateway.app import BODIES, build
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
    {"unit": "characters", "length": "0"},
    {"unit": "bytes", "length": "9"},
    {"unit": "items", "length": "0"},
)
"""Metadata on which OpenAI's code of an error depends."""


async def openapi() -> dict[str, Any]:
    """The OpenAPI document of a gateway with default settings, and its routes: those that the
    document leaves out are there too."""
    async with build(GatewaySettings()) as gateway:
        routes = [
            f"{','.join(sorted(route.methods or ())) or 'WEBSOCKET'} {route.path}"
            for route in map(_plain_route, iter_route_contexts(gateway.api.routes))
        ]
        return {"document": dict(describe_api(gateway.api, BODIES)), "routes": sorted(routes)}


def _plain_route(route: Any) -> Any:
    return route if route.path else route.starlette_route


def protos() -> dict[str, Any]:
    """Every proto file of ours as JSON, its lists keyed by name."""
    found = {}
    for path in sorted((ROOT / "gen").rglob("*_pb2.py")):
        name = path.relative_to(ROOT / "gen").as_posix()
        importlib.import_module(name.removesuffix(".py").replace("/", "."))
        message = FileDescriptorProto()
        file = name.replace("_pb2.py", ".proto")
        default_pool().FindFileByName(file).CopyToProto(message)
        found[file] = by_name(MessageToDict(message))
    return found


def by_name(node: Any) -> Any:
    """Lists of named objects as objects, so that a difference shows the name and not a position."""
    if isinstance(node, list):
        if node and all(isinstance(each, dict) and "name" in each for each in node):
            return {each.pop("name"): by_name(each) for each in node}
        return [by_name(each) for each in node]
    return {key: by_name(value) for key, value in node.items()} if isinstance(node, dict) else node


def error(cls: type[DomainError]) -> dict[str, Any]:
    """What an error is on every wire."""
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
    """Metrics of all services by name, each with type, labels and buckets."""
    registry = CollectorRegistry()
    metrics.ProcessMetrics(registry, service="", version="")
    for cls in (
        metrics.HttpMetrics,
        metrics.RpcMetrics,
        metrics.EngineMetrics,
        metrics.StreamMetrics,
        metrics.JobMetrics,
    ):
        cls(registry)
    found = {
        family.name: _metric(collector, family)
        for collector in registry._collector_to_names
        for family in collector.collect()
    }
    gauges = EngineGauges(lambda: [], vllm_names=True).collect()
    return found | {family.name: _metric(family, family) for family in gauges}


def _metric(collector: Any, family: Metric) -> dict[str, Any]:
    return {
        "type": family.type,
        "labels": list(collector._labelnames),
        "buckets": list(getattr(collector, "_kwargs", {}).get("buckets", ())),
        "help": family.documentation,
    }
