"""Items of the server's own tools, as clients send them back."""

from typing import Any

import orjson
from corral.control.v1 import item_pb2
from pydantic import Field

from openai_wire.responses.parts_in import EchoedModel


class ItemModel(EchoedModel):
    """What all items have."""

    id: str | None = None
    status: str | None = None


class SearchResultModel(EchoedModel):
    """A passage that a search found."""

    file_id: str = ""
    filename: str = ""
    score: float = 0.0
    text: str = ""
    attributes: dict[str, Any] | None = None


class FileSearchModel(ItemModel):
    """A search of the caller's files."""

    queries: list[str] = Field(default_factory=list)
    results: list[SearchResultModel] | None = None


class McpToolModel(EchoedModel):
    """A tool of a remote server."""

    name: str
    description: str | None = None
    input_schema: dict[str, Any] = Field(default_factory=dict)
    annotations: dict[str, Any] | None = None


class McpListModel(ItemModel):
    """What a remote server offers."""

    server_label: str
    tools: list[McpToolModel] = Field(default_factory=list)
    error: str | None = None


class McpCallModel(ItemModel):
    """A call of a remote server's tool."""

    server_label: str
    name: str
    arguments: str
    output: str | None = None
    error: str | None = None
    approval_request_id: str | None = None


class McpAskModel(ItemModel):
    """A call that waits for a person's word."""

    server_label: str
    name: str
    arguments: str


class McpWordModel(ItemModel):
    """That word."""

    approval_request_id: str
    approve: bool
    reason: str | None = None


def file_search_call(model: FileSearchModel, item: item_pb2.Item, path: str) -> None:
    """Write a search into its item."""
    item.file_search_call.call_id = model.id or ""
    item.file_search_call.queries.extend(model.queries)
    if model.status == "failed":
        item.file_search_call.problem = "failed"
    for result in model.results or ():
        item.file_search_call.results.add(
            file_id=result.file_id,
            filename=result.filename,
            score=result.score,
            text=result.text,
            attributes_json=orjson.dumps(result.attributes or {}).decode(),
        )
    item.file_search_call.SetInParent()


def mcp_list_tools(model: McpListModel, item: item_pb2.Item, path: str) -> None:
    """Write a list of tools into its item."""
    item.mcp_list_tools.server_label = model.server_label
    item.mcp_list_tools.problem = model.error or ""
    for tool in model.tools:
        item.mcp_list_tools.tools.add(
            name=tool.name,
            description=tool.description or "",
            input_schema_json=orjson.dumps(tool.input_schema).decode(),
            annotations_json=""
            if tool.annotations is None
            else orjson.dumps(tool.annotations).decode(),
        )
    item.mcp_list_tools.SetInParent()


def mcp_call(model: McpCallModel, item: item_pb2.Item, path: str) -> None:
    """Write a remote call into its item."""
    item.mcp_call.CopyFrom(
        item_pb2.McpCallItem(
            server_label=model.server_label,
            name=model.name,
            arguments_json=model.arguments,
            output=model.output,
            problem=model.error or "",
            approval_request_id=model.approval_request_id or "",
        )
    )


def mcp_approval_request(model: McpAskModel, item: item_pb2.Item, path: str) -> None:
    """Write a question into its item."""
    item.mcp_approval_request.CopyFrom(
        item_pb2.McpApprovalRequestItem(
            server_label=model.server_label, name=model.name, arguments_json=model.arguments
        )
    )


def mcp_approval_response(model: McpWordModel, item: item_pb2.Item, path: str) -> None:
    """Write a person's word into its item."""
    item.mcp_approval_response.CopyFrom(
        item_pb2.McpApprovalResponseItem(
            approval_request_id=model.approval_request_id,
            approve=model.approve,
            reason=model.reason or "",
        )
    )
