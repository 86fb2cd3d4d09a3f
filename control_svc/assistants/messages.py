"""CRUD of messages, and the creation of messages with a new thread or run.

The messages of a thread cannot be changed while one of its runs is active.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from corral.control.v1 import message_service_pb2 as pb

from control_svc.assistants.message_model import AddedMessage, NewMessage, ThreadMessage
from control_svc.assistants.model import NewThread, Thread
from control_svc.assistants.proto import MESSAGE, NEW_MESSAGE, message_metadata
from control_svc.assistants.queries import MessageQueries, ThreadQueries
from control_svc.base.idempotency import IdempotencyRecord, find_or_record
from control_svc.base.ids import IdSource
from control_svc.base.pagination import PAGE_BYTES, Page
from control_svc.base.resource import Methods
from control_svc.db.transaction import Clock, Transaction, delete_transaction, read_transaction
from control_svc.files.queries import FileQueries
from control_svc.items.model import ITEM_PREFIXES, Message
from control_svc.tools.file_search_resources import ToolStores

CREATE: Final = "CreateMessage"
PREFIX: Final = ITEM_PREFIXES[Message]


@dataclass(frozen=True)
class Messages(Methods[ThreadMessage]):
    """Messages. All methods but List and Get lock the thread."""

    service = pb.DESCRIPTOR.services_by_name["MessageService"]
    message, noun, plural = MESSAGE, "a message", "messages"

    adder: "MessageAdder"

    async def CreateMessage(self, project: str, request: pb.CreateMessageRequest) -> ThreadMessage:
        """Append a message to its thread.

        Raises ThreadNotFound, ThreadBusy, FileNotFound, RequestIdReused, EmbeddingModelMissing, and
        the errors of `AddedMessage.check`.
        """
        new = AddedMessage(
            thread_id=request.thread_id,
            message=NEW_MESSAGE.from_message(request.message),
            request_id=request.request_id,
        )
        new.check()
        message_id, now = self.ids.new(PREFIX), self.clock()
        record = IdempotencyRecord.of(CREATE, new.request_id, message_id, now, new)

        async def add(tx: Transaction) -> ThreadMessage:
            thread = await ThreadQueries(tx).lock(new.thread_id)
            earlier = await find_or_record(tx, record)
            if earlier is not None:
                return await MessageQueries(tx).get(thread.id, earlier.resource_id)
            thread.check_idle("add messages to")
            return await self.adder.add_one(tx, thread, new.message, message_id)

        return await self.transactions.of(project).write(add)

    @read_transaction
    async def GetMessage(self, tx: Transaction, request: pb.GetMessageRequest) -> ThreadMessage:
        """Raises ThreadNotFound or MessageNotFound."""
        await ThreadQueries(tx).get(request.thread_id)
        return await MessageQueries(tx).get(request.thread_id, request.message_id)

    @read_transaction
    async def ListMessages(
        self, tx: Transaction, request: pb.ListMessagesRequest
    ) -> Page[ThreadMessage]:
        """A page of a thread's messages, or of those that the run `run_id` created.

        Raises ThreadNotFound, OutOfRange or InvalidField.
        """
        window = self.window(tx, request, PREFIX, request.thread_id, request.run_id)
        await ThreadQueries(tx).get(request.thread_id)
        messages = await MessageQueries(tx).page(request.thread_id, window, request.run_id)
        return window.page(messages, PAGE_BYTES)

    async def UpdateMessage(self, project: str, request: pb.UpdateMessageRequest) -> ThreadMessage:
        """Replace a message's metadata, unless the mask is empty.

        Raises InvalidField, ThreadNotFound, MessageNotFound or ThreadBusy.
        """
        changes = request.message
        metadata = message_metadata(changes, request.update_mask)

        async def change(tx: Transaction) -> ThreadMessage:
            thread = await ThreadQueries(tx).lock(changes.thread_id)
            message = await MessageQueries(tx).get(thread.id, changes.id)
            thread.check_idle("change messages of")
            if metadata is None:
                return message
            changed = replace(message, metadata=metadata)
            await MessageQueries(tx).update(changed)
            return changed

        return await self.transactions.of(project).write(change)

    @delete_transaction
    async def DeleteMessage(self, tx: Transaction, request: pb.DeleteMessageRequest) -> None:
        """Delete a message. Raises ThreadNotFound, MessageNotFound or ThreadBusy."""
        thread = await ThreadQueries(tx).lock(request.thread_id)
        thread.check_idle("delete messages of")
        await MessageQueries(tx).delete(thread.id, request.message_id)


class MessageAdder:
    """Adds messages in a transaction that has locked the thread or creates it."""

    def __init__(self, ids: IdSource, clock: Clock, embedding_model: str | None) -> None:
        """`embedding_model` is None if the installation has none; files cannot be searched then."""
        self._ids = ids
        self._clock = clock
        self._stores = ToolStores(ids, clock, embedding_model)

    async def create_thread(
        self, tx: Transaction, thread: Thread, request: NewThread, path: str = ""
    ) -> Thread:
        """Insert a new thread with its vector stores and messages.

        `path` is a prefix for field names in errors. Raises the errors of `ToolStores.create` and
        `add`.
        """
        resources = await self._stores.create(
            tx, request.settings.resources, request.new_stores, path
        )
        thread = replace(thread, settings=replace(request.settings, resources=resources))
        await ThreadQueries(tx).add(thread)
        return await self.add(tx, thread, request.messages, f"{path}messages")

    async def add(
        self, tx: Transaction, thread: Thread, messages: Sequence[NewMessage], path: str
    ) -> Thread:
        """Append valid messages to the thread; return the changed thread.

        `path` is the field of the messages. Raises FileNotFound for a file that one of them refers
        to, and the errors of `ToolStores.attach`.
        """
        now = self._clock()
        uses = [
            use
            for index, message in enumerate(messages)
            for use in message.files(f"{path}[{index}].")
        ]
        await FileQueries(tx).find(uses, now)
        created = [message.make(self._ids.new(PREFIX), thread.id, now) for message in messages]
        await MessageQueries(tx).add(created)
        return await self._attach_files(tx, thread, created)

    async def add_one(
        self, tx: Transaction, thread: Thread, message: NewMessage, message_id: str
    ) -> ThreadMessage:
        """Append one message whose id is already assigned; otherwise like `add`."""
        await FileQueries(tx).find(message.files(), self._clock())
        created = message.make(message_id, thread.id, self._clock())
        await MessageQueries(tx).add([created])
        await self._attach_files(tx, thread, [created])
        return created

    async def _attach_files(
        self, tx: Transaction, thread: Thread, messages: Sequence[ThreadMessage]
    ) -> Thread:
        """Add attached files to the store of the thread; return the thread with its store."""
        file_ids = [
            attachment.file_id
            for message in messages
            for attachment in message.attachments
            if attachment.tools
        ]
        settings = thread.settings
        unique_ids = list(dict.fromkeys(file_ids))
        resources = await self._stores.attach(tx, settings.resources, unique_ids)
        if resources == settings.resources:
            return thread
        changed = thread.with_settings(replace(settings, resources=resources))
        await ThreadQueries(tx).update(changed)
        return changed
