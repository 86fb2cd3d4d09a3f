"""Summaries that stand for earlier items, and the calls that items leave open."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from control_svc.domain.items import (
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    Item,
    ItemStatus,
    McpApprovalRequest,
    McpApprovalResponse,
    Message,
    Role,
    Text,
)
from svc_kit.errors import ToolCallMissing, ToolOutputMissing

CALL_KINDS: Final = (
    "function_call",
    "function_call_output",
    "custom_tool_call",
    "custom_tool_call_output",
)
"""What `check_calls` looks at."""
SUMMARY_REQUEST: Final = (
    "Sum up our conversation so far for somebody who goes on with it and has nothing else: what was"
    " asked, what was found, decided and done, names, numbers and open questions. Write the summary"
    " alone."
)
"""What the model is asked in order to compact what was said."""
_INTRODUCTION: Final = "Summary of the conversation so far:\n\n"


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What a compaction item seals."""

    text: str
    replaces_all: bool
    """Whether everything before it is out of sight; else what its caller left there stays."""
    kept: tuple[Item, ...] = ()
    """Items that come behind the summary as they were."""

    def shown(self, item: Item) -> list[Item]:
        """What the model sees in place of the compaction item."""
        said = Message(role=Role.USER, content=(Text(text=_INTRODUCTION + self.text),))
        return [item.ended(said), *self.kept]


def answers_itself(items: Iterable[Item]) -> bool:
    """Whether what answers a call, or a question about one, is among the items with it."""
    asked: set[str] = set()
    answered: set[str] = set()
    for item in items:
        match item.content:
            case FunctionCall(call_id=call_id) | CustomToolCall(call_id=call_id):
                asked.add(call_id)
            case McpApprovalRequest():
                asked.add(item.id)
            case FunctionCallOutput(call_id=call_id) | CustomToolCallOutput(call_id=call_id):
                answered.add(call_id)
            case McpApprovalResponse(approval_request_id=request_id):
                answered.add(request_id)
            case _:
                pass
    return answered <= asked


def is_users(item: Item) -> bool:
    """Whether a user said it."""
    return isinstance(item.content, Message) and item.content.role is Role.USER


def check_calls(before: Iterable[Item], given: Sequence[Item]) -> None:
    """That outputs answer calls, and calls are answered. `before` are items that were checked.

    Raises ToolCallMissing or ToolOutputMissing.
    """
    waiting: dict[str, None] = {}
    for item in before:
        _take(item, waiting, is_checked=True)
    for item in given:
        _take(item, waiting, is_checked=False)
    for call_id in waiting:
        raise ToolOutputMissing(call=call_id)


def _take(item: Item, waiting: dict[str, None], *, is_checked: bool) -> None:
    match item.content:
        case FunctionCall(call_id=call_id) | CustomToolCall(call_id=call_id):
            if item.status is ItemStatus.COMPLETED:
                waiting[call_id] = None
        case FunctionCallOutput(call_id=call_id) | CustomToolCallOutput(call_id=call_id):
            if call_id in waiting:
                del waiting[call_id]
            elif not is_checked:
                raise ToolCallMissing(call=call_id)
        case _:
            pass
