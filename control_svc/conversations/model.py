"""Conversations: pasts that responses go on from and add to.

A conversation's row is the lock of its timeline. While a response is answering, its id stands in
the row, and nobody else changes the items: what the model was asked and what it said belong
together.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from control_svc.base.validation import check_metadata, check_request_id
from control_svc.items.input_items import InputItem
from svc_kit.errors import ConversationLocked, MissingField, TooLong

MAX_NEW_ITEMS: Final = 20
"""How many items one request may add, as at OpenAI."""


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """A conversation as it is stored."""

    id: str
    created_at: datetime
    metadata: Mapping[str, str] = field(default_factory=dict)
    writer: str = ""
    """The response that is going to add to it; empty: none."""

    def check_free(self) -> None:
        """Raises ConversationLocked."""
        if self.writer:
            raise ConversationLocked(conversation=self.id, response=self.writer)

    def claimed_by(self, response_id: str) -> "Conversation":
        """The conversation while a response answers. Raises ConversationLocked."""
        if self.writer != response_id:
            self.check_free()
        return replace(self, writer=response_id)

    def released_by(self, response_id: str) -> "Conversation":
        """The conversation once that response has ended; another one's hold stays."""
        return replace(self, writer="") if self.writer == response_id else self


@dataclass(frozen=True, kw_only=True)
class NewConversation:
    """What a caller asks for."""

    items: tuple[InputItem, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    request_id: str = ""

    def check(self) -> None:
        """Raises MissingField, InvalidField or TooLong."""
        check_new_items(self.items)
        check_metadata(self.metadata)
        check_request_id(self.request_id)


@dataclass(frozen=True, kw_only=True)
class NewItems:
    """What a caller adds to a conversation."""

    conversation_id: str
    items: tuple[InputItem, ...]
    request_id: str = ""

    def check(self) -> None:
        """Raises MissingField, InvalidField or TooLong."""
        if not self.items:
            raise MissingField(field="items")
        check_new_items(self.items)
        check_request_id(self.request_id)


def check_new_items(items: tuple[InputItem, ...]) -> None:
    """Raises MissingField, InvalidField or TooLong."""
    if len(items) > MAX_NEW_ITEMS:
        raise TooLong(field="items", length=len(items), limit=MAX_NEW_ITEMS)
    for index, item in enumerate(items):
        item.check(f"items[{index}]")
