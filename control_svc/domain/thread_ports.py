"""What the use cases of assistants, threads and messages need from the outside."""

from collections.abc import Sequence
from typing import Protocol

from control_svc.domain.assistants import Assistant
from control_svc.domain.listing import Window
from control_svc.domain.messages import ThreadMessage
from control_svc.domain.threads import Thread


class AssistantRepository(Protocol):
    """The rows of assistants."""

    async def add(self, project: str, assistant: Assistant) -> None:
        """Keep a new assistant."""

    async def get(self, project: str, assistant_id: str) -> Assistant:
        """Raises AssistantNotFound."""

    async def lock(self, project: str, assistant_id: str) -> Assistant:
        """As `get`; until the end of the transaction nobody else changes the assistant."""

    async def page(self, project: str, window: Window) -> list[Assistant]:
        """The assistants of a window."""

    async def update(self, project: str, assistant: Assistant) -> None:
        """Keep what has changed of a locked assistant."""

    async def delete(self, project: str, assistant_id: str) -> None:
        """Forget an assistant. Raises AssistantNotFound."""


class ThreadRepository(Protocol):
    """The rows of threads. Who changes anything of a thread, its messages included, locks it."""

    async def add(self, project: str, thread: Thread) -> None:
        """Keep a new thread."""

    async def get(self, project: str, thread_id: str) -> Thread:
        """Raises ThreadNotFound."""

    async def lock(self, project: str, thread_id: str) -> Thread:
        """As `get`; until the end of the transaction nobody else changes the thread."""

    async def page(self, project: str, window: Window) -> list[Thread]:
        """The threads of a window."""

    async def update(self, project: str, thread: Thread) -> None:
        """Keep what has changed of a locked thread."""

    async def delete(self, project: str, thread_id: str) -> None:
        """Forget a locked thread and its timeline, and with it every row that hangs on it."""


class MessageRepository(Protocol):
    """The messages of threads: items of their timelines, and a row for each."""

    async def add(self, project: str, messages: Sequence[ThreadMessage]) -> None:
        """Keep new messages at the end of their thread's timeline, one thread's at a time.

        Those that a run writes have its id as their origin there.
        """

    async def get(self, project: str, thread_id: str, message_id: str) -> ThreadMessage:
        """Raises MessageNotFound."""

    async def page(
        self, project: str, thread_id: str, window: Window, run_id: str = ""
    ) -> list[ThreadMessage]:
        """The messages of a window; `run_id` empty: by whomever."""

    async def of_run(self, project: str, thread_id: str, run_id: str) -> list[ThreadMessage]:
        """The messages that a run has written, in order."""

    async def update(self, project: str, message: ThreadMessage) -> None:
        """Keep what has changed of a message, its content included."""

    async def delete(self, project: str, thread_id: str, message_id: str) -> None:
        """Take a message out of its thread. Raises MessageNotFound."""
