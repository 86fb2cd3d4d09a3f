"""Builds items from the deltas of one turn of a model: reasoning, messages, tool calls.

Pure, so that an interrupted turn is rebuilt from its stored events and continued.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final, NamedTuple

import orjson
from corral.inference.v1 import chat_pb2, generation_pb2
from corral.inference.v1.inference_service_pb2 import ChatDelta
from google.protobuf.timestamp_pb2 import Timestamp

from control_svc.agent.prompt import CUSTOM_INPUT
from control_svc.items import model as item_model


class DraftKind(StrEnum):
    REASONING = "reasoning"
    MESSAGE = "message"
    FUNCTION = "function"
    """A call of a client function."""
    CUSTOM = "custom"
    """A call of a client tool that takes free text."""
    HOSTED = "hosted"
    """A call that the server executes."""


_TEXT_PREFIXES: Final[Mapping[DraftKind, str]] = {
    DraftKind.REASONING: item_model.ITEM_PREFIXES[item_model.Reasoning],
    DraftKind.MESSAGE: item_model.ITEM_PREFIXES[item_model.Message],
}


@dataclass(kw_only=True)
class Draft:
    """An item that the model is writing."""

    index: int
    """Index among the items of the turn."""
    id: str
    kind: DraftKind
    created_at: datetime
    text: str = ""
    """For a call: its arguments as JSON text."""
    logprobs: list[item_model.TokenLogprob] = field(default_factory=list)
    name: str = ""
    """Name of the called tool."""
    call_id: str = ""
    call_index: int = 0
    """Index of a call among the calls of the turn."""
    is_done: bool = False
    """Whether the item is complete."""

    @property
    def is_whole_call(self) -> bool:
        """Whether it is a function call whose arguments are a whole object: nothing can follow."""
        if self.kind is not DraftKind.FUNCTION:
            return False
        try:
            return isinstance(orjson.loads(self.text), dict)
        except orjson.JSONDecodeError:
            return False

    def content(self) -> item_model.Content:
        """The content so far. The content of a hosted call is built by its tool instead."""
        match self.kind:
            case DraftKind.REASONING:
                return item_model.Reasoning(text=self.text)
            case DraftKind.CUSTOM:
                return item_model.CustomToolCall(
                    call_id=self.call_id, name=self.name, input=custom_input(self.text)
                )
            case DraftKind.FUNCTION | DraftKind.HOSTED:
                return item_model.FunctionCall(
                    call_id=self.call_id, name=self.name, arguments=self.text
                )
            case DraftKind.MESSAGE:
                text = item_model.Text(text=self.text, logprobs=tuple(self.logprobs))
                return item_model.Message(role=item_model.Role.ASSISTANT, content=(text,))

    def item(self, status: item_model.ItemStatus) -> item_model.Item:
        """The item as written so far."""
        return item_model.Item(
            id=self.id, status=status, created_at=self.created_at, content=self.content()
        )


def restore_draft(
    drafts: list[Draft],
    item_id: str,
    kind: DraftKind,
    created: Timestamp,
    name: str = "",
    call_id: str = "",
) -> None:
    """Add the draft of the item that a stored event starts; the one before is complete."""
    if drafts:
        drafts[-1].is_done = True
    draft = Draft(
        index=len(drafts),
        id=item_id,
        kind=kind,
        created_at=created.ToDatetime(UTC),
        name=name,
        call_id=call_id,
        call_index=sum(bool(draft.call_id) for draft in drafts),
    )
    drafts.append(draft)


def custom_input(arguments: str) -> str:
    """Extract the text for a custom tool from the arguments of the model's call."""
    try:
        parsed = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return arguments
    text = parsed.get(CUSTOM_INPUT) if isinstance(parsed, dict) else None
    return text if isinstance(text, str) else arguments


class ToolTarget(NamedTuple):
    """What a call of a tool becomes."""

    kind: DraftKind
    prefix: str
    """Prefix of the item ids."""


