"""Registered adapters as JSON: as OpenAI's objects are, and as other servers write them."""

from collections.abc import Sequence

from corral.control.v1 import adapter_pb2

_STATE = "STATE_"


def adapter_object(adapter: adapter_pb2.Adapter) -> dict[str, object]:
    """An adapter."""
    return {
        "id": adapter.id,
        "object": "adapter",
        "created_at": adapter.create_time.seconds,
        "updated_at": adapter.update_time.seconds,
        "name": adapter.name,
        "model": adapter.model or None,
        "description": adapter.description or None,
        "default_scale": _short(adapter.default_scale),
        "standing_scale": _short(adapter.standing_scale),
        "bytes": adapter.file_bytes,
        "sha256": adapter.sha256,
        "architecture": adapter.architecture,
        "base_model": adapter.base_model or None,
        "title": adapter.title or None,
        "rank": adapter.rank,
        "etag": adapter.etag,
        "engines": [_engine(report) for report in adapter.engines],
    }


def adapter_list(adapters: Sequence[adapter_pb2.Adapter], *, has_more: bool) -> dict[str, object]:
    """A page of adapters."""
    return {
        "object": "list",
        "data": [adapter_object(adapter) for adapter in adapters],
        "first_id": adapters[0].id if adapters else None,
        "last_id": adapters[-1].id if adapters else None,
        "has_more": has_more,
    }


def deleted_adapter(adapter_id: str) -> dict[str, object]:
    """What is left of an adapter."""
    return {"id": adapter_id, "object": "adapter", "deleted": True}


def llama_server_list(adapters: Sequence[adapter_pb2.Adapter]) -> list[dict[str, object]]:
    """The adapters as llama-server lists them: by their place, with the scale that applies where a
    request says nothing."""
    return [
        {"id": place, "path": adapter.name, "scale": _short(adapter.standing_scale)}
        for place, adapter in enumerate(adapters)
    ]


def problems_of(adapter: adapter_pb2.Adapter) -> list[str]:
    """Why engines cannot use it."""
    failed = adapter_pb2.AdapterReport.STATE_FAILED
    return [report.problem for report in adapter.engines if report.state == failed]


def _engine(report: adapter_pb2.AdapterReport) -> dict[str, object]:
    state = adapter_pb2.AdapterReport.State.Name(report.state)
    return {
        "frontend": report.frontend,
        "address": report.address,
        "model": report.model or None,
        "status": state.removeprefix(_STATE).lower(),
        "reason": report.reason.lower() or None,
        "problem": report.problem or None,
        "reported_at": report.report_time.seconds,
    }


def _short(scale: float) -> float:
    """A 32-bit number with the digits that it has."""
    return float(f"{scale:.7g}")
