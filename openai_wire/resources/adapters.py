"""Requests and objects of adapters."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from corral.control.v1 import adapter_pb2, adapter_service_pb2, listing_pb2
from google.protobuf.duration_pb2 import Duration
from pydantic import Field

from openai_wire.shared.fields import WireModel, validated, without_neutral
from svc_kit.errors import InvalidField

Scale = Annotated[float, Field(ge=-10, le=10)]
_BOOLEANS = {"true": True, "false": False}
_MAX_WAIT_S = 60


class AdapterFields(WireModel):
    """The fields of the form that registers an adapter, beside its file."""

    name: str = Field(min_length=1, description="What requests call it.")
    model: str | None = Field(None, description="The base model. Default: each server's first.")
    description: str | None = Field(None, description="A text for people.")
    default_scale: Scale | None = Field(None, description="Multiplies its effect. Default: 1.")
    replace: bool | None = Field(None, description="Take the name from an adapter that has it.")


class AdapterBody(AdapterFields):
    """The registration of an adapter whose bytes are a file."""

    file_id: str = Field(min_length=1, description="The file; it may be deleted afterwards.")


class AdapterUpdateBody(WireModel):
    """What changes of an adapter."""

    default_scale: Scale | None = Field(None, description="Multiplies its effect.")
    standing_scale: Scale | None = Field(
        None, description="Applies it to every request for its model that names no adapter."
    )
    description: str | None = Field(None, description="A text for people.")
    etag: str | None = Field(None, description="The etag that the adapter must still have.")


class AdapterListQuery(WireModel):
    """The query of a list of adapters."""

    limit: Annotated[int, Field(ge=1, le=1000)] | None = None
    order: Literal["asc", "desc"] | None = None
    after: str | None = None


class LoadLoraBody(WireModel):
    """vLLM's request to load an adapter."""

    lora_name: str = Field(min_length=1, description="What requests call it.")
    lora_path: str = Field(min_length=1, description="Its file, in one of the operator's folders.")
    load_inplace: bool | None = Field(None, description="Take the name from one that has it.")
    base_model_name: str | None = Field(None, description="The base model.")


class UnloadLoraBody(WireModel):
    """vLLM's request to unload an adapter."""

    lora_name: str = Field(min_length=1, description="The adapter.")
    lora_int_id: int | None = Field(None, description="Not looked at, as there.")


class NamedPathBody(WireModel):
    """A name and a path, as /admin/loras takes them."""

    name: str = Field(min_length=1, description="What requests call it.")
    path: str = Field(min_length=1, description="Its file, in one of the operator's folders.")


class PlacedScale(WireModel):
    """llama-server's scale of one adapter."""

    id: Annotated[int, Field(ge=0)] = Field(description="Its place in the list.")
    scale: Scale = Field(description="What it is applied with; 0: it is not.")


class _PlacedScales(WireModel):
    adapters: list[PlacedScale] = Field(max_length=1000)


def header_of_body(fields: Mapping[str, Any], request_id: str) -> adapter_pb2.AdapterHeader:
    """The registration of a file's bytes. Raises DomainErrors with the body's field names."""
    body = validated(AdapterBody, without_neutral(fields, {}))
    return _header(body, request_id, file_id=body.file_id)


def header_of_form(form: Mapping[str, str], request_id: str) -> adapter_pb2.AdapterHeader:
    """The registration of a form's file. Raises DomainErrors with the form's field names."""
    fields: dict[str, Any] = dict(form)
    if "default_scale" in fields:
        fields["default_scale"] = _number(fields["default_scale"])
    if "replace" in fields:
        fields["replace"] = _BOOLEANS.get(fields["replace"], fields["replace"])
    return _header(validated(AdapterFields, fields), request_id)


def header_of_load(fields: Mapping[str, Any], request_id: str) -> adapter_pb2.AdapterHeader:
    """vLLM's request to load an adapter."""
    body = validated(LoadLoraBody, without_neutral(fields, {}))
    return adapter_pb2.AdapterHeader(
        name=body.lora_name,
        model=body.base_model_name or "",
        path=body.lora_path,
        replace=bool(body.load_inplace),
        request_id=request_id,
    )


def header_of_path(fields: Mapping[str, Any], request_id: str) -> adapter_pb2.AdapterHeader:
    """A registration at /admin/loras, which takes a name that is there."""
    body = validated(NamedPathBody, without_neutral(fields, {}))
    return adapter_pb2.AdapterHeader(
        name=body.name, path=body.path, replace=True, request_id=request_id
    )


def unload_name(fields: Mapping[str, Any]) -> str:
    """The adapter that vLLM's request unloads."""
    return validated(UnloadLoraBody, without_neutral(fields, {})).lora_name


def update_request(
    adapter: str, fields: Mapping[str, Any]
) -> adapter_service_pb2.UpdateAdapterRequest:
    """The changes in a body. Raises DomainErrors with the body's field names."""
    body = validated(AdapterUpdateBody, without_neutral(fields, {}))
    return adapter_service_pb2.UpdateAdapterRequest(
        adapter=adapter,
        default_scale=body.default_scale,
        standing_scale=body.standing_scale,
        description=body.description,
        etag=body.etag or "",
    )


def list_adapters_request(query: Mapping[str, str]) -> adapter_service_pb2.ListAdaptersRequest:
    """The page that a query asks for. Parameters that are not known are ignored."""
    known: dict[str, Any] = {
        name: query[name] for name in AdapterListQuery.model_fields if query.get(name)
    }
    if "limit" in known:
        known["limit"] = _number(known["limit"], int)
    request = validated(AdapterListQuery, known)
    oldest_first = request.order == "asc"
    return adapter_service_pb2.ListAdaptersRequest(
        page_size=request.limit or 0,
        after=request.after or "",
        order=listing_pb2.LIST_ORDER_OLDEST_FIRST
        if oldest_first
        else listing_pb2.LIST_ORDER_NEWEST_FIRST,
    )


def wait_of(query: Mapping[str, str]) -> Duration | None:
    """How long the query waits for engines, `wait` in whole seconds. Raises InvalidField."""
    text = query.get("wait")
    if not text:
        return None
    seconds = _number(text, int)
    if not isinstance(seconds, int) or not 0 <= seconds <= _MAX_WAIT_S:
        raise InvalidField(field="wait", problem=f"0 to {_MAX_WAIT_S} whole seconds")
    return Duration(seconds=seconds)


def scales_by_place(items: Sequence[Any], num_adapters: int) -> dict[int, float]:
    """llama-server's scales; those that are not named are 0. Raises DomainErrors."""
    request = validated(_PlacedScales, {"adapters": list(items)}).adapters
    scales = dict.fromkeys(range(num_adapters), 0.0)
    for each in request:
        if each.id not in scales:
            raise InvalidField(field="id", problem=f"there is no adapter {each.id}")
        scales[each.id] = each.scale
    return scales


def _header(fields: AdapterFields, request_id: str, file_id: str = "") -> adapter_pb2.AdapterHeader:
    return adapter_pb2.AdapterHeader(
        name=fields.name,
        model=fields.model or "",
        description=fields.description or "",
        default_scale=fields.default_scale,
        replace=bool(fields.replace),
        file_id=file_id,
        request_id=request_id,
    )


def _number(text: str, kind: type[int] | type[float] = float) -> float | str:
    """The number that a text writes, else the text, which is then refused by its type."""
    try:
        return kind(text)
    except ValueError:
        return text


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