FUNCTION_TARGET: Final = ToolTarget(
    DraftKind.FUNCTION, item_model.ITEM_PREFIXES[item_model.FunctionCall]
)
CUSTOM_TOOL_TARGET: Final = ToolTarget(
    DraftKind.CUSTOM, item_model.ITEM_PREFIXES[item_model.CustomToolCall]
)


class ItemAdded(NamedTuple):
    """A new, empty item was added."""

    draft: Draft


class TextDelta(NamedTuple):
    """Text was appended to a message, to reasoning, or to the arguments of a call."""

    draft: Draft
    text: str
    logprobs: tuple[item_model.TokenLogprob, ...] = ()


class ItemDone(NamedTuple):
    """An item is complete; the turn may continue with another."""

    draft: Draft


DraftEvent = ItemAdded | TextDelta | ItemDone
"""What a delta changed, in order."""


@dataclass(frozen=True)
class TurnDraft:
    """The items of one turn as written so far."""

    drafts: list[Draft]
    """Those of an interrupted turn are restored from its events."""
    targets: Mapping[str, ToolTarget]
    """Custom and hosted tools, by name; every other name is a client function."""
    new_id: Callable[[str], str]
    clock: Callable[[], datetime]

    @property
    def open(self) -> Draft | None:
        """The item that is being written."""
        last = self.drafts[-1] if self.drafts else None
        return None if last is None or last.is_done else last

    def apply(self, delta: ChatDelta) -> Iterator[DraftEvent]:
        """Append the output of one delta, in the order that `ChatDelta` states."""
        if delta.reasoning:
            yield from self._append_text(DraftKind.REASONING, delta.reasoning, ())
        is_in_message = self.open is not None and self.open.kind is DraftKind.MESSAGE
        if delta.content or (delta.logprobs and is_in_message):
            logprobs = tuple(map(_logprob, delta.logprobs))
            yield from self._append_text(DraftKind.MESSAGE, delta.content, logprobs)
        for piece in delta.tool_calls:
            yield from self._append_call(piece)

    def close(self) -> Iterator[DraftEvent]:
        """Complete the item that is being written, if any."""
        draft = self.open
        if draft is not None:
            draft.is_done = True
            yield ItemDone(draft)

    def _append_text(
        self, kind: DraftKind, text: str, logprobs: tuple[item_model.TokenLogprob, ...]
    ) -> Iterator[DraftEvent]:
        draft = self.open
        if draft is None or draft.kind is not kind:
            yield from self.close()
            draft = self._new_draft(kind, _TEXT_PREFIXES[kind])
            yield ItemAdded(draft)
        draft.text += text
        draft.logprobs += logprobs
        yield TextDelta(draft, text, logprobs)

    def _append_call(self, piece: chat_pb2.ToolCallDelta) -> Iterator[DraftEvent]:
        if piece.name:  # the first piece of a call
            yield from self.close()
            target = self.targets.get(piece.name, FUNCTION_TARGET)
            draft = self._new_draft(target.kind, target.prefix)
            draft.name, draft.call_id, draft.call_index = piece.name, piece.id, piece.index
            yield ItemAdded(draft)
        if piece.arguments_json:
            draft = next(each for each in reversed(self.drafts) if each.call_id)
            draft.text += piece.arguments_json
            yield TextDelta(draft, piece.arguments_json)

    def _new_draft(self, kind: DraftKind, prefix: str) -> Draft:
        draft = Draft(
            index=len(self.drafts), id=self.new_id(prefix), kind=kind, created_at=self.clock()
        )
        self.drafts.append(draft)
        return draft


def _logprob(token: generation_pb2.ChosenLogprob) -> item_model.TokenLogprob:
    top = tuple(map(_token, token.top))
    return replace(_token(token.chosen), top=top)


def _token(token: generation_pb2.TokenLogprob) -> item_model.TokenLogprob:
    text = token.token.decode("utf-8", "replace")
    return item_model.TokenLogprob(token=text, logprob=token.logprob, raw=token.token)
