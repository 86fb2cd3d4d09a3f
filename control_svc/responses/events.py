"""Events of responses, as they are stored in their streams and sent to clients, and their
projection from a turn, in OpenAI's order.

A worker that resumes a response restores the drafts of the open turn from the stored events.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from corral.control.v1.response_event_pb2 import (
    ResponseAnnotationEvent,
    ResponseCallEvent,
    ResponseEvent,
    ResponseItemEvent,
    ResponsePartEvent,
    ResponseStepEvent,
    ResponseTextEvent,
)
from google.protobuf.message import Message as Proto

from control_svc.agent.drafts import (
    Draft,
    DraftEvent,
    DraftKind,
    ItemAdded,
    TextDelta,
    restore_draft,
)
from control_svc.event_log.model import Event
from control_svc.items import model as item_model
from control_svc.items.proto import CITATION, ITEM, LOGPROB, PART
from control_svc.responses.model import Response
from control_svc.responses.proto import response_to_pb

CREATED: Final = "created"
_DELTAS: Final = {
    DraftKind.MESSAGE: "output_text_delta",
    DraftKind.REASONING: "reasoning_summary_text_delta",
    DraftKind.FUNCTION: "function_call_arguments_delta",
}
"""Kinds that are streamed as deltas. Others are sent at the end of their turn."""
_KINDS: Final = {
    "message": DraftKind.MESSAGE,
    "reasoning": DraftKind.REASONING,
    "function_call": DraftKind.FUNCTION,
}
"""The same kinds, by the content of their items."""


def event_to_pb(event: Event) -> ResponseEvent:
    message = ResponseEvent.FromString(event.data)
    message.sequence_number = event.number
    return message


def event_name(data: bytes) -> str:
    """Return OpenAI's type of an event without "response.", with underscores for dots."""
    return ResponseEvent.FromString(data).WhichOneof("event") or ""


def state_event(response: Response, event_type: str = "") -> ResponseEvent:
    """Build the event of the state of a response, or one of another type."""
    return _event(event_type or response.state.value, response_to_pb(response))


def _event(event_type: str, content: Proto) -> ResponseEvent:
    event = ResponseEvent()
    getattr(event, event_type).CopyFrom(content)
    return event


class _ItemEvents(NamedTuple):
    item_id: str
    output_index: int

    def item(self, event_type: str, item: item_model.Item) -> ResponseEvent:
        event = ResponseItemEvent(output_index=self.output_index, item=ITEM.to_message(item))
        return _event(event_type, event)

    def part(self, event_type: str, part: item_model.Text) -> ResponseEvent:
        return _event(event_type, ResponsePartEvent(**self._asdict(), part=PART.encode(part)))

    def text(
        self, event_type: str, text: str, logprobs: Iterable[item_model.TokenLogprob] = ()
    ) -> ResponseEvent:
        logprob_messages = map(LOGPROB.to_message, logprobs)
        event = ResponseTextEvent(**self._asdict(), text=text, logprobs=logprob_messages)
        return _event(event_type, event)

    def citation(self, index: int, citation: item_model.FileCitation) -> ResponseEvent:
        event = ResponseAnnotationEvent(
            **self._asdict(), annotation_index=index, citation=CITATION.to_message(citation)
        )
        return _event("output_text_annotation_added", event)

    def call(self, event_type: str, text: str, name: str = "") -> ResponseEvent:
        return _event(event_type, ResponseCallEvent(**self._asdict(), text=text, name=name))

    def step(self, event_type: str) -> ResponseEvent:
        return _event(event_type, ResponseStepEvent(**self._asdict()))


