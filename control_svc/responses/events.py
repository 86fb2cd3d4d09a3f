"""Events of a response and their projection from a turn, in OpenAI's order and with its names.

A worker that resumes a response rebuilds the drafts of the open turn from the stored events.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from control_svc.agent.drafts import Draft, DraftEvent, DraftKind, ItemAdded, TextDelta
from control_svc.items.model import (
    Compaction,
    Content,
    CustomToolCall,
    FileCitation,
    FileSearchCall,
    FunctionCall,
    Item,
    ItemStatus,
    McpCall,
    McpListTools,
    Message,
    Part,
    Reasoning,
    Text,
    TokenLogprob,
)
from control_svc.responses.model import Response


class EventType(StrEnum):
    """OpenAI's event types without the prefix "response.", with underscores for dots."""

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
    REASONING_PART_ADDED = "reasoning_summary_part_added"
    REASONING_DELTA = "reasoning_summary_text_delta"
    REASONING_TEXT_DONE = "reasoning_summary_text_done"
    REASONING_PART_DONE = "reasoning_summary_part_done"
    ARGUMENTS_DELTA = "function_call_arguments_delta"
    ARGUMENTS_DONE = "function_call_arguments_done"
    INPUT_DELTA = "custom_tool_call_input_delta"
    INPUT_DONE = "custom_tool_call_input_done"
    SEARCH_IN_PROGRESS = "file_search_call_in_progress"
    SEARCHING = "file_search_call_searching"
    SEARCH_COMPLETED = "file_search_call_completed"
    MCP_LIST_IN_PROGRESS = "mcp_list_tools_in_progress"
    MCP_LIST_COMPLETED = "mcp_list_tools_completed"
    MCP_LIST_FAILED = "mcp_list_tools_failed"
    MCP_CALL_IN_PROGRESS = "mcp_call_in_progress"
    MCP_ARGUMENTS_DELTA = "mcp_call_arguments_delta"
    MCP_ARGUMENTS_DONE = "mcp_call_arguments_done"
    MCP_CALL_COMPLETED = "mcp_call_completed"
    MCP_CALL_FAILED = "mcp_call_failed"
    COMPACTING = "compaction_compacting"


@dataclass(frozen=True)
class StateEvent:
    """A change of the state of the response."""

    type: EventType
    response: Response | None
    """None in a decoded event. Read the response from its row instead."""


@dataclass(frozen=True)
class ItemEvent:
    """An item starts or is complete."""

    type: EventType
    output_index: int
    item: Item


@dataclass(frozen=True)
class PartEvent:
    """A content part of a message starts or is complete."""

    type: EventType
    item_id: str
    output_index: int
    part_index: int
    part: Part


@dataclass(frozen=True)
class TextEvent:
    """A delta of a text, or the whole text."""

    type: EventType
    item_id: str
    output_index: int
    part_index: int
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True)
class AnnotationEvent:
    """A citation of a file."""

    type: EventType
    item_id: str
    output_index: int
    part_index: int
    annotation_index: int
    citation: FileCitation


@dataclass(frozen=True)
class CallEvent:
    """A delta of the arguments of a call, or all arguments with the name of the tool."""

    type: EventType
    item_id: str
    output_index: int
    text: str
    name: str = ""


@dataclass(frozen=True)
class StepEvent:
    """Progress of a hosted tool."""

    type: EventType
    item_id: str
    output_index: int


ResponseEvent = (
    StateEvent | ItemEvent | PartEvent | TextEvent | AnnotationEvent | CallEvent | StepEvent
)


@dataclass(frozen=True)
class EventCodec:
    """Converts events to and from the bytes of a stream."""

    encode: Callable[[ResponseEvent], bytes]
    decode: Callable[[bytes], ResponseEvent]


_DELTAS: Final = {
    DraftKind.MESSAGE: EventType.TEXT_DELTA,
    DraftKind.REASONING: EventType.REASONING_DELTA,
    DraftKind.FUNCTION: EventType.ARGUMENTS_DELTA,
}
"""Kinds that are streamed as deltas. Others are sent at the end of their turn."""
_KINDS: Final[dict[type[Content], DraftKind]] = {
    Message: DraftKind.MESSAGE,
    Reasoning: DraftKind.REASONING,
    FunctionCall: DraftKind.FUNCTION,
}
_TEXT_DELTAS: Final = (EventType.TEXT_DELTA, EventType.REASONING_DELTA)


