"""Messages of threads: what callers do with them. While a run is active they stay as they are."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from control_svc.domain.checks import check_metadata
from control_svc.domain.ids import IdSource
from control_svc.domain.listing import PAGE_BYTES, Page, PageRequest, PageTokens
from control_svc.domain.messages import AddedMessage, ThreadMessage
from control_svc.domain.ports import Clock
from control_svc.domain.requests import RememberedRequest, fingerprint_of
from control_svc.storage.repositories.messages import SqlMessages
from control_svc.storage.repositories.threads import SqlThreads
from control_svc.storage.unit_of_work import Transaction, Transactions
from control_svc.usecases.adding_messages import MESSAGE, MessageAdder
from control_svc.usecases.once import earlier

CREATE: Final = "CreateMessage"
MAX_PAGE: Final = 100


class Messages:
    """What callers do with messages."""

    def __init__(
        self,
        transactions: Transactions,
        ids: IdSource,
        tokens: PageTokens,
        clock: Clock,
        embedding_model: str | None,
    ) -> None:
        """`embedding_model` None: the installation has none, and no file can be searched."""
        self._transactions = transactions
        self._tokens = tokens
        self._clock = clock
        self._adder = MessageAdder(ids, clock, embedding_model)
        self._ids = ids

    async def create(self, project: str, asked: AddedMessage) -> ThreadMessage:
        """Add a message at the end of its thread.

        Raises what its check does, ThreadNotFound, ThreadBusy, FileNotFound and RequestIdReused.
        """
        asked.check()
        message_id, now = self._ids.new(MESSAGE), self._clock()
        request = RememberedRequest(
            method=CREATE,
            request_id=asked.request_id,
            fingerprint=fingerprint_of(asked),
            resource_id=message_id,
            created_at=now,
        )

        async def add(tx: Transaction) -> ThreadMessage:
            thread = await SqlThreads(tx).lock(project, asked.thread_id)
            before = await earlier(tx, project, request)
            if before is not None:
                return await SqlMessages(tx).get(project, thread.id, before.resource_id)
            thread.check_idle("add messages to")
            return await self._adder.add_one(tx, project, thread, asked.message, message_id)

        return await self._transactions.write(add)

    async def get(self, project: str, thread_id: str, message_id: str) -> ThreadMessage:
        """Raises ThreadNotFound or MessageNotFound."""

        async def find(tx: Transaction) -> ThreadMessage:
            await SqlThreads(tx).get(project, thread_id)
            return await SqlMessages(tx).get(project, thread_id, message_id)

        return await self._transactions.read(find)

    async def page(
        self, project: str, thread_id: str, asked: PageRequest, run_id: str = ""
    ) -> Page[ThreadMessage]:
        """A page of a thread's messages; `run_id` empty: by whomever.

        Raises ThreadNotFound, OutOfRange or InvalidField.
        """
        asked.check_cursors(MESSAGE, "a message")
        binding = (project, "messages", thread_id, run_id)
        window = self._tokens.window(asked, binding, MAX_PAGE)

        async def find(tx: Transaction) -> list[ThreadMessage]:
            await SqlThreads(tx).get(project, thread_id)
            return await SqlMessages(tx).page(project, thread_id, window, run_id)

        found = await self._transactions.read(find)
        return self._tokens.page(found, window, asked, binding, PAGE_BYTES)

    async def update(
        self, project: str, thread_id: str, message_id: str, metadata: Mapping[str, str] | None
    ) -> ThreadMessage:
        """Change a message's metadata; None: they stay as they are.

        Raises ThreadNotFound, MessageNotFound, ThreadBusy, and what the check of metadata does.
        """
        check_metadata(metadata or {})

        async def change(tx: Transaction) -> ThreadMessage:
            thread = await SqlThreads(tx).lock(project, thread_id)
            found = await SqlMessages(tx).get(project, thread_id, message_id)
            thread.check_idle("change messages of")
            if metadata is None:
                return found
            changed = replace(found, metadata=metadata)
            await SqlMessages(tx).update(project, changed)
            return changed

        return await self._transactions.write(change)

    async def delete(self, project: str, thread_id: str, message_id: str) -> None:
        """Take a message out of its thread. Raises ThreadNotFound, MessageNotFound, ThreadBusy."""

        async def drop(tx: Transaction) -> None:
            thread = await SqlThreads(tx).lock(project, thread_id)
            thread.check_idle("delete messages of")
            await SqlMessages(tx).delete(project, thread_id, message_id)

        await self._transactions.write(drop)
