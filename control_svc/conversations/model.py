"""Conversations: lists of items that responses continue and append to.

The row of a conversation is the lock of its timeline. While a response is in progress, the row
contains its id and the items cannot be changed by others.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from control_svc.items.input_items import InputItem, check_items
from svc_kit.errors import ConversationLocked


@dataclass(frozen=True, kw_only=True)
class Conversation:
    id: str
    created_at: datetime
    metadata: Mapping[str, str] = field(default_factory=dict)
    writer: str = ""
    """Id of the response in progress that will append items; empty if there is none."""

    def check_unlocked(self) -> None:
        """Raises ConversationLocked."""
        if self.writer:
            raise ConversationLocked(conversation=self.id, response=self.writer)

    def claimed_by(self, response_id: str) -> "Conversation":
        """The conversation, locked by a response. Raises ConversationLocked."""
        if self.writer != response_id:
            self.check_unlocked()
        return replace(self, writer=response_id)

    def released_by(self, response_id: str) -> "Conversation":
        """The conversation without the lock of this response; the lock of another one stays."""
        return replace(self, writer="") if self.writer == response_id else self


@dataclass(frozen=True, kw_only=True)
class NewConversation:
    items: tuple[InputItem, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    request_id: str = ""

    def check(self) -> None:
        """Raises MissingField, InvalidField or TooLong."""
        check_items(self.items, "items")


@dataclass(frozen=True, kw_only=True)
class NewItems:
    conversation_id: str
    items: tuple[InputItem, ...]
    request_id: str = ""
