"""Input items and their content parts, converted to protos."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

from corral.control.v1 import item_pb2
from pydantic import Field, Tag

from dialects.openai.responses.namespaces import HOSTED_TOOLS, flat_name
from dialects.shared.fields import BY_KIND, EchoedModel, check_type, validate
from dialects.shared.json_body import json_text
from dialects.shared.media import is_address, scheme_of
from dialects.shared.parameters import ignore_parameter, parameter_report
from svc_kit.errors import InvalidField, InvalidType, MissingField, UnsupportedValue

TextOrParts = Annotated[
    Annotated[str, Tag("~string")] | Annotated[list[dict[str, Any]], Tag("~array")], BY_KIND
]


class TextPart(EchoedModel):
    """Text of any role."""

    text: str
    annotations: list[dict[str, Any]] | None = None


class RefusalPart(EchoedModel):
    refusal: str


class ImagePart(EchoedModel):
    image_url: str | None = None
    file_id: str | None = None
    detail: Literal["auto", "low", "high", "original"] | None = None


class FilePart(EchoedModel):
    """A document in base64, by file id, or at a URL."""

    file_id: str | None = None
    file_data: str | None = None
    file_url: str | None = None
    filename: str | None = None


class Annotation(EchoedModel):
    """A citation of a file."""

    file_id: str = ""
    filename: str = ""
    index: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0


_TEXT_TYPES: Final = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
_PART_TYPES: Final = (*_TEXT_TYPES, "refusal", "input_image", "input_file")


def parts_to_proto(
    content: str | Sequence[Mapping[str, Any]], path: str
) -> list[item_pb2.ItemPart]:
    """Convert the parts of a content; a string is one part. Raises DomainErrors with paths."""
    if isinstance(content, str):
        return [item_pb2.ItemPart(text=item_pb2.TextPart(text=content))]
    return [_part(part, f"{path}[{index}]") for index, part in enumerate(content)]


def _part(part: Mapping[str, Any], path: str) -> item_pb2.ItemPart:
    match check_type(part, path, _PART_TYPES):
        case "refusal":
            return item_pb2.ItemPart(refusal=validate(RefusalPart, part, path).refusal)
        case "input_image":
            return item_pb2.ItemPart(image=_image(validate(ImagePart, part, path), path))
        case "input_file":
            return item_pb2.ItemPart(file=_file(validate(FilePart, part, path), path))
        case _:
            return item_pb2.ItemPart(text=_text(validate(TextPart, part, path), path))


def _text(part: TextPart, path: str) -> item_pb2.TextPart:
    citations = [
        validate(Annotation, each, f"{path}.annotations[{index}]")
        for index, each in enumerate(part.annotations or ())
        if each.get("type") == "file_citation"
    ]
    return item_pb2.TextPart(
        text=part.text,
        citations=[
            item_pb2.FileCitation(
                file_id=each.file_id, filename=each.filename, start=each.index, end=each.index
            )
            for each in citations
        ],
    )


def _image(part: ImagePart, path: str) -> item_pb2.ImagePart:
    if not part.image_url and not part.file_id:
        raise MissingField(field=f"{path}.image_url")
    if part.image_url:
        scheme_of(f"{path}.image_url", part.image_url)
    detail = "high" if part.detail == "original" else part.detail
    return item_pb2.ImagePart(
        url=part.image_url or "", file_id=part.file_id or "", detail=detail or ""
    )


def _file(part: FilePart, path: str) -> item_pb2.FilePart:
    if sum(map(bool, (part.file_data, part.file_id, part.file_url))) > 1:
        problem = "it must have only one of 'file_data', 'file_id' and 'file_url'"
        raise InvalidField(field=path, problem=problem)
    if part.file_url and not is_address(part.file_url):
        raise InvalidField(field=f"{path}.file_url", problem="it must be an address with https")
    source = part.file_data or part.file_url or ""
    if not source and not part.file_id:
        raise MissingField(field=f"{path}.file_data")
    return item_pb2.FilePart(
        file_id=part.file_id or "", data_url=source, filename=part.filename or ""
    )


class ItemModel(EchoedModel):
    """Fields of every item."""

    id: str | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None


_HostedStatus = Literal["in_progress", "completed", "incomplete", "searching", "calling", "failed"]


class HostedCallModel(ItemModel):
    """Fields of every call of a hosted tool."""

    status: _HostedStatus | None = None  # type: ignore[assignment]  # it has more values


class SearchResultModel(EchoedModel):
    file_id: str = ""
    filename: str = ""
    score: float = 0.0
    text: str = ""
    attributes: dict[str, Any] | None = None


class FileSearchModel(HostedCallModel):
    queries: list[str] = Field(default_factory=list)
    results: list[SearchResultModel] | None = None


class McpToolModel(EchoedModel):
    name: str
    description: str | None = None
    input_schema: dict[str, Any] = Field(default_factory=dict)
    annotations: dict[str, Any] | None = None


class McpListModel(ItemModel):
    server_label: str
    tools: list[McpToolModel] = Field(default_factory=list)
    error: str | None = None


class McpCallModel(HostedCallModel):
    server_label: str
    name: str
    arguments: str
    output: str | None = None
    error: str | None = None
    approval_request_id: str | None = None


class McpApprovalRequestModel(ItemModel):
    """An MCP call that requires approval."""

    server_label: str
    name: str
    arguments: str


class McpApprovalResponseModel(ItemModel):
    """The approval or rejection of an MCP call."""

    approval_request_id: str
    approve: bool
    reason: str | None = None


_RENAMED: Final = {
    "annotations": "annotations_json",
    "arguments": "arguments_json",
    "attributes": "attributes_json",
    "encrypted_content": "sealed",
    "error": "problem",
    "input_schema": "input_schema_json",
}
"""Fields whose names in protos differ."""
_STATUSES: Final[Mapping[str | None, item_pb2.Item.Status]] = {
    "in_progress": item_pb2.Item.STATUS_IN_PROGRESS,
    "completed": item_pb2.Item.STATUS_COMPLETED,
    "incomplete": item_pb2.Item.STATUS_INCOMPLETE,
}


class MessageModel(ItemModel):
    role: Literal["user", "assistant", "system", "developer"]
    content: TextOrParts


class CallModel(ItemModel):
    call_id: str = Field(min_length=1)
    name: str = Field(min_length=1)
    namespace: str | None = None
    arguments: str


class CustomCallModel(ItemModel):
    """A call of a tool that takes free text."""

    call_id: str = Field(min_length=1)
    name: str = Field(min_length=1)
    namespace: str | None = None
    input: str


class OutputModel(ItemModel):
    call_id: str = Field(min_length=1)
    output: TextOrParts


class ReasoningModel(ItemModel):
    summary: list[dict[str, Any]] | None = None
    content: list[dict[str, Any]] | None = None
    encrypted_content: str | None = None


class CompactionModel(ItemModel):
    encrypted_content: str


class ReferenceModel(ItemModel):
    id: str = Field(min_length=1)


def items_to_proto(
    items: str | Sequence[Mapping[str, Any]], path: str, *, needs_one: bool = False
) -> list[item_pb2.Item]:
    """Convert the items of a body; a string is a user message. Raises DomainErrors with paths.
    `needs_one`: items that are all dropped are an error."""
    if isinstance(items, str):
        parts = parts_to_proto(items, path)
        message = item_pb2.MessageItem(role=item_pb2.ITEM_ROLE_USER, parts=parts)
        return [item_pb2.Item(message=message)]
    kept = [index for index, item in enumerate(items) if not _is_dropped(item, path)]
    converted = [item_to_proto(items[index], f"{path}[{index}]") for index in kept]
    if (report := parameter_report.get()) is not None:
        report.record_sent(path, kept)
    if needs_one and items and not converted:
        problem = "all items are ignored, since they are of tools that are not supported here"
        raise InvalidField(field=path, problem=problem)
    return converted


def _is_dropped(item: Mapping[str, Any], path: str) -> bool:
    """Whether an item is a call of a hosted tool that another server has. Reports it."""
    kind = str(item.get("type"))
    if is_dropped := kind.startswith(HOSTED_TOOLS):
        ignore_parameter(f"{path}.{kind}", "the tool is not supported here")
    return is_dropped


def item_to_proto(fields: Mapping[str, Any], path: str) -> item_pb2.Item:
    """Convert an item. Raises DomainErrors with paths; UnsupportedValue for an unknown type."""
    kind = fields.get("type") or _default_type(fields, path)
    if not isinstance(kind, str):
        raise InvalidType(field=f"{path}.type", expected="a string")
    if kind not in _MODELS:
        raise UnsupportedValue(field=f"{path}.type", value=kind)
    model = validate(_MODELS[kind], fields, path)
    item = item_pb2.Item(id=model.id or "")
    if model.status in _STATUSES:
        item.status = _STATUSES[model.status]
    match model:
        case ReasoningModel():
            _reasoning(model, item, path)
        case FileSearchModel():
            _file_search_call(model, item)
        case MessageModel():
            role = f"ITEM_ROLE_{model.role.upper()}"
            parts = parts_to_proto(model.content, f"{path}.content")
            item.message.CopyFrom(item_pb2.MessageItem(role=role, parts=parts))
        case OutputModel():
            output = parts_to_proto(model.output, f"{path}.output")
            message = item_pb2.ToolOutputItem(call_id=model.call_id, output=output)
            getattr(item, kind).CopyFrom(message)
        case CallModel() | CustomCallModel():
            flat = flat_name(model.namespace, model.name)
            _fill(getattr(item, kind), model.model_copy(update={"name": flat, "namespace": None}))
        case ReferenceModel():  # an item without content is a reference
            pass
        case _:
            _fill(getattr(item, kind), model)
    return item


def _default_type(fields: Mapping[str, Any], path: str) -> str:
    """The type may be omitted for messages and references."""
    if "role" in fields:
        return "message"
    if "id" in fields:
        return "item_reference"
    raise MissingField(field=f"{path}.type")


def _fill(message: Any, model: EchoedModel) -> None:
    """Copy the fields of a model; objects become JSON text."""
    message.SetInParent()
    for name, value in model:
        if value is None or name in ItemModel.model_fields:
            continue
        target = _RENAMED.get(name, name)
        if isinstance(value, dict):
            setattr(message, target, json_text(value))
        elif not isinstance(value, list):
            setattr(message, target, value)
        elif value and isinstance(value[0], str):
            getattr(message, target).extend(value)
        else:
            for each in value:
                _fill(getattr(message, target).add(), each)


def _file_search_call(model: FileSearchModel, item: item_pb2.Item) -> None:
    _fill(item.file_search_call, model)
    for result in item.file_search_call.results:
        result.attributes_json = result.attributes_json or "{}"
    item.file_search_call.call_id = model.id or ""
    item.file_search_call.problem = "failed" if model.status == "failed" else ""


def _reasoning(model: ReasoningModel, item: item_pb2.Item, path: str) -> None:
    """Prefer the full reasoning text over its summary."""
    name = "content" if model.content else "summary"
    parts = parts_to_proto(getattr(model, name) or (), f"{path}.{name}")
    item.reasoning.text = "\n\n".join(part.text.text for part in parts)
    item.reasoning.sealed = model.encrypted_content or ""
    item.reasoning.SetInParent()


_MODELS: Final[Mapping[str, type[ItemModel]]] = {
    "message": MessageModel,
    "function_call": CallModel,
    "function_call_output": OutputModel,
    "custom_tool_call": CustomCallModel,
    "custom_tool_call_output": OutputModel,
    "reasoning": ReasoningModel,
    "compaction": CompactionModel,
    "item_reference": ReferenceModel,
    "file_search_call": FileSearchModel,
    "mcp_list_tools": McpListModel,
    "mcp_call": McpCallModel,
    "mcp_approval_request": McpApprovalRequestModel,
    "mcp_approval_response": McpApprovalResponseModel,
}
"""Supported items by `type`."""
