"""Converts items to the messages of a turn, and finds which of them fit into a context.

Consecutive reasoning, text and calls of the assistant are merged into one message, except what
different runs or responses created, texts without reasoning between them, and what follows a call.
Equal items always give equal messages, so that prefixes stay cached.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

import orjson

from control_svc.inference import turns
from control_svc.inference.turn_client import TokenCounter
from control_svc.items import model as item_model
from svc_kit.errors import ContextLengthExceeded, FeatureUnsupported

FILE_SEARCH: Final = "file_search"
"""The function name of the hosted file search."""
CUSTOM_INPUT: Final = "input"
"""The function argument that holds the text for a custom tool."""
NO_NAMES: Final[Mapping[str, str]] = MappingProxyType({})


def turn_messages(
    instructions: str, items: Sequence[item_model.Item], names: Mapping[str, str] = NO_NAMES
) -> tuple[turns.TurnMessage, ...]:
    """The messages of a turn.

    Calls without an output, and outputs without a call, are omitted: chat templates reject them,
    and an interrupted run or a truncated history leaves such items. Images and files stay where
    they are until the turn is sent. `names` are the names of items in errors, by id, where they
    are not their ids.
    """
    messages = (
        [turns.TurnMessage(turns.TurnRole.SYSTEM, (turns.TextPart(instructions),))]
        if instructions
        else []
    )
    messages += _MessageBuilder(items, names).messages()
    return tuple(messages)


def compact_json(value: object) -> str:
    """JSON without spaces, as constrained models write it."""
    return orjson.dumps(value).decode()


@dataclass
class _Group:
    """Consecutive output of the assistant."""

    reasoning: str = ""
    parts: list[turns.TurnPart] = field(default_factory=list)
    calls: list[turns.TurnCall] = field(default_factory=list)
    thought: str | None = None
    """Reasoning behind the texts. It belongs to the message if there is text or a call."""

    def end_thought(self) -> None:
        """Let text or a call follow."""
        self.reasoning += self.thought or ""
        self.thought = None

    def messages(self) -> Iterator[turns.TurnMessage]:
        """The assistant message, if there is any text or call."""
        if self.parts or self.calls:
            self.end_thought()
            yield turns.TurnMessage(
                turns.TurnRole.ASSISTANT,
                tuple(self.parts),
                tuple(self.calls),
                reasoning=self.reasoning,
            )


class _MessageBuilder:
    def __init__(self, items: Sequence[item_model.Item], names: Mapping[str, str]) -> None:
        self._names = names
        self._items = [
            item
            for item in items
            if item.status is not item_model.ItemStatus.IN_PROGRESS
            or isinstance(
                item.content, item_model.FunctionCall | item_model.CustomToolCall
            )  # it may be answered
        ]
        self._answered_ids = _answered_calls(self._items)
        self._approval_requests = {
            item.id: item.content
            for item in self._items
            if isinstance(item.content, item_model.McpApprovalRequest)
        }
        self._messages: list[turns.TurnMessage] = []
        self._group = _Group()
        self._origin = ""
        """The run or response that created the last output."""
        self._last_calls = -1
        """Where the last message with calls is."""

    def messages(self) -> list[turns.TurnMessage]:
        for item in self._items:
            self._add(item)
        self._close_group()
        return self._messages

    def _add(self, item: item_model.Item) -> None:
        name = self._names.get(item.id, item.id)
        self._start_turn(item)
        match item.content:
            case item_model.Message(role=item_model.Role.ASSISTANT) as message:
                if self._group.thought is None:
                    self._close_group()
                self._group.end_thought()
                self._group.parts += turn_parts(message.content, f"{name}.content")
            case item_model.Message() as message:
                parts = turn_parts(message.content, f"{name}.content")
                self._append(turns.TurnMessage(turns.TurnRole(message.role.value), parts))
            case item_model.Reasoning(text=text):
                if self._group.calls:
                    self._close_group()
                self._group.thought = (self._group.thought or "") + text
            case item_model.FunctionCall() | item_model.CustomToolCall() as call:
                if item.id in self._answered_ids:
                    self._group.end_thought()
                    self._group.calls.append(_turn_call(call))
            case item_model.FunctionCallOutput() | item_model.CustomToolCallOutput() as output:
                if item.id in self._answered_ids:
                    self._move_reasoning()
                    parts = _output_parts(output.output, f"{name}.output")
                    self._append(
                        turns.TurnMessage(turns.TurnRole.TOOL, parts, call_id=output.call_id)
                    )
            case _:
                self._add_hosted(item)

    def _start_turn(self, item: item_model.Item) -> None:
        """End the message before if another run or response wrote it. An approved call belongs to
        the turn that asked."""
        match item.content:
            case (
                item_model.Message()
                | item_model.Reasoning()
                | item_model.FunctionCall()
                | item_model.CustomToolCall()
                | item_model.FileSearchCall()
                | item_model.McpCall(approval_request_id="")
            ) if item.origin != self._origin:
                self._close_group()
                self._origin = item.origin

    def _add_hosted(self, item: item_model.Item) -> None:
        match item.content:
            case item_model.FileSearchCall() as search:
                arguments = compact_json({"queries": list(search.queries)})
                call = turns.TurnCall(search.call_id, FILE_SEARCH, arguments)
                self._add_hosted_call(call, _search_output(search))
            case item_model.McpCall() as mcp_call:
                call = turns.TurnCall(item.id, mcp_call.name, mcp_call.arguments)
                self._add_hosted_call(call, mcp_call.output or mcp_call.problem)
            case item_model.McpApprovalResponse(approve=False) as response:
                self._add_refused_call(response)
            case _:  # not part of the prompt, or contained in another form
                pass

    def _add_hosted_call(self, call: turns.TurnCall, result: str) -> None:
        """Add a hosted call with its result. Calls of one turn are shown one after the other, since
        items do not mark turns.
        """
        self._group.end_thought()
        self._group.calls.append(call)
        self._append(_tool_message(call.id, result))

    def _add_refused_call(self, response: item_model.McpApprovalResponse) -> None:
        request = self._approval_requests.get(response.approval_request_id)
        if request is not None:
            call = turns.TurnCall(response.approval_request_id, request.name, request.arguments)
            reason = f" {response.reason}" if response.reason else ""
            self._add_hosted_call(call, f"The user did not allow this call.{reason}")

    def _append(self, message: turns.TurnMessage) -> None:
        self._close_group()
        self._messages.append(message)

    def _close_group(self) -> None:
        if self._group.calls:
            self._last_calls = len(self._messages)
        self._messages += self._group.messages()
        self._group = _Group()

    def _move_reasoning(self) -> None:
        """Add thoughts between calls and their outputs to the message of the calls."""
        group, at = self._group, self._last_calls
        if group.thought and at >= 0 and not (group.parts or group.calls):
            message = self._messages[at]
            self._messages[at] = replace(message, reasoning=message.reasoning + group.thought)
            self._group = _Group()


def _answered_calls(items: Sequence[item_model.Item]) -> set[str]:
    """The item ids of answered calls and of their outputs. A model may reuse the id of a call that
    was answered before.
    """
    waiting: dict[str, str] = {}
    answered: set[str] = set()
    for item in items:
        match item.content:
            case (
                item_model.FunctionCall(call_id=call_id)
                | item_model.CustomToolCall(call_id=call_id)
            ):
                waiting[call_id] = item.id
            case (
                item_model.FunctionCallOutput(call_id=call_id)
                | item_model.CustomToolCallOutput(call_id=call_id)
            ):
                if call_id in waiting:
                    answered |= {waiting.pop(call_id), item.id}
    return answered


def turn_parts(parts: Sequence[item_model.Part], field: str) -> tuple[turns.TurnPart, ...]:
    """Convert parts; `field` is their field in errors."""
    return tuple(_turn_part(part, f"{field}[{index}]") for index, part in enumerate(parts))


def _turn_part(part: item_model.Part, field: str) -> turns.TurnPart:
    match part:
        case item_model.Text(text=text):
            return turns.TextPart(text)
        case item_model.Refusal(refusal=refusal):
            return turns.RefusalPart(refusal)
        case item_model.Image():
            return turns.ImagePart(field, part.url, part.file_id, part.detail)
        case item_model.FileInput():
            return turns.DocumentPart(field, part.data_url, part.file_id, part.filename)


def _output_parts(parts: Sequence[item_model.Part], field: str) -> tuple[turns.TurnPart, ...]:
    """Convert the output of a tool. Texts alone are one text, as many chat templates expect."""
    if any(isinstance(part, item_model.Image | item_model.FileInput) for part in parts):
        return turn_parts(parts, field)
    return (turns.TextPart(item_model.plain_text(parts)),)


def _turn_call(call: item_model.FunctionCall | item_model.CustomToolCall) -> turns.TurnCall:
    if isinstance(call, item_model.FunctionCall):
        return turns.TurnCall(call.call_id, call.name, call.arguments)
    return turns.TurnCall(call.call_id, call.name, compact_json({CUSTOM_INPUT: call.input}))


def _tool_message(call_id: str, text: str) -> turns.TurnMessage:
    return turns.TurnMessage(turns.TurnRole.TOOL, (turns.TextPart(text),), call_id=call_id)


def _search_output(call: item_model.FileSearchCall) -> str:
    """What the model reads of a search: passages with the numbers by which it can cite them."""
    if call.problem:
        return f"The search failed: {call.problem}"
    if not call.results:
        return "Nothing was found."
    numbered = enumerate(call.results, call.first)
    return "\n\n".join(f"[{n}] {result.filename}\n{result.text}" for n, result in numbered)


# ---- truncation


def is_user_message(item: item_model.Item) -> bool:
    """Whether an item is a user message: chat templates expect that a prompt begins with one."""
    return (
        isinstance(item.content, item_model.Message) and item.content.role is item_model.Role.USER
    )


async def find_start(
    counter: TokenCounter,
    request: turns.TurnRequest,
    instructions: str,
    items: Sequence[item_model.Item],
    error: ContextLengthExceeded,
    own: int = 0,
) -> int | None:
    """Binary search for where a truncated prompt begins: at the first user message, or at the item
    `own`, from which the items fit into half of the exceeded limit, so that truncation is needed
    less often; at the last one if none fits. None if only the first item qualifies. Half of the
    starts are dropped if the tokens of the model cannot be counted.

    `request` is that of the turn which exceeded the limit.
    """
    starts = [i for i, item in enumerate(items) if i and (i == own or is_user_message(item))]
    if not starts:
        return None
    low, high = 0, len(starts) - 1
    while low < high:
        middle = (low + high) // 2
        messages = turn_messages(instructions, items[starts[middle] :])
        try:
            num_tokens = await counter.count(replace(request, messages=messages))
        except FeatureUnsupported:
            return starts[middle]
        if num_tokens <= error.context_tokens // 2:
            high = middle
        else:
            low = middle + 1
    return starts[low]
