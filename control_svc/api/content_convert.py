"""What an item is, kind by kind, between protos and the domain."""

from typing import Final

from corral.control.v1 import item_pb2 as pb

from control_svc.api.part_convert import parts_from_pb, parts_to_pb
from control_svc.domain import items as domain
from svc_kit.errors import InvalidField

_ROLES: Final = {
    pb.ITEM_ROLE_USER: domain.Role.USER,
    pb.ITEM_ROLE_ASSISTANT: domain.Role.ASSISTANT,
    pb.ITEM_ROLE_SYSTEM: domain.Role.SYSTEM,
    pb.ITEM_ROLE_DEVELOPER: domain.Role.DEVELOPER,
}
_ROLE_VALUES: Final = {role: value for value, role in _ROLES.items()}


def content_to_pb(content: domain.Content, item: pb.Item) -> None:
    """Write a content into its item."""
    match content:
        case domain.Message():
            item.message.role = _ROLE_VALUES[content.role]
            item.message.parts.extend(parts_to_pb(content.content))
        case domain.FunctionCall():
            item.function_call.call_id = content.call_id
            item.function_call.name = content.name
            item.function_call.arguments_json = content.arguments
        case domain.FunctionCallOutput():
            _output_to_pb(content, item.function_call_output)
        case domain.CustomToolCall():
            item.custom_tool_call.call_id = content.call_id
            item.custom_tool_call.name = content.name
            item.custom_tool_call.input = content.input
        case domain.CustomToolCallOutput():
            _output_to_pb(content, item.custom_tool_call_output)
        case domain.Reasoning():
            item.reasoning.SetInParent()
            item.reasoning.text = content.text
            item.reasoning.sealed = content.sealed
        case domain.Compaction():
            item.compaction.SetInParent()
            item.compaction.sealed = content.sealed
        case _:
            _hosted_to_pb(content, item)


def content_from_pb(item: pb.Item, field: str) -> domain.Content:
    """The content of an item that has one. Raises InvalidField."""
    match item.WhichOneof("content"):
        case "message":
            role = _ROLES.get(item.message.role)
            if role is None:
                raise InvalidField(field=f"{field}.role", problem="it must be given")
            content = parts_from_pb(item.message.parts, f"{field}.content")
            return domain.Message(role=role, content=content)
        case "function_call":
            call = item.function_call
            return domain.FunctionCall(
                call_id=call.call_id, name=call.name, arguments=call.arguments_json
            )
        case "function_call_output":
            given = item.function_call_output
            output = parts_from_pb(given.output, f"{field}.output")
            return domain.FunctionCallOutput(call_id=given.call_id, output=output)
        case "custom_tool_call":
            custom = item.custom_tool_call
            return domain.CustomToolCall(
                call_id=custom.call_id, name=custom.name, input=custom.input
            )
        case "custom_tool_call_output":
            given = item.custom_tool_call_output
            output = parts_from_pb(given.output, f"{field}.output")
            return domain.CustomToolCallOutput(call_id=given.call_id, output=output)
        case "reasoning":
            return domain.Reasoning(text=item.reasoning.text, sealed=item.reasoning.sealed)
        case "compaction":
            return domain.Compaction(sealed=item.compaction.sealed)
        case _:
            return _hosted_from_pb(item)


def _hosted_to_pb(content: domain.Content, item: pb.Item) -> None:
    """What the server's own tools leave behind."""
    match content:
        case domain.FileSearchCall():
            item.file_search_call.CopyFrom(_search_to_pb(content))
        case domain.McpListTools():
            item.mcp_list_tools.CopyFrom(_list_to_pb(content))
        case domain.McpCall():
            item.mcp_call.CopyFrom(
                pb.McpCallItem(
                    server_label=content.server_label,
                    name=content.name,
                    arguments_json=content.arguments,
                    output=content.output,
                    problem=content.problem,
                    approval_request_id=content.approval_request_id,
                )
            )
        case domain.McpApprovalRequest():
            item.mcp_approval_request.CopyFrom(
                pb.McpApprovalRequestItem(
                    server_label=content.server_label,
                    name=content.name,
                    arguments_json=content.arguments,
                )
            )
        case domain.McpApprovalResponse():
            item.mcp_approval_response.CopyFrom(
                pb.McpApprovalResponseItem(
                    approval_request_id=content.approval_request_id,
                    approve=content.approve,
                    reason=content.reason,
                )
            )


def _hosted_from_pb(item: pb.Item) -> domain.Content:
    match item.WhichOneof("content"):
        case "file_search_call":
            return _search_from_pb(item.file_search_call)
        case "mcp_list_tools":
            return _list_from_pb(item.mcp_list_tools)
        case "mcp_call":
            call = item.mcp_call
            return domain.McpCall(
                server_label=call.server_label,
                name=call.name,
                arguments=call.arguments_json,
                output=call.output if call.HasField("output") else None,
                problem=call.problem,
                approval_request_id=call.approval_request_id,
            )
        case "mcp_approval_request":
            asked = item.mcp_approval_request
            return domain.McpApprovalRequest(
                server_label=asked.server_label, name=asked.name, arguments=asked.arguments_json
            )
        case _:
            word = item.mcp_approval_response
            return domain.McpApprovalResponse(
                approval_request_id=word.approval_request_id,
                approve=word.approve,
                reason=word.reason,
            )


def _output_to_pb(
    content: domain.FunctionCallOutput | domain.CustomToolCallOutput, output: pb.ToolOutputItem
) -> None:
    output.call_id = content.call_id
    output.output.extend(parts_to_pb(content.output))


def _search_to_pb(call: domain.FileSearchCall) -> pb.FileSearchCallItem:
    return pb.FileSearchCallItem(
        call_id=call.call_id,
        queries=call.queries,
        results=map(search_result_to_pb, call.results),
        problem=call.problem,
    )


def search_result_to_pb(result: domain.SearchResult) -> pb.FileSearchResult:
    """A passage that a search found."""
    return pb.FileSearchResult(
        file_id=result.file_id,
        filename=result.filename,
        score=result.score,
        text=result.text,
        attributes_json=result.attributes_json,
    )


def _search_from_pb(call: pb.FileSearchCallItem) -> domain.FileSearchCall:
    return domain.FileSearchCall(
        call_id=call.call_id,
        queries=tuple(call.queries),
        results=tuple(
            domain.SearchResult(
                file_id=result.file_id,
                filename=result.filename,
                score=result.score,
                text=result.text,
                attributes_json=result.attributes_json or "{}",
            )
            for result in call.results
        ),
        problem=call.problem,
    )


def _list_to_pb(tools: domain.McpListTools) -> pb.McpListToolsItem:
    return pb.McpListToolsItem(
        server_label=tools.server_label,
        tools=[
            pb.McpToolDescription(
                name=tool.name,
                description=tool.description,
                input_schema_json=tool.input_schema_json,
                annotations_json=tool.annotations_json,
            )
            for tool in tools.tools
        ],
        problem=tools.problem,
    )


def _list_from_pb(tools: pb.McpListToolsItem) -> domain.McpListTools:
    return domain.McpListTools(
        server_label=tools.server_label,
        tools=tuple(
            domain.McpToolDescription(
                name=tool.name,
                description=tool.description,
                input_schema_json=tool.input_schema_json,
                annotations_json=tool.annotations_json,
            )
            for tool in tools.tools
        ),
        problem=tools.problem,
    )
