"""CRUD of threads, and their migration to conversations."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from corral.control.v1 import thread_service_pb2 as pb

from control_svc.assistants.messages import MessageAdder
from control_svc.assistants.model import NewThread, Thread
from control_svc.assistants.proto import NEW_THREAD, THREAD, thread_edit
from control_svc.assistants.queries import ThreadQueries
from control_svc.base import ids
from control_svc.base.idempotency import IdempotencyRecord, record_request
from control_svc.base.resource import Edit, Resource
from control_svc.conversations.model import Conversation
from control_svc.conversations.queries import ConversationQueries
from control_svc.conversations.service import CONVERSATION
from control_svc.db.transaction import DeleteHook, Transaction, write_transaction
from control_svc.inference.prefix_cleanup import PrefixCleanup
from control_svc.items.queries import TimelineQueries
from control_svc.tools.file_search_resources import settings_edit

MIGRATE: Final = "MigrateThread"


@dataclass(frozen=True)
class Threads(Resource[Thread, NewThread]):
    service = pb.DESCRIPTOR.services_by_name["ThreadService"]
    message, new, queries = THREAD, NEW_THREAD, ThreadQueries
    noun, plural = "a thread", "threads"

    adder: MessageAdder
    prefix_cleanup: PrefixCleanup
    on_delete: Sequence[DeleteHook] = ()
    """Delete what refers to a deleted thread."""

    async def insert(
        self, tx: Transaction, new: NewThread, object_id: str, now: datetime
    ) -> Thread:
        """Raises the errors of `MessageAdder.create_thread`."""
        thread = Thread(id=object_id, settings=new.settings, created_at=now)
        return await self.adder.create_thread(tx, thread, new)

    def edit(self, request: pb.UpdateThreadRequest) -> Edit[Thread]:
        """Raises InvalidField, and the errors of `settings_edit`."""
        changes = request.thread
        return settings_edit(thread_edit(changes, request.update_mask), changes.etag)

    async def before_delete(self, tx: Transaction, current: Thread) -> None:
        """Raises ThreadBusy while a run is active; it must be cancelled first."""
        current.check_idle("delete")
        for hook in self.on_delete:
            await hook(tx, current.id)
        await self.prefix_cleanup.enqueue(tx, current.id)

    @write_transaction
    async def MigrateThread(
        self, tx: Transaction, request: pb.MigrateThreadRequest
    ) -> pb.MigrateThreadResponse:
        """Create a conversation that contains the thread's items; the thread keeps them.

        Raises ThreadNotFound, ThreadBusy, RequestIdReused, TooLong or InvalidField.
        """
        new_id, now = self.ids.new(ids.CONVERSATION), self.clock()
        record = IdempotencyRecord.of(MIGRATE, request.request_id, new_id, now, request.thread_id)
        thread = await ThreadQueries(tx).lock(request.thread_id)
        if (created_id := await record_request(tx, record)) == new_id:
            thread.check_idle("migrate")
            created = Conversation(id=new_id, created_at=now, metadata=thread.settings.metadata)
            await ConversationQueries(tx).add(created)
            timelines = TimelineQueries(tx)
            await timelines.link(new_id, await timelines.refs(thread.id))
        conversation = await ConversationQueries(tx).get(created_id)
        return pb.MigrateThreadResponse(conversation=CONVERSATION.to_message(conversation))
