"""CRUD of messages, and their insertion with a new thread or run.

Messages of a thread cannot change while one of its runs is active.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from control_svc.assistants.message_model import AddedMessage, FileUse, NewMessage, ThreadMessage
from control_svc.assistants.model import NewThread, Thread
from control_svc.assistants.queries import MessageQueries, ThreadQueries
from control_svc.base.idempotency import IdempotencyRecord, find_or_record
from control_svc.base.ids import IdSource
from control_svc.base.pagination import PAGE_BYTES, Page, PageRequest, PageTokens
from control_svc.base.validation import check_metadata
from control_svc.db.transaction import Clock, Transaction, Transactions
from control_svc.files.queries import FileQueries
from control_svc.items.model import ITEM_PREFIXES, Message
from control_svc.tools.file_search_resources import ToolStores
from svc_kit.errors import FileNotFound

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

    async def create(self, project: str, new: AddedMessage) -> ThreadMessage:
        """Add a message at the end of its thread.

        Raises what its check does, ThreadNotFound, ThreadBusy, FileNotFound and RequestIdReused.
        """
        new.check()
        message_id, now = self._ids.new(MESSAGE), self._clock()
        request = IdempotencyRecord.of(CREATE, new.request_id, message_id, now, new)

        async def add(tx: Transaction) -> ThreadMessage:
            thread = await ThreadQueries(tx).lock(project, new.thread_id)
            before = await find_or_record(tx, project, request)
            if before is not None:
                return await MessageQueries(tx).get(project, thread.id, before.resource_id)
            thread.check_idle("add messages to")
            return await self._adder.add_one(tx, project, thread, new.message, message_id)

        return await self._transactions.write(add)

    async def get(self, project: str, thread_id: str, message_id: str) -> ThreadMessage:
        """Raises ThreadNotFound or MessageNotFound."""

        async def find(tx: Transaction) -> ThreadMessage:
            await ThreadQueries(tx).get(project, thread_id)
            return await MessageQueries(tx).get(project, thread_id, message_id)

        return await self._transactions.read(find)

    async def page(
        self, project: str, thread_id: str, page_request: PageRequest, run_id: str = ""
    ) -> Page[ThreadMessage]:
        """A page of a thread's messages; `run_id` empty: by whomever.

        Raises ThreadNotFound, OutOfRange or InvalidField.
        """
        page_request.check_cursors(MESSAGE, "a message")
        binding = (project, "messages", thread_id, run_id)
        window = self._tokens.window(page_request, binding, MAX_PAGE)

        async def find(tx: Transaction) -> list[ThreadMessage]:
            await ThreadQueries(tx).get(project, thread_id)
            return await MessageQueries(tx).page(project, thread_id, window, run_id)

        found = await self._transactions.read(find)
        return self._tokens.page(found, window, page_request, binding, PAGE_BYTES)

    async def update(
        self, project: str, thread_id: str, message_id: str, metadata: Mapping[str, str] | None
    ) -> ThreadMessage:
        """Change a message's metadata; None: they stay as they are.

        Raises ThreadNotFound, MessageNotFound, ThreadBusy, and what the check of metadata does.
        """
        check_metadata(metadata or {})

        async def change(tx: Transaction) -> ThreadMessage:
            thread = await ThreadQueries(tx).lock(project, thread_id)
            found = await MessageQueries(tx).get(project, thread_id, message_id)
            thread.check_idle("change messages of")
            if metadata is None:
                return found
            changed = replace(found, metadata=metadata)
            await MessageQueries(tx).update(project, changed)
            return changed

        return await self._transactions.write(change)

    async def delete(self, project: str, thread_id: str, message_id: str) -> None:
        """Take a message out of its thread. Raises ThreadNotFound, MessageNotFound, ThreadBusy."""

        async def drop(tx: Transaction) -> None:
            thread = await ThreadQueries(tx).lock(project, thread_id)
            thread.check_idle("delete messages of")
            await MessageQueries(tx).delete(project, thread_id, message_id)

        await self._transactions.write(drop)


MESSAGE: Final = ITEM_PREFIXES[Message]


class MessageAdder:
    """Adds messages within a transaction that has locked the thread, or made it."""

    def __init__(self, ids: IdSource, clock: Clock, embedding_model: str | None) -> None:
        """`embedding_model` None: the installation has none, and no file can be searched."""
        self._ids = ids
        self._clock = clock
        self._stores = ToolStores(ids, clock, embedding_model)

    async def begin(
        self,
        tx: Transaction,
        project: str,
        thread: Thread,
        request: NewThread,
        path: str = "",
    ) -> Thread:
        """Keep a new thread, with the stores and the messages that are made with it.

        `path` is where in the request the thread stands. Raises what `ToolStores.create` and `add`
        do.
        """
        resources = await self._stores.create(
            tx, project, request.settings.resources, request.new_stores, path
        )
        started = replace(thread, settings=replace(request.settings, resources=resources))
        await ThreadQueries(tx).add(project, started)
        return await self.add(tx, project, started, request.messages, f"{path}messages")

    async def add(
        self,
        tx: Transaction,
        project: str,
        thread: Thread,
        messages: Sequence[NewMessage],
        path: str,
    ) -> Thread:
        """Keep checked messages at the end of the thread; the thread as it is then.

        `path` is the field that they were in. Raises FileNotFound for a file that one of them
        names, and what `ToolStores.attach` does.
        """
        now = self._clock()
        uses = [
            use
            for index, message in enumerate(messages)
            for use in message.files(f"{path}[{index}].")
        ]
        await self._check_files(tx, project, uses)
        created = [message.make(self._ids.new(MESSAGE), thread.id, now) for message in messages]
        await MessageQueries(tx).add(project, created)
        return await self._attached(tx, project, thread, created)

    async def add_one(
        self,
        tx: Transaction,
        project: str,
        thread: Thread,
        message: NewMessage,
        message_id: str,
    ) -> ThreadMessage:
        """As `add`, for the message of a request of its own, which has given it an id."""
        await self._check_files(tx, project, message.files())
        created = message.make(message_id, thread.id, self._clock())
        await MessageQueries(tx).add(project, [created])
        await self._attached(tx, project, thread, [created])
        return created

    async def _attached(
        self,
        tx: Transaction,
        project: str,
        thread: Thread,
        messages: Sequence[ThreadMessage],
    ) -> Thread:
        """The thread, kept with the store that attached files have gone into."""
        file_ids = [
            attachment.file_id
            for message in messages
            for attachment in message.attachments
            if attachment.tools
        ]
        settings = thread.settings
        names = list(dict.fromkeys(file_ids))
        resources = await self._stores.attach(tx, project, settings.resources, names)
        if resources == settings.resources:
            return thread
        changed = thread.with_settings(replace(settings, resources=resources))
        await ThreadQueries(tx).update(project, changed)
        return changed

    async def _check_files(self, tx: Transaction, project: str, uses: Iterable[FileUse]) -> None:
        """Each file once: there may be a hundred thousand uses, and this holds the thread."""
        first_uses: dict[str, str] = {}
        for field, file_id in uses:
            first_uses.setdefault(file_id, field)
        for file_id, field in first_uses.items():
            try:
                await FileQueries(tx).get(project, file_id, self._clock())
            except FileNotFound:
                raise FileNotFound(file=file_id, field=field) from None
