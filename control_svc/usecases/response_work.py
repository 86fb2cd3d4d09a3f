"""The job of a stored response."""

from typing import Final

from control_svc.domain.items import Item
from control_svc.domain.jobs import Claim, Job
from control_svc.domain.response_events import EventCodec, Moment
from control_svc.domain.response_ports import Seals
from control_svc.domain.responses import Response, ResponseError
from control_svc.storage.repositories.responses import SqlResponses
from control_svc.storage.repositories.timelines import SqlTimelines
from control_svc.storage.unit_of_work import Transaction, Transactions
from control_svc.usecases.response_ending import Endings
from control_svc.usecases.response_ledgers import StoredLedger
from control_svc.usecases.response_narrating import ResponseNarrator
from control_svc.usecases.response_pasts import Past, read_past
from control_svc.usecases.response_working import Begun, ResponseWorker, fail
from control_svc.usecases.streaming import StreamWriters
from control_svc.usecases.working import JobContext
from svc_kit.errors import PreviousResponseNotFound, ResponseNotFound, TooLong

KIND: Final = "response"
"""The jobs of responses."""


class ResponseHandler:
    """Does the jobs of responses."""

    kind = KIND

    def __init__(
        self,
        transactions: Transactions,
        writers: StreamWriters,
        worker: ResponseWorker,
        endings: Endings,
        codec: EventCodec,
        seals: Seals,
        concurrency: int,
    ) -> None:
        """`concurrency` is how many responses run at a time in this process."""
        self.concurrency = concurrency
        self._transactions = transactions
        self._writers = writers
        self._worker = worker
        self._endings = endings
        self._codec = codec
        self._seals = seals

    async def run(self, claim: Claim, context: JobContext) -> None:
        """Answer, or go on answering. Whoever cancels or deletes a response has ended it."""
        if await self._response(claim) is None:
            return
        async with self._writers.writer(context, claim.subject) as writer:
            response = await self._response(claim)
            if response is None:
                return
            ledger = StoredLedger(claim.project, writer, self._codec)
            said = await self._transactions.read(
                lambda tx: self._endings.said(tx, claim.project, response)
            )
            narrator = ResponseNarrator(
                claim.project, response, said.output, ledger, self._seals, said.drafts
            )
            try:
                past, own = await self._said_until(claim)
            except (PreviousResponseNotFound, TooLong) as error:
                await fail(narrator, error)
                return
            begun = Begun(past.items, own, said.drafts, said.token_ids, past.archive_name)
            await self._worker.work(claim.project, narrator, begun, context.cancelled)

    async def bury(self, tx: Transaction, job: Job) -> None:
        """Fail the response whose job is dead, with what it has said."""
        try:
            response = await SqlResponses(tx).lock(job.project, job.subject)
        except ResponseNotFound:
            return
        if response.state.is_final:
            return
        reason, message = job.error or ("INTERNAL", "")
        error = ResponseError(code="server_error", message=message, reason=reason)
        await self._endings.end(
            tx,
            job.project,
            response,
            Moment.FAILED,
            lambda work: response.failed(work.cost, error),
        )

    async def _response(self, claim: Claim) -> Response | None:
        """The response, if there is anything to do for it."""

        async def find(tx: Transaction) -> Response | None:
            try:
                return await SqlResponses(tx).get(claim.project, claim.subject)
            except ResponseNotFound:
                return None

        found = await self._transactions.read(find)
        return None if found is None or found.state.is_final else found

    async def _said_until(self, claim: Claim) -> tuple[Past, list[Item]]:
        """Everything that was said, and the response's own part of it."""

        async def read(tx: Transaction) -> tuple[Past, list[Item]]:
            past = await read_past(tx, claim.project, claim.subject)
            own = await SqlTimelines(tx).since(claim.project, claim.subject)
            return past, [placed.item for placed in own]

        return await self._transactions.read(read)
