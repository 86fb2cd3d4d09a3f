"""What events of responses say, beside their type and number."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, NotRequired

from corral.control.v1 import response_event_pb2 as pb
from corral.control.v1 import response_pb2
from typing_extensions import TypedDict

from dialects.openai.responses.namespaces import local_name, namespace_of
from dialects.openai.responses.objects import ResponseResource, response_object
from dialects.openai.responses.output_items import (
    FileAnnotation,
    Item,
    Part,
    SummaryText,
    item_object,
    logprob_objects,
    part_object,
)
from dialects.shared.token_logprobs import TokenLogprob
from dialects.shared.wire import From, nested_writer


class ResponseData(TypedDict):
    """The response, as it is by now."""

    response: Annotated[ResponseResource, From(".", response_object)]


class ItemData(TypedDict):
    output_index: int
    item: Annotated[Item, From(write=item_object)]


class ItemPosition(TypedDict):
    """The item that an event belongs to."""

    item_id: str
    output_index: int


class PartData(ItemPosition):
    content_index: Annotated[int, From("part_index")]
    part: Annotated[Part, From(write=part_object)]


class AnnotationData(ItemPosition):
    """A citation in a text."""

    content_index: Annotated[int, From("part_index")]
    annotation_index: int
    annotation: Annotated[FileAnnotation, From("citation")]


class TextDelta(ItemPosition):
    """More of a text, with the log probabilities of its tokens."""

    content_index: Annotated[int, From("part_index")]
    delta: Annotated[str, From("text")]
    logprobs: Annotated[list[TokenLogprob], From(write=logprob_objects)]


class TextData(ItemPosition):
    """A whole text."""

    content_index: Annotated[int, From("part_index")]
    text: str
    logprobs: Annotated[list[TokenLogprob], From(write=logprob_objects)]


class RefusalDelta(ItemPosition):
    """More of a refusal."""

    content_index: Annotated[int, From("part_index")]
    delta: Annotated[str, From("text")]


class RefusalData(ItemPosition):
    """A whole refusal."""

    content_index: Annotated[int, From("part_index")]
    refusal: Annotated[str, From("text")]


class SummaryPart(ItemPosition):
    """A part of a summary of reasoning."""

    summary_index: Annotated[int, From("part_index")]
    part: Annotated[SummaryText, From(".")]


class SummaryDelta(ItemPosition):
    """More of a summary."""

    summary_index: Annotated[int, From("part_index")]
    delta: Annotated[str, From("text")]


class SummaryData(ItemPosition):
    """A whole summary."""

    summary_index: Annotated[int, From("part_index")]
    text: str


class CallDelta(ItemPosition):
    """More of the arguments or of the input of a call."""

    delta: Annotated[str, From("text")]


class CallArguments(ItemPosition):
    """The whole arguments of a call."""

    arguments: Annotated[str, From("text")]
    name: Annotated[str, From(write=local_name)]
    namespace: NotRequired[Annotated[str, From("name", namespace_of)]]


class CallInput(ItemPosition):
    """The whole input of a call."""

    input: Annotated[str, From("text")]


LIFECYCLE: Final = (
    *("created", "queued", "in_progress"),
    *("completed", "incomplete", "failed", "cancelled"),
)
EVENT_DATA: Final[Mapping[str, Any]] = {
    **dict.fromkeys(LIFECYCLE, ResponseData),
    "output_item_added": ItemData,
    "output_item_done": ItemData,
    "content_part_added": PartData,
    "content_part_done": PartData,
    "output_text_delta": TextDelta,
    "output_text_done": TextData,
    "output_text_annotation_added": AnnotationData,
    "refusal_delta": RefusalDelta,
    "refusal_done": RefusalData,
    "reasoning_summary_part_added": SummaryPart,
    "reasoning_summary_part_done": SummaryPart,
    "reasoning_summary_text_delta": SummaryDelta,
    "reasoning_summary_text_done": SummaryData,
    "function_call_arguments_delta": CallDelta,
    "function_call_arguments_done": CallArguments,
    "custom_tool_call_input_delta": CallDelta,
    "custom_tool_call_input_done": CallInput,
    "file_search_call_in_progress": ItemPosition,
    "file_search_call_searching": ItemPosition,
    "file_search_call_completed": ItemPosition,
    "mcp_list_tools_in_progress": ItemPosition,
    "mcp_list_tools_completed": ItemPosition,
    "mcp_list_tools_failed": ItemPosition,
    "mcp_call_in_progress": ItemPosition,
    "mcp_call_arguments_delta": CallDelta,
    "mcp_call_arguments_done": CallArguments,
    "mcp_call_completed": ItemPosition,
    "mcp_call_failed": ItemPosition,
    "compaction_compacting": ItemPosition,
}
"""The type of each event's data, by field of ResponseEvent."""


def _created(response: response_pb2.Response) -> ResponseData:
    """A response that waits only in the background is in progress for OpenAI's clients."""
    written = response_object(response)
    if not response.settings.background:
        written["status"] = "in_progress"
    return {"response": written}


_FIELDS: Final = pb.ResponseEvent.DESCRIPTOR.fields_by_name
WRITERS: Final[Mapping[str, Callable[[Any], Mapping[str, Any]]]] = {
    kind: nested_writer(_FIELDS[kind].message_type, shape) for kind, shape in EVENT_DATA.items()
} | {"created": _created}
"""What writes it."""
