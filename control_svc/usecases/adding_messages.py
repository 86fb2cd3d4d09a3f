"""Threads of callers, and messages into them: with a thread, by themselves, and with a run."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from control_svc.domain.ids import IdSource
from control_svc.domain.items import ITEM_PREFIXES, Message
from control_svc.domain.messages import FileUse, NewMessage, ThreadMessage
from control_svc.domain.ports import Clock
from control_svc.domain.threads import NewThread, Thread
from control_svc.storage.repositories.files import SqlFiles
from control_svc.storage.repositories.messages import SqlMessages
from control_svc.storage.repositories.threads import SqlThreads
from control_svc.storage.unit_of_work import Transaction
from control_svc.usecases.tool_stores import ToolStores
from svc_kit.errors import FileNotFound

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
        asked: NewThread,
        path: str = "",
    ) -> Thread:
        """Keep a new thread, with the stores and the messages that are made with it.

        `path` is where in the request the thread stands. Raises what `ToolStores.made` and `add`
        do.
        """
        resources = await self._stores.made(
            tx, project, asked.settings.resources, asked.new_stores, path
        )
        begun = replace(thread, settings=replace(asked.settings, resources=resources))
        await SqlThreads(tx).add(project, begun)
        return await self.add(tx, project, begun, asked.messages, f"{path}messages")

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
        made = [message.make(self._ids.new(MESSAGE), thread.id, now) for message in messages]
        await SqlMessages(tx).add(project, made)
        return await self._attached(tx, project, thread, made)

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
        made = message.make(message_id, thread.id, self._clock())
        await SqlMessages(tx).add(project, [made])
        await self._attached(tx, project, thread, [made])
        return made

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
        changed = await self._stores.attach(tx, project, thread, list(dict.fromkeys(file_ids)))
        if changed != thread:
            await SqlThreads(tx).update(project, changed)
        return changed

    async def _check_files(self, tx: Transaction, project: str, uses: Iterable[FileUse]) -> None:
        """Each file once: there may be a hundred thousand uses, and this holds the thread."""
        first_uses: dict[str, str] = {}
        for field, file_id in uses:
            first_uses.setdefault(file_id, field)
        for file_id, field in first_uses.items():
            try:
                await SqlFiles(tx).get(project, file_id, self._clock())
            except FileNotFound:
                raise FileNotFound(file=file_id, field=field) from None
