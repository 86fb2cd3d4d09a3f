"""Conversion of items, parts and tool outputs between protos and dataclasses."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Final

from corral.control.v1 import item_pb2 as pb
from corral.control.v1 import response_pb2

from control_svc.base.proto import timestamp
from control_svc.items import model as domain
from control_svc.items.input_items import Include, InputItem, apply_include
from control_svc.items.model import (
    FileCitation,
    FileInput,
    Image,
    Item,
    ItemStatus,
    Part,
    Refusal,
    Text,
    TokenLogprob,
)
from svc_kit.errors import InvalidField, MissingField


def parts_to_pb(parts: Iterable[Part]) -> list[pb.ItemPart]:
    """Convert parts."""
    return [part_to_pb(part) for part in parts]


def part_to_pb(part: Part) -> pb.ItemPart:
    """Convert a part."""
    match part:
        case Text():
            text = pb.TextPart(
                text=part.text,
                citations=[citation_to_pb(citation) for citation in part.annotations],
                logprobs=[logprob_to_pb(logprob) for logprob in part.logprobs],
            )
            return pb.ItemPart(text=text)
        case Refusal():
            return pb.ItemPart(refusal=part.refusal)
        case Image():
            image = pb.ImagePart(url=part.url, file_id=part.file_id, detail=part.detail)
            return pb.ItemPart(image=image)
        case FileInput():
            file = pb.FilePart(file_id=part.file_id, data_url=part.data_url, filename=part.filename)
            return pb.ItemPart(file=file)


def parts_from_pb(parts: Sequence[pb.ItemPart], field: str) -> tuple[Part, ...]:
    """Convert parts. Raises MissingField."""
    return tuple(_part_from_pb(part, f"{field}[{index}]") for index, part in enumerate(parts))


def citation_to_pb(citation: FileCitation) -> pb.FileCitation:
    """Convert a citation."""
    return pb.FileCitation(**asdict(citation))


def logprob_to_pb(logprob: TokenLogprob) -> pb.ItemLogprob:
    """Convert a log probability with its alternatives."""
    return pb.ItemLogprob(
        token=logprob.token,
        logprob=logprob.logprob,
        raw=logprob.raw,
        top=[logprob_to_pb(alternative) for alternative in logprob.top],
    )


def _part_from_pb(part: pb.ItemPart, field: str) -> Part:
    match part.WhichOneof("part"):
        case "text":
            return Text(
                text=part.text.text,
                annotations=tuple(_citation_from_pb(each) for each in part.text.citations),
                logprobs=tuple(_logprob_from_pb(each) for each in part.text.logprobs),
            )
        case "refusal":
            return Refusal(refusal=part.refusal)
        case "image":
            image = part.image
            return Image(url=image.url, file_id=image.file_id, detail=image.detail)
        case "file":
            file = part.file
            return FileInput(file_id=file.file_id, data_url=file.data_url, filename=file.filename)
        case _:
            raise MissingField(field=field)


def _citation_from_pb(citation: pb.FileCitation) -> FileCitation:
    return FileCitation(
        file_id=citation.file_id,
        filename=citation.filename,
        marker=citation.marker,
        start=citation.start,
        end=citation.end,
    )


def _logprob_from_pb(logprob: pb.ItemLogprob) -> TokenLogprob:
    return TokenLogprob(
        token=logprob.token,
        logprob=logprob.logprob,
        raw=logprob.raw,
        top=tuple(_logprob_from_pb(each) for each in logprob.top),
    )


_ROLES: Final = {
    pb.ITEM_ROLE_USER: domain.Role.USER,
    pb.ITEM_ROLE_ASSISTANT: domain.Role.ASSISTANT,
    pb.ITEM_ROLE_SYSTEM: domain.Role.SYSTEM,
    pb.ITEM_ROLE_DEVELOPER: domain.Role.DEVELOPER,
}
_ROLE_VALUES: Final = {role: value for value, role in _ROLES.items()}


def content_to_pb(content: domain.Content, item: pb.Item) -> None:
    """Set the content of a proto item."""
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
    """Convert the content of an item, which must be set. Raises InvalidField or MissingField."""
    match item.WhichOneof("content"):
        case "message":
            role = _ROLES.get(item.message.role)
            if role is None:
                raise InvalidField(field=f"{field}.role", problem="it must be set")
            content = parts_from_pb(item.message.parts, f"{field}.content")
            return domain.Message(role=role, content=content)
        case "function_call":
            call = item.function_call
            return domain.FunctionCall(
                call_id=call.call_id, name=call.name, arguments=call.arguments_json
            )
        case "function_call_output":
            message = item.function_call_output
            output = parts_from_pb(message.output, f"{field}.output")
            return domain.FunctionCallOutput(call_id=message.call_id, output=output)
        case "custom_tool_call":
            custom = item.custom_tool_call
            return domain.CustomToolCall(
                call_id=custom.call_id, name=custom.name, input=custom.input
            )
        case "custom_tool_call_output":
            message = item.custom_tool_call_output
            output = parts_from_pb(message.output, f"{field}.output")
            return domain.CustomToolCallOutput(call_id=message.call_id, output=output)
        case "reasoning":
            return domain.Reasoning(text=item.reasoning.text, sealed=item.reasoning.sealed)
        case "compaction":
            return domain.Compaction(sealed=item.compaction.sealed)
        case _:
            return _hosted_from_pb(item)


def _hosted_to_pb(content: domain.Content, item: pb.Item) -> None:
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
            request = item.mcp_approval_request
            return domain.McpApprovalRequest(
                server_label=request.server_label,
                name=request.name,
                arguments=request.arguments_json,
            )
        case _:
            response = item.mcp_approval_response
            return domain.McpApprovalResponse(
                approval_request_id=response.approval_request_id,
                approve=response.approve,
                reason=response.reason,
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
    """Convert a search result."""
    return pb.FileSearchResult(**asdict(result))


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
        tools=[pb.McpToolDescription(**asdict(tool)) for tool in tools.tools],
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


_STATUS: Final = "STATUS_"
_INCLUDES: Final[Mapping[int, Include]] = {
    response_pb2.RESPONSE_INCLUDE_LOGPROBS: Include.LOGPROBS,
    response_pb2.RESPONSE_INCLUDE_FILE_SEARCH_RESULTS: Include.FILE_SEARCH_RESULTS,
    response_pb2.RESPONSE_INCLUDE_SEALED_REASONING: Include.SEALED_REASONING,
    response_pb2.RESPONSE_INCLUDE_INPUT_IMAGE_URLS: Include.INPUT_IMAGE_URLS,
}


def includes_from_pb(values: Iterable[int]) -> frozenset[Include]:
    """Convert the `include` values of a request. Raises InvalidField for an unknown value."""
    includes = set()
    for index, value in enumerate(values):
        include = _INCLUDES.get(value)
        if include is None:
            problem = f"{value} is not a value of ResponseInclude"
            raise InvalidField(field=f"include[{index}]", problem=problem)
        includes.add(include)
    return frozenset(includes)


def item_to_pb(item: Item) -> pb.Item:
    """Convert an item with all its fields."""
    message = pb.Item(
        id=item.id,
        status=f"{_STATUS}{item.status.name}",
        create_time=timestamp(item.created_at),
    )
    content_to_pb(item.content, message)
    return message


def items_to_pb(items: Iterable[Item], include: Collection[Include]) -> list[pb.Item]:
    """Convert items, filtered by the `include` values of the request."""
    return [item_to_pb(apply_include(item, include)) for item in items]


def input_item(message: pb.Item, field: str) -> InputItem:
    """Convert an item of a request, or a reference to a stored one. `InputItem.check` validates it.

    Raises InvalidField or MissingField.
    """
    if message.WhichOneof("content") is None:
        return InputItem(reference=message.id)
    return InputItem(
        content=content_from_pb(message, field),
        id=message.id,
        status=_status(message.status, field),
    )


def input_items(messages: Sequence[pb.Item], field: str) -> tuple[InputItem, ...]:
    """Convert the items of a request. Raises InvalidField or MissingField."""
    return tuple(input_item(message, f"{field}[{index}]") for index, message in enumerate(messages))


def _status(value: int, field: str) -> ItemStatus:
    if value == pb.Item.STATUS_UNSPECIFIED:
        return ItemStatus.COMPLETED
    known = pb.Item.Status.DESCRIPTOR.values_by_number.get(value)
    if known is None:
        raise InvalidField(field=f"{field}.status", problem=f"{value} is not a status")
    return ItemStatus[known.name.removeprefix(_STATUS)]