class TurnProjection:
    """Converts the output of one turn to events."""

    def __init__(
        self, first_index: int, show: Callable[[Item], Item], drafts: Sequence[Draft] = ()
    ) -> None:
        """`first_index` is the position of the first item in the output. `show` returns an item as
        the client sees it. Events of `drafts` have been recorded before.
        """
        self._first_index = first_index
        self._show = show
        self._open = next((draft for draft in drafts if not draft.is_done), None)
        self._num_started = len(drafts)
        self._num_done = sum(draft.is_done for draft in drafts)
        self.is_held = False
        """Whether events are held back until the end of the turn. This starts with the first call
        whose arguments are not streamed, since its draft could not be rebuilt from events."""

    def record(self, changes: Sequence[DraftEvent]) -> list[ResponseEvent]:
        """Return the events of a delta.

        An item is reported complete when the next one starts or the turn ends, since only then is
        it known whether the item was interrupted.
        """
        return [event for change in changes for event in self._convert(change)]

    def end(self, items: Sequence[Item]) -> list[ResponseEvent]:
        """Return the remaining events of a turn with these items."""
        events: list[ResponseEvent] = []
        for index in range(self._num_done, len(items)):
            if index >= self._num_started:
                events += self._start_events(index, items[index])
            events += self._done_events(index, items[index])
        return events

    def _convert(self, change: DraftEvent) -> Iterator[ResponseEvent]:
        match change:
            case ItemAdded(draft=draft) if not self.is_held:
                if draft.kind not in _DELTAS:
                    self.is_held = True
                    return
                if self._open is not None:
                    completed = self._open.item(ItemStatus.COMPLETED)
                    yield from self._done_events(self._open.index, completed)
                    self._num_done += 1
                yield from self._start_events(draft.index, draft.item(ItemStatus.IN_PROGRESS))
                self._open = draft
                self._num_started += 1
            case TextDelta(draft=draft) if not self.is_held:
                position, event_type = self._first_index + draft.index, _DELTAS[draft.kind]
                if draft.kind is DraftKind.FUNCTION:
                    yield CallEvent(event_type, draft.id, position, change.text)
                else:
                    yield TextEvent(event_type, draft.id, position, 0, change.text, change.logprobs)

    def _start_events(self, index: int, item: Item) -> Iterator[ResponseEvent]:
        position = self._first_index + index
        started = item.with_content(_empty_content(item.content), ItemStatus.IN_PROGRESS)
        yield ItemEvent(EventType.ITEM_ADDED, position, started)
        match item.content:
            case Message():
                yield PartEvent(EventType.PART_ADDED, item.id, position, 0, Text(text=""))
            case Reasoning():
                yield TextEvent(EventType.REASONING_PART_ADDED, item.id, position, 0, "")
            case FileSearchCall():
                yield StepEvent(EventType.SEARCH_IN_PROGRESS, item.id, position)
            case McpListTools():
                yield StepEvent(EventType.MCP_LIST_IN_PROGRESS, item.id, position)
            case McpCall(arguments=arguments, name=name):
                yield StepEvent(EventType.MCP_CALL_IN_PROGRESS, item.id, position)
                yield CallEvent(EventType.MCP_ARGUMENTS_DELTA, item.id, position, arguments)
                yield CallEvent(EventType.MCP_ARGUMENTS_DONE, item.id, position, arguments, name)
            case Compaction():
                yield StepEvent(EventType.COMPACTING, item.id, position)
            case _:
                pass

    def _done_events(self, index: int, item: Item) -> Iterator[ResponseEvent]:
        position = self._first_index + index
        if item.status is ItemStatus.IN_PROGRESS:
            return  # a hosted call, which is executed after the turn
        item = self._show(item)
        match item.content:
            case Message(content=(Text() as text, *_)):
                for number, citation in enumerate(text.annotations):
                    yield AnnotationEvent(
                        EventType.ANNOTATION_ADDED, item.id, position, 0, number, citation
                    )
                yield TextEvent(EventType.TEXT_DONE, item.id, position, 0, text.text, text.logprobs)
                yield PartEvent(EventType.PART_DONE, item.id, position, 0, text)
            case Reasoning(text=reasoning):
                yield TextEvent(EventType.REASONING_TEXT_DONE, item.id, position, 0, reasoning)
                yield TextEvent(EventType.REASONING_PART_DONE, item.id, position, 0, reasoning)
            case FunctionCall(arguments=arguments, name=name):
                yield CallEvent(EventType.ARGUMENTS_DONE, item.id, position, arguments, name)
            case CustomToolCall(input=text, name=name):
                yield CallEvent(EventType.INPUT_DELTA, item.id, position, text)
                yield CallEvent(EventType.INPUT_DONE, item.id, position, text, name)
            case McpListTools(problem=problem):
                failed, completed = EventType.MCP_LIST_FAILED, EventType.MCP_LIST_COMPLETED
                yield StepEvent(failed if problem else completed, item.id, position)
            case _:
                pass
        yield ItemEvent(EventType.ITEM_DONE, position, item)


