"""Streams the desired adapters to inference frontends and stores their reports.

The desired state is small, so it is read as a whole and compared with the state sent before.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final

from control_svc.adapters.model import (
    ADAPTERS_TOPIC,
    AdapterReport,
    DesiredChange,
    DesiredState,
    Frontend,
)
from control_svc.adapters.queries import AdapterFrontendQueries, AdapterSyncQueries
from control_svc.base.ids import MAX_KEY_CHARACTERS
from control_svc.base.validation import SHA256_DIGITS, check_digest, check_text
from control_svc.blobs.store import BlobStore
from control_svc.db.notifications import Notifications, wait_for_notification
from control_svc.db.transaction import (
    CrossProjectTransaction,
    CrossProjectTransactions,
    cross_project_read,
)
from svc_kit.errors import AdapterNotFound, BlobMissing

_POLL_S: Final = 2.0
"""Maximum delay of a change whose notification was lost."""
HEARTBEAT_S: Final = 4.0
"""Frontends get an empty change this often, so that they notice a process that has stopped."""


@dataclass(frozen=True)
class AdapterSync:
    """The desired state of all adapters of all projects. For inference frontends only."""

    transactions: CrossProjectTransactions
    blobs: BlobStore
    notifications: Notifications
    heartbeat_s: float = HEARTBEAT_S

    async def watch(self, revision: str) -> AsyncGenerator[DesiredState | DesiredChange, None]:
        """Yield the desired state, then its changes, without end; an empty one every `heartbeat_s`.

        If `revision` is the current one, the first event is an empty change instead of the state.
        """
        clock = asyncio.get_running_loop().time
        with self.notifications.listen(ADAPTERS_TOPIC) as changed:
            sent = await self._state()
            is_current = revision == str(sent.revision)
            yield DesiredChange(sent.revision, [], []) if is_current else sent
            sent_at = clock()
            while True:
                await wait_for_notification(changed, min(_POLL_S, self.heartbeat_s))
                if await self._revision() != sent.revision:
                    state = await self._state()
                    yield state.diff(sent)
                    sent, sent_at = state, clock()
                elif clock() >= sent_at + self.heartbeat_s:
                    yield DesiredChange(sent.revision, [], [])
                    sent_at = clock()

    async def report(self, frontend: Frontend, reports: Sequence[AdapterReport]) -> None:
        """Replace the reports of a frontend. Raises MissingField, TooLong or InvalidField."""
        check_text("frontend", frontend.frontend, MAX_KEY_CHARACTERS)
        await self.transactions.write(
            lambda tx: AdapterSyncQueries(tx).replace_reports(frontend, reports)
        )

    async def download(self, sha256: str) -> AsyncIterator[bytes]:
        """Yield the bytes of a registered adapter. Raises InvalidField or AdapterNotFound."""
        digest = check_digest("sha256", sha256, SHA256_DIGITS)
        key, size_bytes = blob = await self._find_blob(digest)
        try:
            async for chunk in self.blobs.read(key, 0, size_bytes):
                yield chunk
        except BlobMissing:
            # Either the adapter has been deleted or replaced meanwhile, or its blob is lost.
            if await self._find_blob(digest) != blob:
                raise AdapterNotFound(adapter=sha256) from None
            raise

    @cross_project_read
    async def _find_blob(self, tx: CrossProjectTransaction, digest: str) -> tuple[str, int]:
        blob = await AdapterSyncQueries(tx).find_blob(digest)
        if blob is None:
            raise AdapterNotFound(adapter=digest)
        return blob

    @cross_project_read
    async def _state(self, tx: CrossProjectTransaction) -> DesiredState:
        return await AdapterSyncQueries(tx).state()

    @cross_project_read
    async def _revision(self, tx: CrossProjectTransaction) -> int:
        return await AdapterFrontendQueries(tx).revision()
