"""Selects the items of a thread that the model of a run is shown.

The prompt begins with that of the run before, token for token, as long as nothing is truncated, so
that it is found in the prefix cache. "auto" truncates only when the context is exceeded.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from control_svc.agent.model import PROMPT_LIMIT
from control_svc.agent.prompt import turn_messages
from control_svc.agent.truncation import first_that_fits
from control_svc.assistants.queries import ThreadQueries
from control_svc.base.pagination import Window
from control_svc.db.transaction import Transaction, Transactions
from control_svc.event_log.writer import StreamWriter
from control_svc.inference.turn_client import TokenCounter
from control_svc.inference.turns import TurnRequest
from control_svc.items.model import Item, ItemFilter, Message, Role, TimelineItem
from control_svc.items.queries import TimelineQueries
from control_svc.runs.model import Run, Truncation
from control_svc.runs.queries import RunQueries
from svc_kit.errors import ContextLengthExceeded

_MESSAGES: Final = ItemFilter(kinds=("message",))


class RunContext:
    """The `Context` of one run, for the time of one attempt."""

    def __init__(
        self,
        project: str,
        run: Run,
        transactions: Transactions,
        counter: TokenCounter,
        writer: StreamWriter,
    ) -> None:
        self._project = project
        self._run = run
        self._transactions = transactions
        self._counter = counter
        self._writer = writer
        self._placed: list[TimelineItem] = []

    async def items(self) -> list[Item]:
        """The thread, from where it is cut."""

        async def read(tx: Transaction) -> list[TimelineItem]:
            first = self._run.first_position
            if first is None:
                thread = await ThreadQueries(tx).get(self._project, self._run.thread_id)
                first = thread.cut
            return await TimelineQueries(tx).read(self._project, self._run.thread_id, first)

        self._placed = await self._transactions.read(read)
        return [placed.item for placed in self._placed]

    async def before_turn(self, request: TurnRequest, items: Sequence[Item]) -> list[Item]:
        """All of them: threads are cut, and never summed up."""
        return list(items)

    async def shortened(
        self, request: TurnRequest, items: Sequence[Item], error: ContextLengthExceeded
    ) -> list[Item] | None:
        """The last of the items, as many as fill half the room there is."""
        if self._run.settings.truncation.last_messages is not None:
            return None
        starts = [
            index for index, placed in enumerate(self._placed) if index and _is_question(placed)
        ]
        if not starts:
            return None
        start = await self._first_fitting(request, items, starts, error.context_tokens // 2)
        await self._cut(self._placed[start].position, is_own=error.field == PROMPT_LIMIT)
        self._placed = self._placed[start:]
        return list(items[start:])

    async def _first_fitting(
        self, request: TurnRequest, items: Sequence[Item], starts: Sequence[int], room: int
    ) -> int:
        """The first of the starts behind which the items have room; the last, if none has."""

        async def fits(start: int) -> bool:
            messages = turn_messages(self._run.settings.instructions, items[start:])
            return await self._counter.count(replace(request, messages=messages)) <= room

        return await first_that_fits(starts, fits)

    async def _cut(self, position: int, *, is_own: bool) -> None:
        """Keep where the thread is cut: for the runs to come, but for a limit of this run's own."""
        has_view = is_own or self._run.first_position is not None
        if has_view:
            self._run = self._run.placed(position)

        async def keep(tx: Transaction) -> None:
            if has_view:
                run = await RunQueries(tx).lock(self._project, self._run.id)
                await RunQueries(tx).update(self._project, run.placed(position))
            if not is_own:
                thread = await ThreadQueries(tx).lock(self._project, self._run.thread_id)
                cut = replace(thread, cut=max(thread.cut, position))
                await ThreadQueries(tx).update(self._project, cut)

        await self._writer.commit(keep)


def _is_question(placed: TimelineItem) -> bool:
    """Whether a conversation can begin with it: templates want the user first."""
    content = placed.item.content
    return isinstance(content, Message) and content.role is Role.USER


async def first_position(tx: Transaction, project: str, run: Run) -> int | None:
    """Where the model's view of the thread begins, for a run that names a number of messages, or
    has the limit of the run before, which was cut by it."""
    count = run.settings.truncation.last_messages
    if count is not None:
        return await TimelineQueries(tx).position_from_end(project, run.thread_id, count, _MESSAGES)
    if run.settings.max_prompt_tokens is None:
        return None
    before = await RunQueries(tx).page(project, run.thread_id, Window(limit=1, after=run.id))
    return next((each.first_position for each in before if _limits(each) == _limits(run)), None)


def _limits(run: Run) -> tuple[Truncation, int | None]:
    """What its view of the thread depends on."""
    return run.settings.truncation, run.settings.max_prompt_tokens
