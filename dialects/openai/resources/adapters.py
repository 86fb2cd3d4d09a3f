"""Request bodies and objects of LoRA adapters."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from corral.control.v1 import adapter_pb2, adapter_service_pb2
from google.protobuf.duration_pb2 import Duration
from pydantic import Field
from typing_extensions import TypeAliasType, TypedDict

from dialects.openai.shared.pagination import ListQuery
from dialects.shared.fields import WireModel, message_of, parse_integer, validate
from dialects.shared.parameters import Ignored, Policy
from dialects.shared.wire import From, round_float32, seconds, writer
from svc_kit.errors import InvalidField
from svc_kit.rpc.field_limits import limit

Scale = Annotated[float, limit(adapter_pb2.AdapterHeader, "default_scale")]
_BOOLEANS = {"true": True, "false": False}
_MAX_WAIT_S = 60


class AdapterFields(WireModel):
    """Fields of the form that registers an adapter, without its file."""

    name: str = Field(min_length=1, description="The name for use in requests.")
    model: str | None = Field(None, description="The base model. Default: each server's first.")
    description: str | None = Field(None, description="A description.")
    default_scale: Scale | None = Field(None, description="Multiplies its effect. Default: 1.")
    replace: bool | None = Field(None, description="Replace an existing adapter of this name.")


class AdapterBody(AdapterFields):
    """The registration of an adapter from a stored file."""

    file_id: str = Field(min_length=1, description="The file. It may be deleted afterwards.")


class AdapterUpdateBody(WireModel):
    """Changes of an adapter."""

    default_scale: Scale | None = Field(None, description="Multiplies its effect.")
    standing_scale: Scale | None = Field(
        None, description="The scale in requests for its model that name no adapter."
    )
    description: str | None = Field(None, description="A description.")
    etag: str | None = Field(None, description="Update only if the adapter has this etag.")


class AdapterListQuery(ListQuery):
    limit: Annotated[int, Field(ge=1, le=1000)] | None = None


class LoadLoraBody(WireModel):
    """vLLM's request to load an adapter."""

    lora_name: str = Field(min_length=1, description="The name for use in requests.")
    lora_path: str = Field(min_length=1, description="Its file, in one of the operator's folders.")
    load_inplace: bool | None = Field(None, description="Replace an existing adapter.")
    base_model_name: str | None = Field(None, description="The base model.")


class UnloadLoraBody(WireModel):
    """vLLM's request to unload an adapter."""

    policy: ClassVar[Policy] = {"lora_int_id": Ignored("adapters are found by name")}

    lora_name: str = Field(min_length=1, description="The adapter.")


class NamedPathBody(WireModel):
    """The body of POST /admin/loras."""

    name: str = Field(min_length=1, description="The name for use in requests.")
    path: str = Field(min_length=1, description="Its file, in one of the operator's folders.")


class _IndexedScale(WireModel):
    """llama-server's scale of one adapter. `id` is its index in the list."""

    id: Annotated[int, Field(ge=0)]
    scale: Scale


class _IndexedScales(WireModel):
    adapters: list[_IndexedScale] = Field(max_length=1000)


def header_from_json(fields: Mapping[str, Any], request_id: str) -> adapter_pb2.AdapterHeader:
    """The registration of a stored file. Raises DomainErrors with the body's field names."""
    body = validate(AdapterBody, fields)
    return _header(body, request_id, file_id=body.file_id)


def header_from_form(form: Mapping[str, str], request_id: str) -> adapter_pb2.AdapterHeader:
    """The registration of a form's file. Raises DomainErrors with the form's field names."""
    fields: dict[str, Any] = dict(form)
    if "default_scale" in fields:
        fields["default_scale"] = _parse_float(fields["default_scale"])
    if "replace" in fields:
        fields["replace"] = _BOOLEANS.get(fields["replace"], fields["replace"])
    return _header(validate(AdapterFields, fields), request_id)


def header_from_load(fields: Mapping[str, Any], request_id: str) -> adapter_pb2.AdapterHeader:
    """vLLM's request to load an adapter."""
    body = validate(LoadLoraBody, fields)
    return adapter_pb2.AdapterHeader(
        name=body.lora_name,
        model=body.base_model_name or "",
        path=body.lora_path,
        replace=bool(body.load_inplace),
        request_id=request_id,
    )


