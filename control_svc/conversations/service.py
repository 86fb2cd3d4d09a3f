"""CRUD of conversations and their items."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from control_svc.base.idempotency import IdempotencyRecord, find_or_record, record_request
from control_svc.base.ids import CONVERSATION, IdSource, creation_key
from control_svc.base.pagination import PAGE_BYTES, Page, PageRequest, PageTokens
from control_svc.conversations.model import Conversation, NewConversation, NewItems
from control_svc.conversations.queries import ConversationQueries
from control_svc.db.transaction import (
    Clock,
    Transaction,
    Transactions,
    delete_transaction,
    read_transaction,
    write_transaction,
)
from control_svc.inference.prefix_cleanup import PrefixCleanup
from control_svc.items.model import Item
from control_svc.items.queries import TimelineQueries
from control_svc.items.service import append_items, call_parts, open_calls, resolve_items
from svc_kit.errors import InvalidField, ItemNotFound

CREATE: Final = "CreateConversation"
ADD: Final = "CreateConversationItems"
MAX_PAGE: Final = 100


@dataclass(frozen=True)
class Conversations:
    """Operations on conversations."""

    transactions: Transactions
    ids: IdSource
    tokens: PageTokens
    clock: Clock
    prefix_cleanup: PrefixCleanup

    async def create(self, project: str, new: NewConversation) -> Conversation:
        """Create a conversation with its first items.

        Raises MissingField, InvalidField, TooLong, ItemNotFound, FileNotFound, ToolCallMissing or
        RequestIdReused.
        """
        new.check()
        now = self.clock()
        created = Conversation(id=self.ids.new(CONVERSATION), created_at=now, metadata=new.metadata)
        request = IdempotencyRecord.of(CREATE, new.request_id, created.id, now, new)

        async def add(tx: Transaction) -> Conversation:
            first = await record_request(tx, request)
            if first != created.id:
                return await ConversationQueries(tx).get(first)
            items = await resolve_items(tx, new.items, self.ids, now, "items")
            open_calls((), call_parts(items), "items")
            await ConversationQueries(tx).add(created)
            await append_items(tx, created.id, new.items, items, "items")
            return created

        return await self.transactions.of(project).write(add)

    @read_transaction
    async def get(self, tx: Transaction, conversation_id: str) -> Conversation:
        """Raises ConversationNotFound."""
        return await ConversationQueries(tx).get(conversation_id)

    @read_transaction
    async def page(self, tx: Transaction, page_request: PageRequest) -> Page[Conversation]:
        """A page of the project's conversations. Raises OutOfRange or InvalidField."""
        page_request.check_cursors(CONVERSATION, "a conversation")
        window = self.tokens.window(page_request, (tx.project, "conversations"), MAX_PAGE)
        return window.page(await ConversationQueries(tx).page(window))

    @write_transaction
    async def update(
        self, tx: Transaction, conversation_id: str, metadata: Mapping[str, str] | None
    ) -> Conversation:
        """Replace the metadata, unless None. Raises ConversationNotFound, MissingField or
        TooLong."""
        conversation = await ConversationQueries(tx).lock(conversation_id)
        if metadata is None:
            return conversation
        changed = replace(conversation, metadata=metadata)
        await ConversationQueries(tx).update(changed)
        return changed

    @delete_transaction
    async def delete(self, tx: Transaction, conversation_id: str) -> None:
        """Delete a conversation. Raises ConversationNotFound or ConversationLocked."""
        await _lock_for_change(tx, conversation_id)
        await TimelineQueries(tx).delete(conversation_id)
        await ConversationQueries(tx).delete(conversation_id)
        await self.prefix_cleanup.enqueue(tx, conversation_id)

    async def add_items(self, project: str, new: NewItems) -> Sequence[Item]:
        """Append items.

        Raises ConversationNotFound, ConversationLocked, and the errors of `create`.
        """
        new.check()
        now = self.clock()

        async def add(tx: Transaction) -> Sequence[Item]:
            await _lock_for_change(tx, new.conversation_id)
            items = await resolve_items(tx, new.items, self.ids, now, "items")
            request = IdempotencyRecord.of(ADD, new.request_id, items[0].id, now, new)
            earlier = await find_or_record(tx, request)
            if earlier is not None:
                return await _items_of_request(tx, new, earlier.resource_id)
            if calls := call_parts(items):
                before = await TimelineQueries(tx).call_parts(new.conversation_id)
                open_calls(before, calls, "items")
            await append_items(tx, new.conversation_id, new.items, items, "items")
            return items

        return await self.transactions.of(project).write(add)

    @read_transaction
    async def get_item(self, tx: Transaction, conversation_id: str, item_id: str) -> Item:
        """Raises ConversationNotFound or ItemNotFound."""
        await ConversationQueries(tx).get(conversation_id)
        entry = await TimelineQueries(tx).get(conversation_id, item_id)
        if entry is None:
            raise ItemNotFound(item=item_id)
        return entry.item

    @read_transaction
    async def items(
        self, tx: Transaction, conversation_id: str, page_request: PageRequest
    ) -> Page[Item]:
        """A page of the items. Raises ConversationNotFound, OutOfRange or InvalidField."""
        if page_request.after and not creation_key(page_request.after):
            raise InvalidField(field="after", problem="it must be the id of an item")
        binding = (tx.project, "conversation items", conversation_id)
        window = self.tokens.window(page_request, binding, MAX_PAGE)
        await ConversationQueries(tx).get(conversation_id)
        entries = await TimelineQueries(tx).page(conversation_id, window)
        return window.page([entry.item for entry in entries], PAGE_BYTES)

    @delete_transaction
    async def remove_item(
        self, tx: Transaction, conversation_id: str, item_id: str
    ) -> Conversation:
        """Remove an item. Raises ConversationNotFound, ConversationLocked or ItemNotFound."""
        conversation = await _lock_for_change(tx, conversation_id)
        if not await TimelineQueries(tx).remove(conversation_id, item_id):
            raise ItemNotFound(item=item_id)
        return conversation


async def _lock_for_change(tx: Transaction, conversation_id: str) -> Conversation:
    """Lock the row. Raises ConversationLocked while a response is in progress."""
    conversation = await ConversationQueries(tx).lock(conversation_id)
    conversation.check_unlocked()
    return conversation


async def _items_of_request(tx: Transaction, request: NewItems, first_id: str) -> list[Item]:
    """The remaining items that an earlier request added. Raises ItemNotFound if its first one is
    gone."""
    timeline = request.conversation_id
    first = await TimelineQueries(tx).get(timeline, first_id)
    if first is None:
        raise ItemNotFound(item=first_id)
    end = first.position + len(request.items)
    entries = await TimelineQueries(tx).read(timeline, first.position)
    return [entry.item for entry in entries if entry.position < end]
