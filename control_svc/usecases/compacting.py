"""Summaries of what was said, written by the model itself, and the items that hold them."""

from collections.abc import Sequence
from contextlib import aclosing

from control_svc.domain.agent import NO_USAGE
from control_svc.domain.compactions import SUMMARY_REQUEST, Summary
from control_svc.domain.ids import IdSource
from control_svc.domain.items import ITEM_PREFIXES, Compaction, Item, ItemStatus
from control_svc.domain.jobs import JobPriority
from control_svc.domain.ports import Clock
from control_svc.domain.response_ports import Seals
from control_svc.domain.responses import Response
from control_svc.domain.turn_messages import turn_messages
from control_svc.domain.turns import (
    Delta,
    Done,
    TextPart,
    TurnClient,
    TurnMessage,
    TurnRequest,
    TurnRole,
    TurnUsage,
)


class Compactor:
    """Has items summed up."""

    def __init__(
        self, turns: TurnClient, seals: Seals, ids: IdSource, clock: Clock, summary_tokens: int
    ) -> None:
        """`summary_tokens` bounds a summary."""
        self._turns = turns
        self._seals = seals
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
            thinks=False,
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
            content=Compaction(sealed=self._seals.seal_summary(project, summary)),
        )
