"""Items as clients write them, as protos: new ones, and what an earlier answer held."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from corral.control.v1 import item_pb2
from pydantic import Field

from openai_wire.requests.fields import validated
from openai_wire.responses import hosted_in
from openai_wire.responses.hosted_in import ItemModel
from openai_wire.responses.parts_in import TextOrParts, parts_from
from svc_kit.errors import InvalidType, MissingField, UnsupportedValue

ROLES: Final = {
    "user": item_pb2.ITEM_ROLE_USER,
    "assistant": item_pb2.ITEM_ROLE_ASSISTANT,
    "system": item_pb2.ITEM_ROLE_SYSTEM,
    "developer": item_pb2.ITEM_ROLE_DEVELOPER,
}
_STATUSES: Final[Mapping[str | None, item_pb2.Item.Status]] = {
    "in_progress": item_pb2.Item.STATUS_IN_PROGRESS,
    "completed": item_pb2.Item.STATUS_COMPLETED,
    "incomplete": item_pb2.Item.STATUS_INCOMPLETE,
}


class MessageModel(ItemModel):
    """What somebody said."""

    role: Literal["user", "assistant", "system", "developer"]
    content: TextOrParts


class CallModel(ItemModel):
    """A call of a function."""

    call_id: str = Field(min_length=1)
    name: str = Field(min_length=1)
    arguments: str


class CustomCallModel(ItemModel):
    """A call of a tool that takes free text."""

    call_id: str = Field(min_length=1)
    name: str = Field(min_length=1)
    input: str


class OutputModel(ItemModel):
    """What a client's tool gave."""

    call_id: str = Field(min_length=1)
    output: TextOrParts


class ReasoningModel(ItemModel):
    """What the model thought."""

    summary: list[dict[str, Any]] | None = None
    content: list[dict[str, Any]] | None = None
    encrypted_content: str | None = None


class CompactionModel(ItemModel):
    """What stands for earlier items."""

    encrypted_content: str


class ReferenceModel(ItemModel):
    """A stored item by its id."""

    id: str = Field(min_length=1)


def items_from(given: str | Sequence[Mapping[str, Any]], path: str) -> list[item_pb2.Item]:
    """The items of a body; a text is a message of the user. Raises DomainErrors with paths."""
    if isinstance(given, str):
        message = item_pb2.MessageItem(role=item_pb2.ITEM_ROLE_USER, parts=parts_from(given, path))
        return [item_pb2.Item(message=message)]
    return [item_from(item, f"{path}[{index}]") for index, item in enumerate(given)]


def item_from(given: Mapping[str, Any], path: str) -> item_pb2.Item:
    """One item. Raises DomainErrors with paths, UnsupportedValue for a kind that there is not."""
    kind = given.get("type") or _kind_without_type(given, path)
    if not isinstance(kind, str):
        raise InvalidType(field=f"{path}.type", expected="a string")
    reader = _READERS.get(kind)
    if reader is None:
        raise UnsupportedValue(field=f"{path}.type", value=kind)
    model = validated(reader.model, given, path)
    item = item_pb2.Item(id=model.id or "")
    if model.status in _STATUSES:
        item.status = _STATUSES[model.status]
    reader.write(model, item, path)
    return item


def _kind_without_type(given: Mapping[str, Any], path: str) -> str:
    """Messages and references may leave their type out."""
    if "role" in given:
        return "message"
    if "id" in given:
        return "item_reference"
    raise MissingField(field=f"{path}.type")


def _message(model: MessageModel, item: item_pb2.Item, path: str) -> None:
    item.message.role = ROLES[model.role]
    item.message.parts.extend(parts_from(model.content, f"{path}.content"))


def _function_call(model: CallModel, item: item_pb2.Item, path: str) -> None:
    item.function_call.call_id = model.call_id
    item.function_call.name = model.name
    item.function_call.arguments_json = model.arguments


def _function_call_output(model: OutputModel, item: item_pb2.Item, path: str) -> None:
    item.function_call_output.call_id = model.call_id
    item.function_call_output.output.extend(parts_from(model.output, f"{path}.output"))


def _custom_tool_call(model: CustomCallModel, item: item_pb2.Item, path: str) -> None:
    item.custom_tool_call.call_id = model.call_id
    item.custom_tool_call.name = model.name
    item.custom_tool_call.input = model.input


def _custom_tool_call_output(model: OutputModel, item: item_pb2.Item, path: str) -> None:
    item.custom_tool_call_output.call_id = model.call_id
    item.custom_tool_call_output.output.extend(parts_from(model.output, f"{path}.output"))


def _reasoning(model: ReasoningModel, item: item_pb2.Item, path: str) -> None:
    """The thought itself where it is given, else what was shown of it."""
    name = "content" if model.content else "summary"
    parts = parts_from(getattr(model, name) or (), f"{path}.{name}")
    item.reasoning.text = "\n\n".join(part.text.text for part in parts)
    item.reasoning.sealed = model.encrypted_content or ""
    item.reasoning.SetInParent()


def _compaction(model: CompactionModel, item: item_pb2.Item, path: str) -> None:
    item.compaction.sealed = model.encrypted_content
    item.compaction.SetInParent()


def _reference(model: ReferenceModel, item: item_pb2.Item, path: str) -> None:
    """An item with an id and nothing else stands for the stored one."""


class _Reader(NamedTuple):
    """How a kind of item is read."""

    model: type[Any]
    write: Callable[[Any, item_pb2.Item, str], None]


_READERS: Final = {
    "message": _Reader(MessageModel, _message),
    "function_call": _Reader(CallModel, _function_call),
    "function_call_output": _Reader(OutputModel, _function_call_output),
    "custom_tool_call": _Reader(CustomCallModel, _custom_tool_call),
    "custom_tool_call_output": _Reader(OutputModel, _custom_tool_call_output),
    "reasoning": _Reader(ReasoningModel, _reasoning),
    "compaction": _Reader(CompactionModel, _compaction),
    "item_reference": _Reader(ReferenceModel, _reference),
    "file_search_call": _Reader(hosted_in.FileSearchModel, hosted_in.file_search_call),
    "mcp_list_tools": _Reader(hosted_in.McpListModel, hosted_in.mcp_list_tools),
    "mcp_call": _Reader(hosted_in.McpCallModel, hosted_in.mcp_call),
    "mcp_approval_request": _Reader(hosted_in.McpAskModel, hosted_in.mcp_approval_request),
    "mcp_approval_response": _Reader(hosted_in.McpWordModel, hosted_in.mcp_approval_response),
}
"""By the `type` of the JSON. What is not here, Corral has not."""