def call_started_events(item: Item, position: int) -> list[ResponseEvent]:
    """Return the events of the start of a hosted call; of an MCP call all were recorded before."""
    if isinstance(item.content, McpCall):
        return []
    return [StepEvent(EventType.SEARCHING, item.id, position)]


def call_ended_events(item: Item, visible: Item, position: int) -> list[ResponseEvent]:
    """Return the events of the end of a hosted call; `visible` is the item for the client."""
    event_type = EventType.SEARCH_COMPLETED
    if isinstance(item.content, McpCall):
        failed = bool(item.content.problem)
        event_type = EventType.MCP_CALL_FAILED if failed else EventType.MCP_CALL_COMPLETED
    return [
        StepEvent(event_type, item.id, position),
        ItemEvent(EventType.ITEM_DONE, position, visible),
    ]


def rebuild_drafts(events: Sequence[ResponseEvent], first_index: int) -> list[Draft]:
    """Rebuild the drafts of the open turn from its events."""
    drafts: dict[str, Draft] = {}
    for event in events:
        match event:
            case ItemEvent(type=EventType.ITEM_ADDED, item=item) if type(item.content) in _KINDS:
                num_calls = sum(bool(draft.call_id) for draft in drafts.values())
                drafts[item.id] = _draft(event, first_index, num_calls)
            case ItemEvent(type=EventType.ITEM_DONE, item=item) if item.id in drafts:
                drafts[item.id].is_done = True
            case TextEvent(type=event_type) if event_type in _TEXT_DELTAS:
                drafts[event.item_id].text += event.text
                drafts[event.item_id].logprobs += event.logprobs
            case CallEvent(type=EventType.ARGUMENTS_DELTA):
                drafts[event.item_id].text += event.text
            case _:
                pass
    return list(drafts.values())


def _draft(event: ItemEvent, first_index: int, num_calls: int) -> Draft:
    item = event.item
    call = item.content if isinstance(item.content, FunctionCall) else None
    return Draft(
        index=event.output_index - first_index,
        id=item.id,
        kind=_KINDS[type(item.content)],
        created_at=item.created_at,
        name="" if call is None else call.name,
        call_id="" if call is None else call.call_id,
        call_index=num_calls,
    )


def _empty_content(content: Content) -> Content:
    """Return the content of the event that adds an item."""
    match content:
        case Message():
            return replace(content, content=())
        case Reasoning():
            return Reasoning(text="")
        case FunctionCall():
            return replace(content, arguments="")
        case CustomToolCall():
            return replace(content, input="")
        case FileSearchCall():
            return replace(content, results=(), problem="")
        case McpListTools():
            return McpListTools(server_label=content.server_label)
        case McpCall():
            return replace(content, arguments="", output=None, problem="")
        case Compaction():
            return Compaction(sealed="")
        case _:
            return content
