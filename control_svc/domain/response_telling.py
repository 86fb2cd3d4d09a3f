"""What a turn says, in the words and the order of responses; and back again.

Pure, so that what was told of a turn rebuilds the turn's drafts when another attempt goes on.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from control_svc.domain.drafts import Added, Draft, DraftKind, Grown, Said
from control_svc.domain.items import (
    Compaction,
    Content,
    CustomToolCall,
    FileSearchCall,
    FunctionCall,
    Item,
    ItemStatus,
    McpCall,
    McpListTools,
    Message,
    Reasoning,
    Text,
)
from control_svc.domain.response_events import (
    AnnotationEvent,
    CallEvent,
    ItemEvent,
    Moment,
    PartEvent,
    ResponseEvent,
    StepEvent,
    TextEvent,
)

_DELTAS: Final = {
    DraftKind.MESSAGE: Moment.TEXT_DELTA,
    DraftKind.REASONING: Moment.THOUGHT_DELTA,
    DraftKind.FUNCTION: Moment.ARGUMENTS_DELTA,
}
"""What grows before the eyes of readers. The other kinds are told when their turn has ended."""
_KINDS: Final[dict[type[Content], DraftKind]] = {
    Message: DraftKind.MESSAGE,
    Reasoning: DraftKind.REASONING,
    FunctionCall: DraftKind.FUNCTION,
}
_GROWTH: Final = frozenset(_DELTAS.values())


class TurnTelling:
    """The events of one turn."""

    def __init__(
        self, first_index: int, show: Callable[[Item], Item], drafts: Sequence[Draft] = ()
    ) -> None:
        """`first_index` is the place of the turn's first item in the output; `show` makes of
        an item what its caller sees of it; `drafts` have been told before."""
        self._first_index = first_index
        self._show = show
        self._open = next((draft for draft in drafts if not draft.is_done), None)
        self._num_opened = len(drafts)
        self._num_closed = sum(draft.is_done for draft in drafts)
        self.is_held = False
        """From here on everything is told once the turn has ended: it has begun a call of whose
        arguments readers see nothing, and what they do not see cannot be rebuilt."""

    def tell(self, said: Sequence[Said]) -> list[ResponseEvent]:
        """What readers hear at once. That an item is whole they hear when the next one begins, or
        the turn has ended: only then it is known whether it was broken off."""
        return [event for each in said for event in self._tell(each)]

    def end(self, items: Sequence[Item]) -> list[ResponseEvent]:
        """What is left to tell of a turn that has become these items."""
        events: list[ResponseEvent] = []
        for index in range(self._num_closed, len(items)):
            if index >= self._num_opened:
                events += self._opening(index, items[index])
            events += self._closing(index, items[index])
        return events

    def _tell(self, said: Said) -> Iterator[ResponseEvent]:
        match said:
            case Added(draft=draft) if not self.is_held:
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
            case Grown() if not self.is_held:
                yield self._growing(said)

    def _growing(self, said: Grown) -> ResponseEvent:
        draft = said.draft
        place, moment = self._first_index + draft.index, _DELTAS[draft.kind]
        if draft.kind is DraftKind.FUNCTION:
            return CallEvent(moment, draft.id, place, said.text)
        return TextEvent(moment, draft.id, place, 0, said.text, said.logprobs)

    def _opening(self, index: int, item: Item) -> Iterator[ResponseEvent]:
        place = self._first_index + index
        begun = item.ended(_emptied(item.content), ItemStatus.IN_PROGRESS)
        yield ItemEvent(Moment.ITEM_ADDED, place, begun)
        match item.content:
            case Message():
                yield PartEvent(Moment.PART_ADDED, item.id, place, 0, Text(text=""))
            case Reasoning():
                yield TextEvent(Moment.THOUGHT_ADDED, item.id, place, 0, "")
            case FileSearchCall():
                yield StepEvent(Moment.SEARCH_IN_PROGRESS, item.id, place)
            case McpListTools():
                yield StepEvent(Moment.LISTING_TOOLS, item.id, place)
            case McpCall(arguments=arguments, name=name):
                yield StepEvent(Moment.REMOTE_CALL_IN_PROGRESS, item.id, place)
                yield CallEvent(Moment.REMOTE_ARGUMENTS_DELTA, item.id, place, arguments)
                yield CallEvent(Moment.REMOTE_ARGUMENTS_DONE, item.id, place, arguments, name)
            case Compaction():
                yield StepEvent(Moment.COMPACTING, item.id, place)
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
                yield TextEvent(Moment.THOUGHT_TEXT_DONE, item.id, place, 0, thought)
                yield TextEvent(Moment.THOUGHT_DONE, item.id, place, 0, thought)
            case FunctionCall(arguments=arguments, name=name):
                yield CallEvent(Moment.ARGUMENTS_DONE, item.id, place, arguments, name)
            case CustomToolCall(input=text, name=name):
                yield CallEvent(Moment.INPUT_DELTA, item.id, place, text)
                yield CallEvent(Moment.INPUT_DONE, item.id, place, text, name)
            case McpListTools(problem=problem):
                moment = Moment.TOOLS_NOT_LISTED if problem else Moment.TOOLS_LISTED
                yield StepEvent(moment, item.id, place)
            case _:
                pass
        yield ItemEvent(Moment.ITEM_DONE, place, item)


def call_begins(item: Item, place: int) -> list[ResponseEvent]:
    """A tool of the server begins to work. Of a remote call everything has been told."""
    if isinstance(item.content, McpCall):
        return []
    return [StepEvent(Moment.SEARCHING, item.id, place)]


def call_ended(item: Item, shown: Item, place: int) -> list[ResponseEvent]:
    """A tool of the server has done its work; `shown` is the item as its caller sees it."""
    moment = Moment.SEARCH_COMPLETED
    if isinstance(item.content, McpCall):
        has_failed = bool(item.content.problem)
        moment = Moment.REMOTE_CALL_FAILED if has_failed else Moment.REMOTE_CALL_COMPLETED
    return [StepEvent(moment, item.id, place), ItemEvent(Moment.ITEM_DONE, place, shown)]


def rebuilt(events: Sequence[ResponseEvent], first_index: int) -> list[Draft]:
    """The drafts of a turn, as far as they were told."""
    drafts: dict[str, Draft] = {}
    for event in events:
        match event:
            case ItemEvent(moment=Moment.ITEM_ADDED, item=item) if type(item.content) in _KINDS:
                drafts[item.id] = _draft(event, first_index, num_calls=_num_calls(drafts.values()))
            case ItemEvent(moment=Moment.ITEM_DONE, item=item) if item.id in drafts:
                drafts[item.id].is_done = True
            case TextEvent(moment=moment) if moment in _GROWTH:
                drafts[event.item_id].text += event.text
                drafts[event.item_id].logprobs += event.logprobs
            case CallEvent(moment=Moment.ARGUMENTS_DELTA):
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
        yield AnnotationEvent(Moment.ANNOTATION_ADDED, item_id, place, 0, index, citation)
    yield TextEvent(Moment.TEXT_DONE, item_id, place, 0, text.text, text.logprobs)
    yield PartEvent(Moment.PART_DONE, item_id, place, 0, text)
