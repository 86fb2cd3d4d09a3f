"""Compaction by itself: where a caller has named a threshold, what was said is summed up before
each turn whose prompt would be longer, also between two turns of one response.

As little as possible is summed up: everything before the response's own items, and only where these
alone are too long, or answer what was said before them, everything but the last question. What
remote servers offer is kept: the model is told of it beside its prompt.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

from control_svc.domain.compactions import Summary, answers_itself, is_users
from control_svc.domain.items import ITEM_PREFIXES, Compaction, Item, McpListTools
from control_svc.domain.responses import Response
from control_svc.domain.run_ports import TokenCounter
from control_svc.domain.turn_messages import turn_messages
from control_svc.domain.turns import TurnRequest
from control_svc.usecases.compacting import Compactor
from control_svc.usecases.response_narrating import ResponseNarrator
from svc_kit.errors import ContextLengthExceeded


class _Split(NamedTuple):
    """What is summed up, and what stays behind the summary as it is."""

    summed: Sequence[Item]
    kept: Sequence[Item]


class Thresholds:
    """Sums up what crosses the thresholds of responses."""

    def __init__(self, compactor: Compactor, counter: TokenCounter) -> None:
        self._compactor = compactor
        self._counter = counter

    async def kept(
        self,
        narrator: ResponseNarrator,
        request: TurnRequest,
        items: Sequence[Item],
        own: Collection[str],
    ) -> list[Item]:
        """What the turn of a request is shown of the items; `own` are the ids of the response's.

        Raises what `TurnClient.run` and `TokenCounter.count` do.
        """
        threshold = narrator.response.settings.compact_threshold
        if threshold is None or _is_just_compacted(narrator):
            return list(items)
        if await self._counter.count(request) <= threshold:
            return list(items)
        mine = await self._split_at_own(narrator.response, request, items, own)
        split = mine or _split_at_question(items)
        if not _has_news(split):
            return list(items)
        try:
            shown = await self._compact(narrator, request, split)
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
        self, narrator: ResponseNarrator, request: TurnRequest, split: _Split
    ) -> list[Item]:
        """What stands for the items; empty where the model had nothing to say, as one that only
        thinks: a summary without words would stand for all that was said."""
        text, usage = await self._compactor.sum_up(
            request.project, narrator.response, split.summed, request.priority
        )
        if not text.strip():
            return []
        summary = Summary(text=text, replaces_all=True, kept=tuple(split.kept))
        item = self._compactor.item(request.project, summary)
        await narrator.begin()
        await narrator.compacted(item, usage)
        return summary.shown(item)


def _split(summed: Sequence[Item], kept: Sequence[Item]) -> _Split:
    """What remote servers have said that they offer, the last word of each, stays."""
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
    """Whether an item, as the model sees it, stands for earlier ones."""
    return item.id.startswith(ITEM_PREFIXES[Compaction])


def _is_just_compacted(narrator: ResponseNarrator) -> bool:
    """Whether nothing has been made since the last summary."""
    return bool(narrator.output) and isinstance(narrator.output[-1].content, Compaction)
