"""CRUD of threads, and their migration to conversations."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from control_svc.assistants.messages import MessageAdder
from control_svc.assistants.model import NewThread, Thread, ThreadSettings
from control_svc.assistants.queries import ThreadQueries
from control_svc.base.idempotency import IdempotencyRecord, record_request
from control_svc.base.ids import CONVERSATION, THREAD, IdSource
from control_svc.base.pagination import Page, PageRequest, PageTokens
from control_svc.conversations.model import Conversation
from control_svc.conversations.queries import ConversationQueries
from control_svc.db.transaction import (
    Clock,
    DeleteHook,
    Transaction,
    Transactions,
    delete_transaction,
    read_transaction,
    write_transaction,
)
from control_svc.inference.prefix_cleanup import PrefixCleanup
from control_svc.items.queries import TimelineQueries
from control_svc.tools.file_search_resources import apply_update

CREATE: Final = "CreateThread"
MIGRATE: Final = "MigrateThread"
MAX_PAGE: Final = 100


@dataclass(frozen=True)
class Threads:
    """Operations on threads."""

    transactions: Transactions
    ids: IdSource
    tokens: PageTokens
    clock: Clock
    adder: MessageAdder
    prefix_cleanup: PrefixCleanup
    on_delete: Sequence[DeleteHook] = ()
    """Delete what refers to a deleted thread."""

    async def create(self, project: str, new: NewThread) -> Thread:
        """Create a thread.

        Raises RequestIdReused, and the errors of `NewThread.check` and
        `MessageAdder.create_thread`.
        """
        new.check()
        thread = Thread(id=self.ids.new(THREAD), settings=new.settings, created_at=self.clock())
        request = IdempotencyRecord.of(CREATE, new.request_id, thread.id, thread.created_at, new)

        async def add(tx: Transaction) -> Thread:
            created = await record_request(tx, request)
            if created != thread.id:
                return await ThreadQueries(tx).get(created)
            return await self.adder.create_thread(tx, thread, new)

        return await self.transactions.of(project).write(add)

    @read_transaction
    async def get(self, tx: Transaction, thread_id: str) -> Thread:
        """Raises ThreadNotFound."""
        return await ThreadQueries(tx).get(thread_id)

    @read_transaction
    async def page(self, tx: Transaction, page_request: PageRequest) -> Page[Thread]:
        """A page of the project's threads. Raises OutOfRange or InvalidField."""
        page_request.check_cursors(THREAD, "a thread")
        window = self.tokens.window(page_request, (tx.project, "threads"), MAX_PAGE)
        return window.page(await ThreadQueries(tx).page(window))

    @write_transaction
    async def update(
        self,
        tx: Transaction,
        thread_id: str,
        edit: Callable[[ThreadSettings], ThreadSettings],
        etag: str,
    ) -> Thread:
        """Apply `edit` to the settings of a thread.

        Raises ThreadNotFound, and the errors of `apply_update`.
        """
        current = await ThreadQueries(tx).lock(thread_id)
        changed = current.with_settings(await apply_update(tx, current, edit, etag))
        await ThreadQueries(tx).update(changed)
        return changed

    @delete_transaction
    async def delete(self, tx: Transaction, thread_id: str) -> None:
        """Delete a thread with its messages and runs.

        Raises ThreadNotFound, or ThreadBusy while a run is active; it must be cancelled first.
        """
        thread = await ThreadQueries(tx).lock(thread_id)
        thread.check_idle("delete")
        for hook in self.on_delete:
            await hook(tx, thread_id)
        await ThreadQueries(tx).delete(thread_id)
        await self.prefix_cleanup.enqueue(tx, thread_id)

    @write_transaction
    async def migrate(self, tx: Transaction, thread_id: str, request_id: str = "") -> Conversation:
        """Create a conversation that contains the thread's items; the thread keeps them.

        Raises ThreadNotFound, ThreadBusy, RequestIdReused, TooLong or InvalidField.
        """
        new_id, now = self.ids.new(CONVERSATION), self.clock()
        request = IdempotencyRecord.of(MIGRATE, request_id, new_id, now, thread_id)
        thread = await ThreadQueries(tx).lock(thread_id)
        created_id = await record_request(tx, request)
        if created_id != new_id:
            return await ConversationQueries(tx).get(created_id)
        thread.check_idle("migrate")
        created = Conversation(id=new_id, created_at=now, metadata=thread.settings.metadata)
        await ConversationQueries(tx).add(created)
        entries = await TimelineQueries(tx).read(thread_id)
        await TimelineQueries(tx).link(new_id, [entry.item for entry in entries])
        return created
