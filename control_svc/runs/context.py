"""Selects the items of a thread for the prompts of a run.

Unless it is truncated, a prompt begins with the prompt of the previous run, token for token, so
that the prefix cache contains it. "auto" truncates only if the context length is exceeded.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from control_svc.agent.model import PROMPT_LIMIT
from control_svc.agent.prompt import find_start
from control_svc.agent.recorder import EventSink
from control_svc.assistants.queries import ThreadQueries
from control_svc.base.pagination import Window
from control_svc.db.transaction import ProjectTransactions, Transaction
from control_svc.inference.turn_client import TokenCounter
from control_svc.inference.turns import TurnRequest
from control_svc.items.model import Item, ItemFilter, TimelineItem
from control_svc.items.queries import TimelineQueries
from control_svc.runs.model import Run
from control_svc.runs.queries import RunQueries
from svc_kit.errors import ContextLengthExceeded

_MESSAGES: Final = ItemFilter(kinds=("message",))


@dataclass
class RunContext:
    """The `Context` of one attempt at a run."""

    run: Run
    transactions: ProjectTransactions
    counter: TokenCounter
    sink: EventSink
    _entries: list[TimelineItem] = field(default_factory=list)

    async def items(self) -> list[Item]:
        """The items of the thread from where it is cut."""

        async def read(tx: Transaction) -> list[TimelineItem]:
            start = self.run.first_position
            if start is None:
                thread = await ThreadQueries(tx).get(self.run.thread_id)
                start = thread.cut
            return await TimelineQueries(tx).read(self.run.thread_id, start)

        self._entries = await self.transactions.read(read)
        return [entry.item for entry in self._entries]

    async def before_turn(self, request: TurnRequest, items: Sequence[Item]) -> list[Item]:
        """All items: threads are truncated, never compacted."""
        return list(items)

    async def shortened(
        self, request: TurnRequest, items: Sequence[Item], error: ContextLengthExceeded
    ) -> list[Item] | None:
        """The last items, as many as fit into half of the limit."""
        settings = self.run.settings
        if settings.truncation.last_messages is not None:
            return None
        start = await find_start(self.counter, request, settings.instructions, items, error)
        if start is None:
            return None
        await self._store_cut(self._entries[start].position, only_run=error.field == PROMPT_LIMIT)
        self._entries = self._entries[start:]
        return list(items[start:])

    async def _store_cut(self, position: int, *, only_run: bool) -> None:
        """Store where the prompt begins: on the thread for later runs, unless `only_run`."""
        updates_run = only_run or self.run.first_position is not None
        if updates_run:
            self.run = replace(self.run, first_position=position)

        async def update(tx: Transaction) -> None:
            if updates_run:
                run = await RunQueries(tx).lock(self.run.id)
                await RunQueries(tx).update(replace(run, first_position=position))
            if not only_run:
                thread = await ThreadQueries(tx).lock(self.run.thread_id)
                thread = replace(thread, cut=max(thread.cut, position))
                await ThreadQueries(tx).update(thread)

        await self.sink.commit(update)


async def first_position(tx: Transaction, run: Run) -> int | None:
    """The position of the first item in the prompts of a new run; None means the thread's cut.

    It is set for a run with `last_messages`, and for a run with `max_prompt_tokens` whose
    predecessor had the same limit and was truncated by it.
    """
    settings = run.settings
    count = settings.truncation.last_messages
    if count is not None:
        return await TimelineQueries(tx).position_from_end(run.thread_id, count, _MESSAGES)
    if settings.max_prompt_tokens is None:
        return None
    window = Window(1, after=run.id)
    for previous in await RunQueries(tx).page_of_thread(run.thread_id, window):
        limits = previous.settings.truncation, previous.settings.max_prompt_tokens
        if limits == (settings.truncation, settings.max_prompt_tokens):
            return previous.first_position
    return None
