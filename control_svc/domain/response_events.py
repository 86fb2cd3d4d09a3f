"""What is told of a response while it happens, in OpenAI's order and words.

A stream keeps events as bytes that mean the same to every reader and to the worker that takes the
response over: what has been told is what it knows.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from control_svc.domain.items import FileCitation, Item, Part, TokenLogprob
from control_svc.domain.responses import Response


class Moment(StrEnum):
    """What an event says; the words are OpenAI's, dots as underscores, without "response."."""

    CREATED = "created"
    QUEUED = "queued"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    INCOMPLETE = "incomplete"
    FAILED = "failed"
    CANCELLED = "cancelled"
    ITEM_ADDED = "output_item_added"
    ITEM_DONE = "output_item_done"
    PART_ADDED = "content_part_added"
    PART_DONE = "content_part_done"
    TEXT_DELTA = "output_text_delta"
    TEXT_DONE = "output_text_done"
    ANNOTATION_ADDED = "output_text_annotation_added"
    THOUGHT_ADDED = "reasoning_summary_part_added"
    THOUGHT_DELTA = "reasoning_summary_text_delta"
    THOUGHT_TEXT_DONE = "reasoning_summary_text_done"
    THOUGHT_DONE = "reasoning_summary_part_done"
    ARGUMENTS_DELTA = "function_call_arguments_delta"
    ARGUMENTS_DONE = "function_call_arguments_done"
    INPUT_DELTA = "custom_tool_call_input_delta"
    INPUT_DONE = "custom_tool_call_input_done"
    SEARCH_IN_PROGRESS = "file_search_call_in_progress"
    SEARCHING = "file_search_call_searching"
    SEARCH_COMPLETED = "file_search_call_completed"
    LISTING_TOOLS = "mcp_list_tools_in_progress"
    TOOLS_LISTED = "mcp_list_tools_completed"
    TOOLS_NOT_LISTED = "mcp_list_tools_failed"
    REMOTE_CALL_IN_PROGRESS = "mcp_call_in_progress"
    REMOTE_ARGUMENTS_DELTA = "mcp_call_arguments_delta"
    REMOTE_ARGUMENTS_DONE = "mcp_call_arguments_done"
    REMOTE_CALL_COMPLETED = "mcp_call_completed"
    REMOTE_CALL_FAILED = "mcp_call_failed"
    COMPACTING = "compaction_compacting"


@dataclass(frozen=True)
class LifeEvent:
    """The response has come so far."""

    moment: Moment
    response: Response | None
    """None: of an event out of a stream; the response itself is in its row."""


@dataclass(frozen=True)
class ItemEvent:
    """An item begins, or is whole."""

    moment: Moment
    output_index: int
    item: Item


@dataclass(frozen=True)
class PartEvent:
    """A part of a message begins, or is whole."""

    moment: Moment
    item_id: str
    output_index: int
    part_index: int
    part: Part


@dataclass(frozen=True)
class TextEvent:
    """Text: a new piece, or all of it."""

    moment: Moment
    item_id: str
    output_index: int
    part_index: int
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True)
class AnnotationEvent:
    """A citation of a file."""

    moment: Moment
    item_id: str
    output_index: int
    part_index: int
    annotation_index: int
    citation: FileCitation


@dataclass(frozen=True)
class CallEvent:
    """What a tool is called with: a new piece, or all of it, with the tool's name."""

    moment: Moment
    item_id: str
    output_index: int
    text: str
    name: str = ""


@dataclass(frozen=True)
class StepEvent:
    """How far a tool of the server is."""

    moment: Moment
    item_id: str
    output_index: int


ResponseEvent = (
    LifeEvent | ItemEvent | PartEvent | TextEvent | AnnotationEvent | CallEvent | StepEvent
)


@dataclass(frozen=True)
class EventCodec:
    """Between events and the bytes of a stream."""

    encode: Callable[[ResponseEvent], bytes]
    decode: Callable[[bytes], ResponseEvent]
