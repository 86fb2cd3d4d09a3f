"""Streams the desired adapters to inference frontends and stores their reports; services only.

The desired state is small, so it is read whole and compared with what a frontend has; a frontend
that reconnects gets the difference from its revision.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Final

from control_svc.adapters.model import ADAPTERS_TOPIC, AdapterReport, DesiredChange, DesiredState
from control_svc.adapters.queries import AdapterSyncQueries
from control_svc.base.ids import MAX_KEY_CHARACTERS
from control_svc.base.validation import SHA256_DIGITS, check_digest, check_text
from control_svc.blobs.store import BlobMissing, BlobStore
from control_svc.db.notifications import Notifications, wait_for_notification
from control_svc.db.transaction import Transactions
from svc_kit.errors import AdapterNotFound

_POLL_S: Final = 2.0
"""How soon a change is seen whose notice was lost."""


class AdapterSync:
    """The desired state of all adapters, for inference frontends."""

    def __init__(
        self, transactions: Transactions, blobs: BlobStore, notifications: Notifications
    ) -> None:
        self._transactions = transactions
        self._blobs = blobs
        self._notifications = notifications

    async def watch(self, revision: str) -> AsyncIterator[DesiredState | DesiredChange]:
        """Yield the desired state, unless `revision` is the newest, and then changes, without end.
        A caller that is up to date first gets an empty change.
        """
        with self._notifications.listen(ADAPTERS_TOPIC) as changed:
            sent = await self._state()
            has_it = revision == str(sent.revision)
            yield DesiredChange(sent.revision, [], []) if has_it else sent
            while True:
                await wait_for_notification(changed, _POLL_S)
                if await self._revision() != sent.revision:
                    state = await self._state()
                    yield state.change_from(sent)
                    sent = state

    async def report(self, frontend: str, reports: Sequence[AdapterReport]) -> None:
        """Store the reports of a frontend. Raises MissingField, TooLong or InvalidField."""
        check_text("frontend", frontend, MAX_KEY_CHARACTERS)
        await self._transactions.write(
            lambda tx: AdapterSyncQueries(tx).replace_reports(frontend, reports)
        )

    async def download(self, sha256: str) -> AsyncIterator[bytes]:
        """The bytes of a registered digest. Raises InvalidField or AdapterNotFound."""
        digest = check_digest("sha256", sha256, SHA256_DIGITS)
        key, size_bytes = found = await self._blob_of(digest)
        try:
            async for chunk in self._blobs.read(key, 0, size_bytes):
                yield chunk
        except BlobMissing:
            # Deleted between the two reads, and perhaps another adapter's by now; or lost.
            if await self._blob_of(digest) != found:
                raise AdapterNotFound(adapter=sha256) from None
            raise

    async def _blob_of(self, digest: str) -> tuple[str, int]:
        found = await self._transactions.read(lambda tx: AdapterSyncQueries(tx).blob_of(digest))
        if found is None:
            raise AdapterNotFound(adapter=digest)
        return found

    async def _state(self) -> DesiredState:
        return await self._transactions.read(lambda tx: AdapterSyncQueries(tx).state())

    async def _revision(self) -> int:
        return await self._transactions.read(lambda tx: AdapterSyncQueries(tx).revision())
