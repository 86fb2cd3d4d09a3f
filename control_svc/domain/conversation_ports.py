"""What the use cases of conversations need from the outside."""

from typing import Protocol

from control_svc.domain.conversations import Conversation


class ConversationRepository(Protocol):
    """The rows of conversations; their items are in timelines of the same id."""

    async def add(self, project: str, conversation: Conversation) -> None:
        """Keep a new conversation."""

    async def get(self, project: str, conversation_id: str) -> Conversation:
        """Raises ConversationNotFound."""

    async def lock(self, project: str, conversation_id: str) -> Conversation:
        """As `get`; until the end of the transaction nobody else changes it or its timeline."""

    async def update(self, project: str, conversation: Conversation) -> None:
        """Keep what has changed of a locked conversation."""

    async def delete(self, project: str, conversation_id: str) -> None:
        """Forget a locked conversation; its timeline is the caller's to drop."""