def header_from_path(fields: Mapping[str, Any], request_id: str) -> adapter_pb2.AdapterHeader:
    """A registration at /admin/loras, which replaces an existing adapter of the same name."""
    body = validate(NamedPathBody, fields)
    return adapter_pb2.AdapterHeader(
        name=body.name, path=body.path, replace=True, request_id=request_id
    )


def parse_unload(fields: Mapping[str, Any]) -> str:
    """The name of the adapter that vLLM's request unloads."""
    return validate(UnloadLoraBody, fields).lora_name


def update_request(
    adapter: str, fields: Mapping[str, Any]
) -> adapter_service_pb2.UpdateAdapterRequest:
    """Convert the body of an update. Raises DomainErrors with the body's field names."""
    body = validate(AdapterUpdateBody, fields)
    request = adapter_service_pb2.UpdateAdapterRequest
    return message_of(request, body, adapter=adapter, update_mask=None)


def parse_wait(query: Mapping[str, str]) -> Duration | None:
    """How long to wait for engines: `wait` in whole seconds. Raises InvalidField."""
    text = query.get("wait")
    if not text:
        return None
    seconds = parse_integer(text)
    if not isinstance(seconds, int) or not 0 <= seconds <= _MAX_WAIT_S:
        problem = f"it must be 0 to {_MAX_WAIT_S} whole seconds"
        raise InvalidField(field="wait", problem=problem)
    return Duration(seconds=seconds)


def scales_by_index(items: Sequence[Any], num_adapters: int) -> dict[int, float]:
    """llama-server's scales of all adapters, by index; 0 if not given. Raises DomainErrors."""
    scales = dict.fromkeys(range(num_adapters), 0.0)
    for each in validate(_IndexedScales, {"adapters": list(items)}).adapters:
        if each.id not in scales:
            raise InvalidField(field="id", problem=f"there is no adapter {each.id}")
        scales[each.id] = each.scale
    return scales


def _header(fields: AdapterFields, request_id: str, file_id: str = "") -> adapter_pb2.AdapterHeader:
    ids = {"file_id": file_id, "request_id": request_id}
    return message_of(adapter_pb2.AdapterHeader, fields, **ids, path=None, sha256=None)


def _parse_float(text: str) -> float | str:
    """Parse a number of a form. Other text is returned unchanged; its model rejects it."""
    try:
        return float(text)
    except ValueError:
        return text


class AdapterEngine(TypedDict):
    frontend: str
    address: str
    model: str | None
    status: Annotated[Literal["fetching", "loading", "ready", "failed"], From("state")]
    reason: Annotated[str | None, From(write=str.lower)]
    problem: str | None
    reported_at: Annotated[int, seconds("report_time")]


class Adapter(TypedDict):
    id: str
    object: Literal["adapter"]
    created_at: Annotated[int, seconds("create_time")]
    updated_at: Annotated[int, seconds("update_time")]
    name: str
    model: str | None
    description: str | None
    default_scale: float
    standing_scale: float
    bytes: Annotated[int, From("file_bytes")]
    sha256: str
    architecture: str
    base_model: str | None
    title: str | None
    rank: int
    etag: str
    engines: list[AdapterEngine]
    frontend_count: int
    ready_frontend_count: int


adapter_object = writer(adapter_pb2.Adapter, Adapter)


class LoraScale(TypedDict):
    """An adapter as llama-server lists it, with the scale in requests that name no adapter."""

    id: int
    path: str
    scale: float


LoraScales = TypeAliasType("LoraScales", list[LoraScale])


class Success(TypedDict):
    """llama-server's confirmation."""

    success: Literal[True]


class AdapterNames(TypedDict):
    """The names of a project's adapters."""

    object: Literal["list"]
    loras: list[str]


class AdapterStatus(TypedDict):
    """What was done with an adapter."""

    name: str
    status: Literal["registered", "unregistered"]


def llama_server_list(adapters: Sequence[adapter_pb2.Adapter]) -> LoraScales:
    """The adapters as llama-server lists them, by index."""
    return [
        {"id": index, "path": adapter.name, "scale": round_float32(adapter.standing_scale)}
        for index, adapter in enumerate(adapters)
    ]


def load_problems(adapter: adapter_pb2.Adapter) -> list[str]:
    """The problems of engines that could not load an adapter."""
    failed = adapter_pb2.AdapterReport.STATE_FAILED
    return [report.problem for report in adapter.engines if report.state == failed]
