"""Reads the recorded output of a response, and ends responses that are cancelled or dead."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from control_svc.agent.drafts import Draft
from control_svc.db.transaction import Transaction
from control_svc.event_log.queries import StreamQueries
from control_svc.items.model import Item, ItemFilter
from control_svc.items.queries import TimelineQueries
from control_svc.responses.content_cipher import ContentCipher
from control_svc.responses.events import EventCodec, EventType, rebuild_drafts
from control_svc.responses.model import Response, Work
from control_svc.responses.recorder import ResponseRecorder, TransactionSink


@dataclass(frozen=True)
class RecordedOutput:
    """The recorded output of a response."""

    items: Sequence[Item]
    """Items of completed turns."""
    drafts: Sequence[Draft]
    """Drafts of the open turn."""
    token_ids: Sequence[int]
    """Sampled tokens of the open turn."""


class ResponseTransitions:
    """Reads and ends responses within a transaction."""

    def __init__(self, codec: EventCodec, cipher: ContentCipher) -> None:
        self._codec = codec
        self._cipher = cipher

    async def read_output(
        self, tx: Transaction, project: str, response: Response
    ) -> RecordedOutput:
        """Read the recorded output of a response."""
        turn = response.work.num_turns
        created = await TimelineQueries(tx).read(
            project, response.id, item_filter=ItemFilter(origin=response.id)
        )
        events = await StreamQueries(tx).events_of_turn(project, response.id, turn)
        decoded = [self._codec.decode(event.data) for event in events]
        return RecordedOutput(
            items=[placed.item for placed in created],
            drafts=rebuild_drafts(decoded, first_index=len(created)),
            token_ids=await StreamQueries(tx).tokens(project, response.id, turn),
        )

    async def end(
        self,
        tx: Transaction,
        project: str,
        response: Response,
        event_type: EventType,
        finish: Callable[[Work], Response],
    ) -> None:
        """End a locked response with its output so far. Its job must be locked or dead."""
        output = await self.read_output(tx, project, response)
        sink = TransactionSink(project, tx, self._codec)
        recorder = ResponseRecorder(
            project, response, output.items, sink, self._cipher, output.drafts
        )
        await recorder.end(recorder.interrupted_turn(), event_type, finish)
