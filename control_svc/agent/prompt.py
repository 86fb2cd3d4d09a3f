"""Converts items to the messages of a turn.

Several items become one message: reasoning, text and calls between two messages of others. Equal
items always give equal messages, so that prefixes stay cached.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import orjson

from control_svc.inference.turns import (
    RefusalPart,
    TextPart,
    TurnCall,
    TurnMessage,
    TurnPart,
    TurnRole,
)
from control_svc.items.model import (
    CustomToolCall,
    CustomToolCallOutput,
    FileSearchCall,
    FunctionCall,
    FunctionCallOutput,
    Item,
    ItemStatus,
    McpApprovalRequest,
    McpApprovalResponse,
    McpCall,
    Message,
    Part,
    Reasoning,
    Refusal,
    Role,
    SearchResult,
    Text,
    plain_text,
)

FILE_SEARCH: Final = "file_search"
"""The name under which the model calls the search of files."""
CUSTOM_INPUT: Final = "input"
"""The argument under which the model writes the text for a custom tool."""


def turn_messages(instructions: str, items: Sequence[Item]) -> tuple[TurnMessage, ...]:
    """The messages of a turn.

    A call without its output, and an output without its call, are left out: templates refuse them,
    and a thread has them where a run was broken off, or the past was cut between the two. Pictures
    and documents are left out too: a text model answers without them.
    """
    messages = [TurnMessage(TurnRole.SYSTEM, (TextPart(instructions),))] if instructions else []
    messages += _Spoken(items).messages()
    return tuple(messages)


def compact_json(value: object) -> str:
    """JSON as models write it under our constraints: without spaces."""
    return orjson.dumps(value).decode()


@dataclass
class _Group:
    """The output of the model between two messages of others."""

    reasoning: str = ""
    parts: list[TurnPart] = field(default_factory=list)
    calls: list[TurnCall] = field(default_factory=list)

    def messages(self) -> Iterator[TurnMessage]:
        """The model's message, where it did anything."""
        if self.parts or self.calls:
            yield TurnMessage(
                TurnRole.ASSISTANT,
                tuple(self.parts),
                tuple(self.calls),
                reasoning=self.reasoning,
            )


class _Spoken:
    """Items on their way to messages."""

    def __init__(self, items: Sequence[Item]) -> None:
        self._items = [item for item in items if item.status is not ItemStatus.IN_PROGRESS]
        self._whole = _answered_calls(self._items)
        self._asked = {
            item.id: item.content
            for item in self._items
            if isinstance(item.content, McpApprovalRequest)
        }
        self._done: list[TurnMessage] = []
        self._group = _Group()

    def messages(self) -> list[TurnMessage]:
        """All of them."""
        for item in self._items:
            self._take(item)
        self._close()
        return self._done

    def _take(self, item: Item) -> None:
        match item.content:
            case Message(role=Role.ASSISTANT) as said:
                self._say(said)
            case Message() as said:
                self._close()
                self._done.append(TurnMessage(TurnRole(said.role.value), _spoken_parts(said)))
            case Reasoning(text=text):
                self._think(text)
            case FunctionCall() | CustomToolCall() as called:
                if item.id in self._whole:
                    self._group.calls.append(_turn_call(called))
            case FunctionCallOutput() | CustomToolCallOutput() as answer:
                if item.id in self._whole:
                    self._close()
                    self._done.append(_answered(answer.call_id, plain_text(answer.output)))
            case _:
                self._add_hosted(item)

    def _add_hosted(self, item: Item) -> None:
        match item.content:
            case FileSearchCall() as called:
                call = TurnCall(called.call_id, FILE_SEARCH, _queries(called))
                self._hosted(call, _found(called))
            case McpCall() as called:
                call = TurnCall(item.id, called.name, called.arguments)
                self._hosted(call, called.output or called.problem)
            case McpApprovalResponse(approve=False) as word:
                self._refuse(word)
            case _:  # what the prompt contains in another form
                pass

    def _say(self, said: Message) -> None:
        if self._group.parts or self._group.calls:
            self._close()
        self._group.parts += turn_parts(said.content)

    def _think(self, text: str) -> None:
        if self._group.parts or self._group.calls:
            self._close()
        self._group.reasoning += text

    def _hosted(self, call: TurnCall, result: str) -> None:
        """Add a hosted call with its result. Calls of one turn are shown one after the other, since
        items do not mark turns.
        """
        self._group.calls.append(call)
        self._close()
        self._done.append(_answered(call.id, result))

    def _refuse(self, word: McpApprovalResponse) -> None:
        """A call that was not approved; its result says so."""
        request = self._asked.get(word.approval_request_id)
        if request is not None:
            call = TurnCall(word.approval_request_id, request.name, request.arguments)
            reason = f" {word.reason}" if word.reason else ""
            self._hosted(call, f"The user did not allow this call.{reason}")

    def _close(self) -> None:
        self._done += self._group.messages()
        self._group = _Group()


def _answered_calls(items: Sequence[Item]) -> set[str]:
    """The ids of calls that have an answer, and of these answers. A model may write the id of a
    call again that was answered before."""
    waiting: dict[str, str] = {}
    whole: set[str] = set()
    for item in items:
        match item.content:
            case FunctionCall(call_id=call_id) | CustomToolCall(call_id=call_id):
                waiting[call_id] = item.id
            case FunctionCallOutput(call_id=call_id) | CustomToolCallOutput(call_id=call_id):
                if call_id in waiting:
                    whole |= {waiting.pop(call_id), item.id}
    return whole


def turn_parts(parts: Sequence[Part]) -> tuple[TurnPart, ...]:
    """Those of the parts that a text model can be shown."""
    shown: list[TurnPart] = []
    for part in parts:
        if isinstance(part, Text):
            shown.append(TextPart(part.text))
        elif isinstance(part, Refusal):
            shown.append(RefusalPart(part.refusal))
    return tuple(shown)


def _spoken_parts(said: Message) -> tuple[TurnPart, ...]:
    """A message with only images becomes an empty one, which keeps the order of turns."""
    shown = turn_parts(said.content)
    return shown if shown or not said.content else (TextPart(""),)


def _turn_call(called: FunctionCall | CustomToolCall) -> TurnCall:
    if isinstance(called, FunctionCall):
        return TurnCall(called.call_id, called.name, called.arguments)
    return TurnCall(called.call_id, called.name, compact_json({CUSTOM_INPUT: called.input}))


def _queries(call: FileSearchCall) -> str:
    return compact_json({"queries": list(call.queries)})


def _answered(call_id: str, text: str) -> TurnMessage:
    return TurnMessage(TurnRole.TOOL, (TextPart(text),), call_id=call_id)


def _found(call: FileSearchCall) -> str:
    """What the model reads of a search: numbered passages, so that it can name them."""
    if call.problem:
        return f"The search failed: {call.problem}"
    if not call.results:
        return "Nothing was found."
    numbered = enumerate(call.results, call.first)
    return "\n\n".join(_passage(number, found) for number, found in numbered)


def _passage(number: int, found: SearchResult) -> str:
    return f"[{number}] {found.filename}\n{found.text}"
