"""Builds items from the deltas of one turn of a model: reasoning, messages, tool calls.

Pure, so that an interrupted turn is rebuilt from its stored events and continued.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final, NamedTuple

import orjson

from control_svc.agent.prompt import CUSTOM_INPUT
from control_svc.inference.turns import Delta, LikelyToken, ToolCallDelta
from control_svc.inference.turns import TokenLogprob as TurnLogprob
from control_svc.items.model import (
    ITEM_PREFIXES,
    Content,
    CustomToolCall,
    FunctionCall,
    Item,
    ItemStatus,
    Message,
    Reasoning,
    Role,
    Text,
    TokenLogprob,
)


class DraftKind(StrEnum):
    """What an item of a turn becomes."""

    REASONING = "reasoning"
    MESSAGE = "message"
    FUNCTION = "function"
    """A call of the client's function."""
    CUSTOM = "custom"
    """A call of the client's tool that takes free text."""
    HOSTED = "hosted"
    """A call that the server carries out."""


_TEXT_PREFIXES: Final[Mapping[DraftKind, str]] = {
    DraftKind.REASONING: ITEM_PREFIXES[Reasoning],
    DraftKind.MESSAGE: ITEM_PREFIXES[Message],
}


@dataclass(kw_only=True)
class Draft:
    """An item that the model writes."""

    index: int
    """Its place among the items of the turn."""
    id: str
    kind: DraftKind
    created_at: datetime
    text: str = ""
    """Of a call: its arguments, as JSON text."""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    name: str = ""
    """What a call calls."""
    call_id: str = ""
    call_index: int = 0
    """A call's place among the calls of the turn."""
    is_done: bool = False
    """Whether nothing is added any more."""

    def content(self) -> Content:
        """The content so far; that of a hosted call is made by its tool."""
        match self.kind:
            case DraftKind.REASONING:
                return Reasoning(text=self.text)
            case DraftKind.CUSTOM:
                return CustomToolCall(
                    call_id=self.call_id, name=self.name, input=custom_input(self.text)
                )
            case DraftKind.FUNCTION | DraftKind.HOSTED:
                return FunctionCall(call_id=self.call_id, name=self.name, arguments=self.text)
            case DraftKind.MESSAGE:
                text = Text(text=self.text, logprobs=tuple(self.logprobs))
                return Message(role=Role.ASSISTANT, content=(text,))

    def item(self, status: ItemStatus) -> Item:
        """The item, as far as it is written."""
        return Item(id=self.id, status=status, created_at=self.created_at, content=self.content())


def custom_input(arguments: str) -> str:
    """The text for a custom tool in the arguments with which the model called it."""
    try:
        parsed = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return arguments
    text = parsed.get(CUSTOM_INPUT) if isinstance(parsed, dict) else None
    return text if isinstance(text, str) else arguments


class ToolTarget(NamedTuple):
    """What becomes of a call of a tool."""

    kind: DraftKind
    prefix: str
    """How the ids of its items begin."""


A_FUNCTION: Final = ToolTarget(DraftKind.FUNCTION, ITEM_PREFIXES[FunctionCall])
A_CUSTOM_TOOL: Final = ToolTarget(DraftKind.CUSTOM, ITEM_PREFIXES[CustomToolCall])


class ItemAdded(NamedTuple):
    """A new item begins, still empty."""

    draft: Draft


class TextDelta(NamedTuple):
    """Text was added to an item: of a message, a thought, or the arguments of a call."""

    draft: Draft
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


class ItemDone(NamedTuple):
    """An item is complete; the turn may continue with another."""

    draft: Draft


DraftEvent = ItemAdded | TextDelta | ItemDone
"""What a delta meant, in order."""


class TurnDraft:
    """The items of one turn, as far as they are written."""

    def __init__(
        self,
        drafts: list[Draft],
        callees: Mapping[str, ToolTarget],
        new_id: Callable[[str], str],
        clock: Callable[[], datetime],
    ) -> None:
        """`drafts` are existing ones, rebuilt from stored events; `callees` are the tools by name:
        all others are functions of the client.
        """
        self.drafts = drafts
        self._callees = callees
        self._new_id = new_id
        self._clock = clock

    @property
    def open(self) -> Draft | None:
        """The item that is being written."""
        last = self.drafts[-1] if self.drafts else None
        return None if last is None or last.is_done else last

    def take(self, delta: Delta) -> Iterator[DraftEvent]:
        """Add what the turn gained."""
        if delta.reasoning:
            yield from self._grow(DraftKind.REASONING, delta.reasoning, ())
        if delta.content:
            logprobs = tuple(map(_logprob, delta.logprobs))
            yield from self._grow(DraftKind.MESSAGE, delta.content, logprobs)
        for piece in delta.calls:
            yield from self._call(piece)

    def close(self) -> Iterator[DraftEvent]:
        """End the item that is being written."""
        draft = self.open
        if draft is not None:
            draft.is_done = True
            yield ItemDone(draft)

    def _grow(
        self, kind: DraftKind, text: str, logprobs: tuple[TokenLogprob, ...]
    ) -> Iterator[DraftEvent]:
        draft = self.open
        if draft is None or draft.kind is not kind:
            yield from self.close()
            draft = self._add(kind, _TEXT_PREFIXES[kind])
            yield ItemAdded(draft)
        draft.text += text
        draft.logprobs += logprobs
        yield TextDelta(draft, text, logprobs)

    def _call(self, piece: ToolCallDelta) -> Iterator[DraftEvent]:
        draft = self.open
        if draft is None or not draft.call_id or draft.call_index != piece.index:
            yield from self.close()
            callee = self._callees.get(piece.name, A_FUNCTION)
            draft = self._add(callee.kind, callee.prefix)
            draft.name, draft.call_id, draft.call_index = piece.name, piece.id, piece.index
            yield ItemAdded(draft)
        if piece.arguments:
            draft.text += piece.arguments
            yield TextDelta(draft, piece.arguments)

    def _add(self, kind: DraftKind, prefix: str) -> Draft:
        draft = Draft(
            index=len(self.drafts), id=self._new_id(prefix), kind=kind, created_at=self._clock()
        )
        self.drafts.append(draft)
        return draft


def _logprob(token: TurnLogprob) -> TokenLogprob:
    top = tuple(_likely(other) for other in token.top)
    chosen = _likely(token.chosen)
    return TokenLogprob(token=chosen.token, logprob=chosen.logprob, raw=chosen.raw, top=top)


def _likely(token: LikelyToken) -> TokenLogprob:
    text = token.token.decode("utf-8", "replace")
    return TokenLogprob(token=text, logprob=token.logprob, raw=token.token)
