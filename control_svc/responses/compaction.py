"""Compaction: a summary replaces earlier items, on request or before a turn above a threshold."""

from collections.abc import Collection, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from corral.inference.v1.inference_service_pb2 import ChatDelta

from control_svc.agent.model import NO_USAGE
from control_svc.agent.prompt import is_user_message, turn_messages
from control_svc.base.ids import IdSource
from control_svc.db.transaction import Clock
from control_svc.inference.turn_client import TokenCounter
from control_svc.inference.turns import (
    TextPart,
    TurnClient,
    TurnMessage,
    TurnRequest,
    TurnRole,
    TurnUsage,
)
from control_svc.items.model import (
    ITEM_PREFIXES,
    CallPart,
    Compaction,
    Item,
    ItemStatus,
    McpListTools,
)
from control_svc.items.service import call_parts, open_calls
from control_svc.jobs.model import JobPriority
from control_svc.responses.content_cipher import ContentCipher
from control_svc.responses.model import Response, Summary
from control_svc.responses.recorder import ResponseRecorder
from svc_kit.errors import ContextLengthExceeded, ToolOutputMissing

SUMMARY_REQUEST: Final = (
    "Sum up our conversation so far for somebody who goes on with it and has nothing else: what was"
    " asked, what was found, decided and done, names, numbers and open questions. Write the summary"
    " alone."
)
"""The prompt that requests a summary."""


def has_all_calls(items: Sequence[Item]) -> bool:
    """Whether the items include the call of each output and the request of each approval."""
    parts = call_parts(items)
    requests = {
        part.call_id for part in parts if part.kind in ("function_call", "custom_tool_call")
    }
    requests |= {part.item_id for part in parts if part.kind == "mcp_approval_request"}
    answers = [part for part in parts if part.kind.endswith(("_output", "_approval_response"))]
    return all(part.call_id in requests for part in answers)


def check_calls(history: Sequence[CallPart], input_items: Sequence[Item]) -> None:
    """Validate that each completed call has an output and each output in the input has a call.

    Raises ToolCallMissing, ToolOutputMissing, or InvalidField for an id that two open calls have.
    """
    for call_id in open_calls(history, call_parts(input_items), "input"):
        raise ToolOutputMissing(call=call_id)


class _Split(NamedTuple):
    """Items that a summary replaces, and items that follow it."""

    replaced: Sequence[Item]
    kept: Sequence[Item]


@dataclass(frozen=True)
class Compactor:
    """Lets the model summarize items, on request and in prompts that exceed a threshold."""

    turns: TurnClient
    counter: TokenCounter
    cipher: ContentCipher
    ids: IdSource
    clock: Clock
    summary_tokens: int
    """Maximum length of a summary."""

    async def summarize(
        self,
        project: str,
        response: Response,
        items: Sequence[Item],
        priority: JobPriority = JobPriority.INTERACTIVE,
    ) -> tuple[str, TurnUsage]:
        """Return a summary of the items and its usage. Raises the errors of `TurnClient.run`."""
        request = TurnMessage(TurnRole.USER, (TextPart(SUMMARY_REQUEST),))
        turn = TurnRequest(
            project=project,
            model=response.model,
            messages=(*turn_messages(response.settings.instructions or "", items), request),
            max_tokens=self.summary_tokens,
            enable_thinking=False,
            seed=response.seed,
            priority=priority,
            label=response.id,
        )
        text, usage = "", NO_USAGE
        async with aclosing(self.turns.run(turn)) as events:
            async for event in events:
                if isinstance(event, ChatDelta):
                    text += event.content
                elif isinstance(event, TurnUsage):
                    usage = event
        return text, usage

    def new_item(self, project: str, summary: Summary) -> Item:
        return Item(
            id=self.ids.new(ITEM_PREFIXES[Compaction]),
            status=ItemStatus.COMPLETED,
            created_at=self.clock(),
            content=Compaction(sealed=self.cipher.seal_summary(project, summary)),
        )

    async def apply(
        self,
        recorder: ResponseRecorder,
        request: TurnRequest,
        items: Sequence[Item],
        own_ids: Collection[str],
    ) -> list[Item]:
        """Return the items for a turn, compacted if they exceed the `compact_threshold` of the
        response; `own_ids` are the ids of its own items.

        Raises the errors of `TurnClient.run` and `TokenCounter.count`.
        """
        threshold = recorder.response.settings.compact_threshold
        if threshold is None or _is_just_compacted(recorder):
            return list(items)
        if await self.counter.count(request) <= threshold:
            return list(items)
        split = await self._split_at_own(recorder.response, request, items, own_ids)
        split = split or _split_at_question(items)
        if not _is_worthwhile(split):
            return list(items)
        try:
            compacted = await self._compact(recorder, request, split)
        except ContextLengthExceeded:  # the turn will raise it too, or truncate its items
            compacted = []
        return compacted or list(items)

    async def _split_at_own(
        self,
        response: Response,
        request: TurnRequest,
        items: Sequence[Item],
        own_ids: Collection[str],
    ) -> _Split | None:
        """Keep the response's own items; None if they lack calls or exceed the threshold too."""
        start = next((index for index, item in enumerate(items) if item.id in own_ids), 0)
        split = _split(items[:start], items[start:])
        if not _is_worthwhile(split) or not has_all_calls(split.kept):
            return None
        messages = turn_messages(response.settings.instructions or "", split.kept)
        num_tokens = await self.counter.count(replace(request, messages=messages))
        return split if num_tokens <= (response.settings.compact_threshold or 0) else None

    async def _compact(
        self, recorder: ResponseRecorder, request: TurnRequest, split: _Split
    ) -> list[Item]:
        """Summarize and return the new items; empty if the model returned no text."""
        text, usage = await self.summarize(
            request.project, recorder.response, split.replaced, request.priority
        )
        if not text.strip():
            return []
        summary = Summary(text=text, replaces_all=True, kept=tuple(split.kept))
        item = self.new_item(request.project, summary)
        await recorder.begin()
        await recorder.add_compaction(item, usage)
        return summary.expand(item)


def _split(replaced: Sequence[Item], kept: Sequence[Item]) -> _Split:
    """Keep also the latest tool list of each MCP server."""
    lists = {i.content.server_label: i for i in replaced if isinstance(i.content, McpListTools)}
    return _Split(replaced, [*lists.values(), *kept])


def _split_at_question(items: Sequence[Item]) -> _Split:
    """Replace everything, and repeat the last user message after the summary."""
    questions = [item for item in items if is_user_message(item) and not _is_summary(item)]
    return _split(items, questions[-1:])


def _is_worthwhile(split: _Split) -> bool:
    """Whether any replaced item is neither kept nor a summary itself."""
    kept = {item.id for item in split.kept}
    return any(item.id not in kept and not _is_summary(item) for item in split.replaced)


def _is_summary(item: Item) -> bool:
    """Whether an item is a summary, which is a user message in the prompt."""
    return item.id.startswith(ITEM_PREFIXES[Compaction])


def _is_just_compacted(recorder: ResponseRecorder) -> bool:
    """Whether the last output item is a compaction."""
    return bool(recorder.output) and isinstance(recorder.output[-1].content, Compaction)
