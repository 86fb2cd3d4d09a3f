"""How far a response is, read from what is committed; and its end by somebody else than its worker:
a caller who gives it up, or a job that is dead."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from control_svc.domain.drafts import Draft
from control_svc.domain.items import Item
from control_svc.domain.response_events import EventCodec, Moment
from control_svc.domain.response_ports import Seals
from control_svc.domain.response_telling import rebuilt
from control_svc.domain.responses import Response, Work
from control_svc.domain.timeline_ports import ItemFilter
from control_svc.storage.repositories.streams import SqlEventStreams
from control_svc.storage.repositories.timelines import SqlTimelines
from control_svc.storage.unit_of_work import Transaction
from control_svc.usecases.response_ledgers import TransactionLedger
from control_svc.usecases.response_narrating import ResponseNarrator


@dataclass(frozen=True)
class Said:
    """What a response has said."""

    output: Sequence[Item]
    """In turns that have ended."""
    drafts: Sequence[Draft]
    """In the open turn."""
    token_ids: Sequence[int]
    """Sampled in the open turn."""


class Endings:
    """Reads and ends responses in transactions that have locked them."""

    def __init__(self, codec: EventCodec, seals: Seals) -> None:
        self._codec = codec
        self._seals = seals

    async def said(self, tx: Transaction, project: str, response: Response) -> Said:
        """What a response has said."""
        turn = response.work.num_turns
        made = await SqlTimelines(tx).since(
            project, response.id, wanted=ItemFilter(origin=response.id)
        )
        events = await SqlEventStreams(tx).events_of_turn(project, response.id, turn)
        decoded = [self._codec.decode(event.data) for event in events]
        return Said(
            output=[placed.item for placed in made],
            drafts=rebuilt(decoded, first_index=len(made)),
            token_ids=await SqlEventStreams(tx).tokens(project, response.id, turn),
        )

    async def end(
        self,
        tx: Transaction,
        project: str,
        response: Response,
        moment: Moment,
        ended: Callable[[Work], Response],
    ) -> Response:
        """End a locked response, whose job is locked or dead, with what it has said."""
        said = await self.said(tx, project, response)
        ledger = TransactionLedger(project, tx, self._codec)
        narrator = ResponseNarrator(
            project, response, said.output, ledger, self._seals, said.drafts
        )
        await narrator.end(narrator.broken_turn(), moment, ended)
        return narrator.response
