"""Events of a response and their projection from a turn, in OpenAI's order and names.

A worker that takes a response over rebuilds its state from the stored events.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
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
    """Types of events: OpenAI's, with underscores for dots and without "response."."""

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

    moment: EventType
    response: Response | None
    """None: of an event out of a stream; the response itself is in its row."""


@dataclass(frozen=True)
class ItemEvent:
    """An item begins, or is whole."""

    moment: EventType
    output_index: int
    item: Item


@dataclass(frozen=True)
class PartEvent:
    """A part of a message begins, or is whole."""

    moment: EventType
    item_id: str
    output_index: int
    part_index: int
    part: Part


@dataclass(frozen=True)
class TextEvent:
    """Text: a new piece, or all of it."""

    moment: EventType
    item_id: str
    output_index: int
    part_index: int
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True)
class AnnotationEvent:
    """A citation of a file."""

    moment: EventType
    item_id: str
    output_index: int
    part_index: int
    annotation_index: int
    citation: FileCitation


@dataclass(frozen=True)
class CallEvent:
    """What a tool is called with: a new piece, or all of it, with the tool's name."""

    moment: EventType
    item_id: str
    output_index: int
    text: str
    name: str = ""


@dataclass(frozen=True)
class StepEvent:
    """How far a tool of the server is."""

    moment: EventType
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


_DELTAS: Final = {
    DraftKind.MESSAGE: EventType.TEXT_DELTA,
    DraftKind.REASONING: EventType.THOUGHT_DELTA,
    DraftKind.FUNCTION: EventType.ARGUMENTS_DELTA,
}
"""Kinds that are streamed as deltas; others are sent at the end of their turn."""
_KINDS: Final[dict[type[Content], DraftKind]] = {
    Message: DraftKind.MESSAGE,
    Reasoning: DraftKind.REASONING,
    FunctionCall: DraftKind.FUNCTION,
}
_GROWTH: Final = frozenset(_DELTAS.values())


class TurnProjection:
    """The events of one turn."""

    def __init__(
        self, first_index: int, show: Callable[[Item], Item], drafts: Sequence[Draft] = ()
    ) -> None:
        """`first_index` is the position of the turn's first item in the output; `show` converts an
        item for the caller; `drafts` were sent before.
        """
        self._first_index = first_index
        self._show = show
        self._open = next((draft for draft in drafts if not draft.is_done), None)
        self._num_opened = len(drafts)
        self._num_closed = sum(draft.is_done for draft in drafts)
        self.is_held = False
        """From here on everything is told once the turn has ended: it has begun a call of whose
        arguments readers see nothing, and what they do not see cannot be rebuilt."""

    def record(self, said: Sequence[DraftEvent]) -> list[ResponseEvent]:
        """The events of a delta. An item is reported complete when the next one starts or the turn
        ends, since only then it is known whether it was interrupted.
        """
        return [event for each in said for event in self._record(each)]

    def end(self, items: Sequence[Item]) -> list[ResponseEvent]:
        """The remaining events of a turn that became these items."""
        events: list[ResponseEvent] = []
        for index in range(self._num_closed, len(items)):
            if index >= self._num_opened:
                events += self._opening(index, items[index])
            events += self._closing(index, items[index])
        return events

    def _record(self, said: DraftEvent) -> Iterator[ResponseEvent]:
        match said:
            case ItemAdded(draft=draft) if not self.is_held:
                if draft.kind not in _DELTAS:
                    self.is_held = True
                    return
                if self._open is not None:
                    whole = self._open.item(ItemStatus.COMPLETED)
                    yield from self._closing(self._open.index, whole)
                    self._num_closed += 1
                yield from self._opening(draft.index, draft.item(ItemStatus.IN_PROGRESS))
                self._open = draft
                self._num_opened += 1
            case TextDelta() if not self.is_held:
                yield self._growing(said)

    def _growing(self, said: TextDelta) -> ResponseEvent:
        draft = said.draft
        place, moment = self._first_index + draft.index, _DELTAS[draft.kind]
        if draft.kind is DraftKind.FUNCTION:
            return CallEvent(moment, draft.id, place, said.text)
        return TextEvent(moment, draft.id, place, 0, said.text, said.logprobs)

    def _opening(self, index: int, item: Item) -> Iterator[ResponseEvent]:
        place = self._first_index + index
        started = item.with_content(_emptied(item.content), ItemStatus.IN_PROGRESS)
        yield ItemEvent(EventType.ITEM_ADDED, place, started)
        match item.content:
            case Message():
                yield PartEvent(EventType.PART_ADDED, item.id, place, 0, Text(text=""))
            case Reasoning():
                yield TextEvent(EventType.THOUGHT_ADDED, item.id, place, 0, "")
            case FileSearchCall():
                yield StepEvent(EventType.SEARCH_IN_PROGRESS, item.id, place)
            case McpListTools():
                yield StepEvent(EventType.LISTING_TOOLS, item.id, place)
            case McpCall(arguments=arguments, name=name):
                yield StepEvent(EventType.REMOTE_CALL_IN_PROGRESS, item.id, place)
                yield CallEvent(EventType.REMOTE_ARGUMENTS_DELTA, item.id, place, arguments)
                yield CallEvent(EventType.REMOTE_ARGUMENTS_DONE, item.id, place, arguments, name)
            case Compaction():
                yield StepEvent(EventType.COMPACTING, item.id, place)
            case _:
                pass

    def _closing(self, index: int, item: Item) -> Iterator[ResponseEvent]:
        place = self._first_index + index
        if item.status is ItemStatus.IN_PROGRESS:
            return  # a tool of the server is going to carry it out
        item = self._show(item)
        match item.content:
            case Message(content=(Text() as text, *_)):
                yield from _text_closing(item.id, place, text)
            case Reasoning(text=thought):
                yield TextEvent(EventType.THOUGHT_TEXT_DONE, item.id, place, 0, thought)
                yield TextEvent(EventType.THOUGHT_DONE, item.id, place, 0, thought)
            case FunctionCall(arguments=arguments, name=name):
                yield CallEvent(EventType.ARGUMENTS_DONE, item.id, place, arguments, name)
            case CustomToolCall(input=text, name=name):
                yield CallEvent(EventType.INPUT_DELTA, item.id, place, text)
                yield CallEvent(EventType.INPUT_DONE, item.id, place, text, name)
            case McpListTools(problem=problem):
                moment = EventType.TOOLS_NOT_LISTED if problem else EventType.TOOLS_LISTED
                yield StepEvent(moment, item.id, place)
            case _:
                pass
        yield ItemEvent(EventType.ITEM_DONE, place, item)


