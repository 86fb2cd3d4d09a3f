"""Items and content parts as objects. Absent optional fields are omitted instead of null."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, NotRequired

import orjson
from corral.control.v1 import item_pb2
from pydantic import Field
from typing_extensions import TypeAliasType, TypedDict

from dialects.openai.responses.namespaces import local_name, namespace_of
from dialects.shared.json_body import answer_value
from dialects.shared.media import is_address
from dialects.shared.token_logprobs import CandidateLogprob, TokenLogprob
from dialects.shared.wire import From, declared, writer, writers

ItemStatus = Literal["in_progress", "completed", "incomplete"]
HostedStatus = Literal[ItemStatus, "failed"]
_STATUSES: Final[dict[item_pb2.Item.Status, ItemStatus]] = {
    item_pb2.Item.STATUS_UNSPECIFIED: "completed",
    item_pb2.Item.STATUS_IN_PROGRESS: "in_progress",
    item_pb2.Item.STATUS_COMPLETED: "completed",
    item_pb2.Item.STATUS_INCOMPLETE: "incomplete",
}


class FileAnnotation(TypedDict):
    type: Literal["file_citation"]
    file_id: str
    filename: str
    index: Annotated[int, From("start")]


class InputText(TypedDict):
    type: Literal["input_text"]
    text: str


class OutputText(TypedDict):
    type: Literal["output_text"]
    text: str
    annotations: list[FileAnnotation]
    logprobs: list[TokenLogprob]


class Refusal(TypedDict):
    type: Literal["refusal"]
    refusal: str


class InputImage(TypedDict):
    type: Literal["input_image"]
    detail: str
    file_id: NotRequired[str]
    image_url: NotRequired[str | None]


class InputFile(TypedDict):
    """A document in base64, by file id, or at a URL."""

    type: Literal["input_file"]
    file_id: NotRequired[str]
    file_url: NotRequired[str]
    file_data: NotRequired[str]
    filename: NotRequired[str]


InputPart = InputText | Refusal | InputImage | InputFile
Part = InputPart | OutputText


class SummaryText(TypedDict):
    """A text of reasoning."""

    type: Literal["summary_text"]
    text: str


citation_object = writer(item_pb2.FileCitation, FileAnnotation)


def part_object(part: item_pb2.ItemPart) -> Part:
    """A content part of an answer as JSON."""
    if (part.WhichOneof("part") or "text") != "text":
        return _input_part(part)
    return {
        "type": "output_text",
        "text": part.text.text,
        "annotations": [citation_object(citation) for citation in part.text.citations],
        "logprobs": logprob_objects(part.text.logprobs),
    }


def logprob_objects(logprobs: Iterable[item_pb2.ItemLogprob]) -> list[TokenLogprob]:
    """Tokens with their log probabilities and alternatives."""
    return [
        {**_token(logprob), "top_logprobs": [_token(each) for each in logprob.top]}
        for logprob in logprobs
    ]


def _token(logprob: item_pb2.ItemLogprob) -> CandidateLogprob:
    return {"token": logprob.token, "logprob": logprob.logprob, "bytes": list(logprob.raw)}


def _input_part(part: item_pb2.ItemPart) -> InputPart:
    match part.WhichOneof("part"):
        case "refusal":
            return {"type": "refusal", "refusal": part.refusal}
        case "image":
            image: InputImage = {"type": "input_image", "detail": part.image.detail or "auto"}
            if part.image.file_id:
                image["file_id"] = part.image.file_id
            else:
                image["image_url"] = part.image.url or None
            return image
        case "file":
            file: InputFile = {"type": "input_file"}
            if part.file.file_id:
                file["file_id"] = part.file.file_id
            if url := part.file.data_url:
                file["file_url" if is_address(url) else "file_data"] = url
            if part.file.filename:
                file["filename"] = part.file.filename
            return file
        case _:
            return {"type": "input_text", "text": part.text.text}


def _content(message: item_pb2.MessageItem) -> list[Part]:
    is_output = message.role == item_pb2.ITEM_ROLE_ASSISTANT
    return [part_object(part) if is_output else _input_part(part) for part in message.parts]


def _output(parts: Sequence[item_pb2.ItemPart]) -> str | list[InputPart]:
    """A single text is written as a string instead of a list of parts."""
    if len(parts) == 1 and parts[0].WhichOneof("part") == "text":
        return parts[0].text.text
    return [_input_part(part) for part in parts]


def _summary(text: str) -> list[SummaryText]:
    """The reasoning text is returned as its summary, which all clients support."""
    return [{"type": "summary_text", "text": text}] if text else []


def _hosted_status(item: item_pb2.Item) -> HostedStatus:
    content = getattr(item, item.WhichOneof("content") or "")
    return "failed" if content.problem else _STATUSES[item.status]


def _parsed(default: object) -> Callable[[str], Any]:
    """Parses JSON of third parties, to `default` if it is invalid."""

    def parse(text: str) -> Any:
        try:
            return answer_value(text)
        except orjson.JSONDecodeError:
            return default

    return parse


Status = Annotated[ItemStatus, From("status", _STATUSES.__getitem__)]
CallStatus = Annotated[HostedStatus, From(".", _hosted_status)]


class MessageItem(TypedDict):
    id: str
    type: Literal["message"]
    status: Status
    role: Annotated[Literal["user", "assistant", "system", "developer"], From("message.role")]
    content: Annotated[list[Part], From("message", _content)]


class FunctionCallItem(TypedDict):
    id: str
    type: Literal["function_call"]
    status: Status
    call_id: Annotated[str, From("function_call.call_id")]
    name: Annotated[str, From("function_call.name", local_name)]
    arguments: Annotated[str, From("function_call.arguments_json")]
    namespace: NotRequired[Annotated[str, From("function_call.name", namespace_of)]]


class FunctionCallOutputItem(TypedDict):
    id: str
    type: Literal["function_call_output"]
    status: Status
    call_id: Annotated[str, From("function_call_output.call_id")]
    output: Annotated[str | list[InputPart], From("function_call_output.output", _output)]


class CustomToolCallItem(TypedDict):
    id: str
    type: Literal["custom_tool_call"]
    status: Status
    call_id: Annotated[str, From("custom_tool_call.call_id")]
    name: Annotated[str, From("custom_tool_call.name", local_name)]
    input: Annotated[str, From("custom_tool_call.input")]
    namespace: NotRequired[Annotated[str, From("custom_tool_call.name", namespace_of)]]


class CustomToolCallOutputItem(TypedDict):
    id: str
    type: Literal["custom_tool_call_output"]
    status: Status
    call_id: Annotated[str, From("custom_tool_call_output.call_id")]
    output: Annotated[str | list[InputPart], From("custom_tool_call_output.output", _output)]


class ReasoningItem(TypedDict):
    id: str
    type: Literal["reasoning"]
    summary: Annotated[list[SummaryText], From("reasoning.text", _summary)]
    encrypted_content: NotRequired[Annotated[str, From("reasoning.sealed")]]


class CompactionItem(TypedDict):
    """Earlier items, summarized."""

    id: str
    type: Literal["compaction"]
    encrypted_content: Annotated[str, From("compaction.sealed")]


class FileSearchResult(TypedDict):
    """A passage that a search found."""

    file_id: str
    filename: str
    score: float
    text: str
    attributes: Annotated[dict[str, Any], From("attributes_json", _parsed({}))]


class FileSearchCallItem(TypedDict):
    id: str
    type: Literal["file_search_call"]
    status: CallStatus
    queries: Annotated[list[str], From("file_search_call.queries")]
    results: Annotated[list[FileSearchResult] | None, From("file_search_call.results")]


class McpToolDescription(TypedDict):
    name: str
    description: str | None
    input_schema: Annotated[dict[str, Any], From("input_schema_json", _parsed({}))]
    annotations: Annotated[dict[str, Any] | None, From("annotations_json", _parsed(None))]


class McpListToolsItem(TypedDict):
    id: str
    type: Literal["mcp_list_tools"]
    server_label: Annotated[str, From("mcp_list_tools.server_label")]
    tools: Annotated[list[McpToolDescription], From("mcp_list_tools.tools")]
    error: Annotated[str | None, From("mcp_list_tools.problem")]


class McpCallItem(TypedDict):
    id: str
    type: Literal["mcp_call"]
    status: CallStatus
    server_label: Annotated[str, From("mcp_call.server_label")]
    name: Annotated[str, From("mcp_call.name")]
    arguments: Annotated[str, From("mcp_call.arguments_json")]
    output: Annotated[str | None, From("mcp_call.output")]
    error: Annotated[str | None, From("mcp_call.problem")]
    approval_request_id: Annotated[str | None, From("mcp_call.approval_request_id")]


class McpApprovalRequestItem(TypedDict):
    """A call that waits for approval."""

    id: str
    type: Literal["mcp_approval_request"]
    server_label: Annotated[str, From("mcp_approval_request.server_label")]
    name: Annotated[str, From("mcp_approval_request.name")]
    arguments: Annotated[str, From("mcp_approval_request.arguments_json")]


class McpApprovalResponseItem(TypedDict):
    """The decision about a call."""

    id: str
    type: Literal["mcp_approval_response"]
    approval_request_id: Annotated[str | None, From("mcp_approval_response.approval_request_id")]
    approve: Annotated[bool, From("mcp_approval_response.approve")]
    reason: Annotated[str | None, From("mcp_approval_response.reason")]


class ItemReference(TypedDict):
    """An item whose content is not stored any more."""

    type: Literal["item_reference"]
    id: str


Item = TypeAliasType(
    "Item",
    Annotated[
        MessageItem
        | FunctionCallItem
        | FunctionCallOutputItem
        | CustomToolCallItem
        | CustomToolCallOutputItem
        | ReasoningItem
        | CompactionItem
        | FileSearchCallItem
        | McpListToolsItem
        | McpCallItem
        | McpApprovalRequestItem
        | McpApprovalResponseItem
        | ItemReference,
        Field(discriminator="type"),
    ],
)
_WRITERS: Final[Mapping[str, Callable[[item_pb2.Item], Item]]] = writers(item_pb2.Item, Item)
"""By field of Item, which equals the `type`."""


@declared
def item_object(item: item_pb2.Item) -> Item:
    """An item as JSON. An item without content is a reference."""
    return _WRITERS[item.WhichOneof("content") or "item_reference"](item)


def item_objects(items: Iterable[item_pb2.Item]) -> list[Item]:
    """Items as JSON, in order."""
    return [item_object(item) for item in items]
