"""Compaction: a summary replaces earlier items, on request or before a turn that is too long."""

from collections.abc import Collection, Iterable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Final, NamedTuple

from control_svc.agent.model import NO_USAGE
from control_svc.agent.prompt import turn_messages
from control_svc.base.ids import IdSource
from control_svc.db.transaction import Clock
from control_svc.inference.turn_client import TokenCounter
from control_svc.inference.turns import (
    Delta,
    Done,
    TextPart,
    TurnClient,
    TurnMessage,
    TurnRequest,
    TurnRole,
    TurnUsage,
)
from control_svc.items.model import (
    ITEM_PREFIXES,
    Compaction,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    Item,
    ItemStatus,
    McpApprovalRequest,
    McpApprovalResponse,
    McpListTools,
    Message,
    Role,
)
from control_svc.jobs.model import JobPriority
from control_svc.responses.content_cipher import ContentCipher
from control_svc.responses.model import Response, Summary
from control_svc.responses.recorder import ResponseRecorder
from svc_kit.errors import ContextLengthExceeded, ToolCallMissing, ToolOutputMissing

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
"""The prompt that requests a summary."""


def answers_itself(items: Iterable[Item]) -> bool:
    """Whether what answers a call, or a question about one, is among the items with it."""
    request: set[str] = set()
    answered: set[str] = set()
    for item in items:
        match item.content:
            case FunctionCall(call_id=call_id) | CustomToolCall(call_id=call_id):
                request.add(call_id)
            case McpApprovalRequest():
                request.add(item.id)
            case FunctionCallOutput(call_id=call_id) | CustomToolCallOutput(call_id=call_id):
                answered.add(call_id)
            case McpApprovalResponse(approval_request_id=request_id):
                answered.add(request_id)
            case _:
                pass
    return answered <= request


def is_users(item: Item) -> bool:
    """Whether an item is a user message."""
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


class Compactor:
    """Has items summed up."""

    def __init__(
        self,
        turns: TurnClient,
        cipher: ContentCipher,
        ids: IdSource,
        clock: Clock,
        summary_tokens: int,
    ) -> None:
        """`summary_tokens` bounds a summary."""
        self._turns = turns
        self._cipher = cipher
        self._ids = ids
        self._clock = clock
        self._summary_tokens = summary_tokens

    async def sum_up(
        self,
        project: str,
        response: Response,
        items: Sequence[Item],
        priority: JobPriority = JobPriority.INTERACTIVE,
    ) -> tuple[str, TurnUsage]:
        """A summary of the items, as they would be shown for this response, and what it cost.

        Raises what `TurnClient.run` does.
        """
        request = TurnMessage(TurnRole.USER, (TextPart(SUMMARY_REQUEST),))
        turn = TurnRequest(
            project=project,
            model=response.model,
            messages=(*turn_messages(response.settings.instructions or "", items), request),
            max_tokens=self._summary_tokens,
            enable_thinking=False,
            seed=response.seed,
            priority=priority,
            label=response.id,
        )
        text, usage = "", NO_USAGE
        async with aclosing(self._turns.run(turn)) as events:
            async for event in events:
                if isinstance(event, Delta):
                    text += event.content
                elif isinstance(event, Done):
                    usage = event.usage
        return text, usage

    def item(self, project: str, summary: Summary) -> Item:
        """A new item that holds a summary."""
        return Item(
            id=self._ids.new(ITEM_PREFIXES[Compaction]),
            status=ItemStatus.COMPLETED,
            created_at=self._clock(),
            content=Compaction(sealed=self._cipher.seal_summary(project, summary)),
        )


class _Split(NamedTuple):
    """What is summed up, and what stays behind the summary as it is."""

    summed: Sequence[Item]
    kept: Sequence[Item]


class AutoCompaction:
    """Sums up what crosses the thresholds of responses."""

    def __init__(self, compactor: Compactor, counter: TokenCounter) -> None:
        self._compactor = compactor
        self._counter = counter

    async def kept(
        self,
        recorder: ResponseRecorder,
        request: TurnRequest,
        items: Sequence[Item],
        own: Collection[str],
    ) -> list[Item]:
        """What the turn of a request is shown of the items; `own` are the ids of the response's.

        Raises what `TurnClient.run` and `TokenCounter.count` do.
        """
        threshold = recorder.response.settings.compact_threshold
        if threshold is None or _is_just_compacted(recorder):
            return list(items)
        if await self._counter.count(request) <= threshold:
            return list(items)
        mine = await self._split_at_own(recorder.response, request, items, own)
        split = mine or _split_at_question(items)
        if not _has_news(split):
            return list(items)
        try:
            shown = await self._compact(recorder, request, split)
        except ContextLengthExceeded:  # which the turn will say itself, or cut its past
            shown = []
        return shown or list(items)

    async def _split_at_own(
        self,
        response: Response,
        request: TurnRequest,
        items: Sequence[Item],
        own: Collection[str],
    ) -> _Split | None:
        """None: the own items cannot be all that is shown."""
        start = next((place for place, item in enumerate(items) if item.id in own), 0)
        split = _split(items[:start], items[start:])
        if not _has_news(split) or not answers_itself(split.kept):
            return None
        messages = turn_messages(response.settings.instructions or "", split.kept)
        num_tokens = await self._counter.count(replace(request, messages=messages))
        return split if num_tokens <= (response.settings.compact_threshold or 0) else None

    async def _compact(
        self, recorder: ResponseRecorder, request: TurnRequest, split: _Split
    ) -> list[Item]:
        """Summarize items; empty if the model returned no text, so that nothing is replaced."""
        text, usage = await self._compactor.sum_up(
            request.project, recorder.response, split.summed, request.priority
        )
        if not text.strip():
            return []
        summary = Summary(text=text, replaces_all=True, kept=tuple(split.kept))
        item = self._compactor.item(request.project, summary)
        await recorder.begin()
        await recorder.compacted(item, usage)
        return summary.shown(item)


def _split(summed: Sequence[Item], kept: Sequence[Item]) -> _Split:
    """The latest lists of tools of MCP servers stay."""
    lists = {i.content.server_label: i for i in summed if isinstance(i.content, McpListTools)}
    return _Split(summed, [*lists.values(), *kept])


def _split_at_question(items: Sequence[Item]) -> _Split:
    """Everything is summed up, and the last question stays to be answered."""
    questions = [item for item in items if is_users(item) and not _is_summary(item)]
    return _split(items, questions[-1:])


def _has_news(split: _Split) -> bool:
    """Whether anything is summed up that neither stays nor is a summary itself."""
    kept = {item.id for item in split.kept}
    return any(item.id not in kept and not _is_summary(item) for item in split.summed)


def _is_summary(item: Item) -> bool:
    """Whether an item is a compaction."""
    return item.id.startswith(ITEM_PREFIXES[Compaction])


def _is_just_compacted(recorder: ResponseRecorder) -> bool:
    """Whether nothing has been made since the last summary."""
    return bool(recorder.output) and isinstance(recorder.output[-1].content, Compaction)