def call_begins(item: Item, place: int) -> list[ResponseEvent]:
    """A hosted tool starts. All events of a remote call were sent before."""
    if isinstance(item.content, McpCall):
        return []
    return [StepEvent(EventType.SEARCHING, item.id, place)]


def call_ended(item: Item, shown: Item, place: int) -> list[ResponseEvent]:
    """A tool of the server has done its work; `shown` is the item as its caller sees it."""
    moment = EventType.SEARCH_COMPLETED
    if isinstance(item.content, McpCall):
        has_failed = bool(item.content.problem)
        moment = EventType.REMOTE_CALL_FAILED if has_failed else EventType.REMOTE_CALL_COMPLETED
    return [StepEvent(moment, item.id, place), ItemEvent(EventType.ITEM_DONE, place, shown)]


def rebuilt(events: Sequence[ResponseEvent], first_index: int) -> list[Draft]:
    """The drafts of a turn, rebuilt from its events."""
    drafts: dict[str, Draft] = {}
    for event in events:
        match event:
            case ItemEvent(moment=EventType.ITEM_ADDED, item=item) if type(item.content) in _KINDS:
                drafts[item.id] = _draft(event, first_index, num_calls=_num_calls(drafts.values()))
            case ItemEvent(moment=EventType.ITEM_DONE, item=item) if item.id in drafts:
                drafts[item.id].is_done = True
            case TextEvent(moment=moment) if moment in _GROWTH:
                drafts[event.item_id].text += event.text
                drafts[event.item_id].logprobs += event.logprobs
            case CallEvent(moment=EventType.ARGUMENTS_DELTA):
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


def _num_calls(drafts: Iterable[Draft]) -> int:
    return sum(bool(draft.call_id) for draft in drafts)


def _emptied(content: Content) -> Content:
    """What a reader sees of an item that begins."""
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


def _text_closing(item_id: str, place: int, text: Text) -> Iterator[ResponseEvent]:
    for index, citation in enumerate(text.annotations):
        yield AnnotationEvent(EventType.ANNOTATION_ADDED, item_id, place, 0, index, citation)
    yield TextEvent(EventType.TEXT_DONE, item_id, place, 0, text.text, text.logprobs)
    yield PartEvent(EventType.PART_DONE, item_id, place, 0, text)