class TurnProjection:
    """The events of one turn."""

    def __init__(
        self,
        first_index: int,
        show: Callable[[item_model.Item], item_model.Item],
        drafts: Sequence[Draft] = (),
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
        whose arguments are not streamed, since its draft could not be restored from events."""

    def record(self, changes: Sequence[DraftEvent]) -> list[ResponseEvent]:
        """Return the events of a delta.

        An item is reported complete when the next one starts or the turn ends, since only then is
        it known whether the item was interrupted.
        """
        return [event for change in changes for event in self._convert(change)]

    def end(self, items: Sequence[item_model.Item]) -> list[ResponseEvent]:
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
                    completed = self._open.item(item_model.ItemStatus.COMPLETED)
                    yield from self._done_events(self._open.index, completed)
                    self._num_done += 1
                yield from self._start_events(
                    draft.index, draft.item(item_model.ItemStatus.IN_PROGRESS)
                )
                self._open = draft
                self._num_started += 1
            case TextDelta(draft=draft) if not self.is_held:
                events, event_type = self._events(draft.index, draft.id), _DELTAS[draft.kind]
                if draft.kind is DraftKind.FUNCTION:
                    yield events.call(event_type, change.text)
                else:
                    yield events.text(event_type, change.text, change.logprobs)

    def _events(self, index: int, item_id: str) -> _ItemEvents:
        return _ItemEvents(item_id, self._first_index + index)

    def _start_events(self, index: int, item: item_model.Item) -> Iterator[ResponseEvent]:
        events = self._events(index, item.id)
        started = item.with_content(_empty_content(item.content), item_model.ItemStatus.IN_PROGRESS)
        yield events.item("output_item_added", started)
        match item.content:
            case item_model.Message():
                yield events.part("content_part_added", item_model.Text(text=""))
            case item_model.Reasoning():
                yield events.text("reasoning_summary_part_added", "")
            case item_model.FileSearchCall():
                yield events.step("file_search_call_in_progress")
            case item_model.McpListTools():
                yield events.step("mcp_list_tools_in_progress")
            case item_model.McpCall(arguments=arguments, name=name):
                yield events.step("mcp_call_in_progress")
                yield events.call("mcp_call_arguments_delta", arguments)
                yield events.call("mcp_call_arguments_done", arguments, name)
            case item_model.Compaction():
                yield events.step("compaction_compacting")
            case _:
                pass

    def _done_events(self, index: int, item: item_model.Item) -> Iterator[ResponseEvent]:
        events = self._events(index, item.id)
        if item.status is item_model.ItemStatus.IN_PROGRESS:
            return  # a hosted call, which is executed after the turn
        item = self._show(item)
        match item.content:
            case item_model.Message(content=(item_model.Text() as text, *_)):
                for number, citation in enumerate(text.annotations):
                    yield events.citation(number, citation)
                yield events.text("output_text_done", text.text, text.logprobs)
                yield events.part("content_part_done", text)
            case item_model.Reasoning(text=reasoning):
                yield events.text("reasoning_summary_text_done", reasoning)
                yield events.text("reasoning_summary_part_done", reasoning)
            case item_model.FunctionCall(arguments=arguments, name=name):
                yield events.call("function_call_arguments_done", arguments, name)
            case item_model.CustomToolCall(input=text, name=name):
                yield events.call("custom_tool_call_input_delta", text)
                yield events.call("custom_tool_call_input_done", text, name)
            case item_model.McpListTools(problem=problem):
                yield events.step(f"mcp_list_tools_{'failed' if problem else 'completed'}")
            case _:
                pass
        yield events.item("output_item_done", item)


def call_started_events(item: item_model.Item, position: int) -> list[ResponseEvent]:
    """Return the events of the start of a hosted call; of an MCP call all were recorded before."""
    if isinstance(item.content, item_model.McpCall):
        return []
    return [_ItemEvents(item.id, position).step("file_search_call_searching")]


def call_ended_events(
    item: item_model.Item, visible: item_model.Item, position: int
) -> list[ResponseEvent]:
    """Return the events of the end of a hosted call; `visible` is the item for the client."""
    event_type = "file_search_call_completed"
    if isinstance(item.content, item_model.McpCall):
        event_type = f"mcp_call_{'failed' if item.content.problem else 'completed'}"
    events = _ItemEvents(item.id, position)
    return [events.step(event_type), events.item("output_item_done", visible)]


def restore_drafts(events: Iterable[bytes]) -> list[Draft]:
    """Restore the drafts of the open turn from its stored events."""
    drafts: list[Draft] = []
    for event in map(ResponseEvent.FromString, events):
        match event.WhichOneof("event"):
            case "output_item_added":
                item = event.output_item_added.item
                kind = _KINDS.get(item.WhichOneof("content") or "")
                if kind is not None:
                    call = item.function_call  # empty for other kinds
                    restore_draft(drafts, item.id, kind, item.create_time, call.name, call.call_id)
            case "output_text_delta":
                drafts[-1].text += event.output_text_delta.text
                drafts[-1].logprobs += map(LOGPROB.from_message, event.output_text_delta.logprobs)
            case "reasoning_summary_text_delta":
                drafts[-1].text += event.reasoning_summary_text_delta.text
            case "function_call_arguments_delta":
                drafts[-1].text += event.function_call_arguments_delta.text
            case _:
                pass
    return drafts


def _empty_content(content: item_model.Content) -> item_model.Content:
    """The content in the event that adds an item."""
    match content:
        case item_model.Message():
            return replace(content, content=())
        case item_model.Reasoning():
            return item_model.Reasoning(text="")
        case item_model.FunctionCall():
            return replace(content, arguments="")
        case item_model.CustomToolCall():
            return replace(content, input="")
        case item_model.FileSearchCall():
            return replace(content, results=(), problem="")
        case item_model.McpListTools():
            return item_model.McpListTools(server_label=content.server_label)
        case item_model.McpCall():
            return replace(content, arguments="", output=None, problem="")
        case item_model.Compaction():
            return item_model.Compaction(sealed="")
        case _:
            return content
