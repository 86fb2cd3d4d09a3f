"""Messages of callers into threads: at a thread's creation, by themselves, and with a run."""

from collections.abc import Sequence
from typing import Final

from control_svc.domain.ids import IdSource
from control_svc.domain.items import ITEM_PREFIXES, Message
from control_svc.domain.messages import NewMessage, ThreadMessage
from control_svc.domain.ports import Clock, Repositories
from svc_kit.errors import FileNotFound

MESSAGE: Final = ITEM_PREFIXES[Message]


class MessageAdder:
    """Adds messages within a transaction that has locked the thread, or made it."""

    def __init__(self, ids: IdSource, clock: Clock) -> None:
        self._ids = ids
        self._clock = clock

    async def add(
        self,
        repositories: Repositories,
        project: str,
        thread_id: str,
        messages: Sequence[NewMessage],
        path: str = "messages",
    ) -> list[ThreadMessage]:
        """Keep checked messages at the end of the thread; `path` is the field that they were in.

        Raises FileNotFound for a file that one of them names.
        """
        now = self._clock()
        for index, message in enumerate(messages):
            await self._check_files(repositories, project, message, f"{path}[{index}].")
        made = [message.make(self._ids.new(MESSAGE), thread_id, now) for message in messages]
        await repositories.messages.add(project, made)
        return made

    async def add_one(
        self,
        repositories: Repositories,
        project: str,
        thread_id: str,
        message: NewMessage,
        message_id: str,
    ) -> ThreadMessage:
        """As `add`, for the message of a request of its own, which has given it an id."""
        await self._check_files(repositories, project, message, "")
        made = message.make(message_id, thread_id, self._clock())
        await repositories.messages.add(project, [made])
        return made

    async def _check_files(
        self, repositories: Repositories, project: str, message: NewMessage, path: str
    ) -> None:
        for field, file_id in message.files(path):
            try:
                await repositories.files.get(project, file_id, self._clock())
            except FileNotFound:
                raise FileNotFound(file=file_id, field=field) from None
