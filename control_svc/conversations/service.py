"""CRUD of conversations and their items."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from corral.control.v1 import conversation_pb2
from corral.control.v1 import conversation_service_pb2 as pb

from control_svc.base.idempotency import IdempotencyRecord, find_or_record
from control_svc.base.ids import creation_key
from control_svc.base.pagination import PAGE_BYTES
from control_svc.base.proto import changed_values, page_request
from control_svc.base.resource import MAX_PAGE, Edit, Resource
from control_svc.conversations.model import Conversation, NewConversation, NewItems
from control_svc.conversations.queries import ConversationQueries
from control_svc.db.transaction import Transaction, delete_transaction, read_transaction
from control_svc.inference.prefix_cleanup import PrefixCleanup
from control_svc.items.input_items import check_items
from control_svc.items.model import Item
from control_svc.items.proto import includes_from_pb, input_items, items_to_pb
from control_svc.items.queries import TimelineQueries
from control_svc.items.service import append_items, call_parts, open_calls, resolve_items
from svc_kit.errors import InvalidField, ItemNotFound
from svc_kit.rpc.message_mapper import MessageMapper

ADD: Final = "CreateConversationItems"
CONVERSATION: Final = MessageMapper(
    Conversation, conversation_pb2.Conversation, renamed={"writer": "writing_response_id"}
)


@dataclass(frozen=True)
class Conversations(Resource[Conversation, NewConversation]):
    service = pb.DESCRIPTOR.services_by_name["ConversationService"]
    message, queries = CONVERSATION, ConversationQueries
    noun, plural = "a conversation", "conversations"

    prefix_cleanup: PrefixCleanup

    def read_new(self, request: pb.CreateConversationRequest) -> NewConversation:
        """Raises MissingField, InvalidField or TooLong."""
        return NewConversation(
            items=input_items(request.items, "items"),
            metadata=dict(request.metadata),
            request_id=request.request_id,
        )

    async def insert(
        self, tx: Transaction, new: NewConversation, object_id: str, now: datetime
    ) -> Conversation:
        """Raises ItemNotFound, FileNotFound, ToolCallMissing or InvalidField."""
        items = await resolve_items(tx, new.items, self.ids, now, "items")
        open_calls((), call_parts(items), "items")
        created = Conversation(id=object_id, created_at=now, metadata=new.metadata)
        await ConversationQueries(tx).add(created)
        await append_items(tx, created.id, new.items, items, "items")
        return created

    def edit(self, request: pb.UpdateConversationRequest) -> Edit[Conversation]:
        """Raises InvalidField."""
        is_changed = bool(changed_values(request, "conversation_id"))
        metadata = dict(request.metadata) if is_changed else None

        async def change(_tx: Transaction, current: Conversation) -> Conversation:
            return current if metadata is None else replace(current, metadata=metadata)

        return change

    async def before_delete(self, tx: Transaction, current: Conversation) -> None:
        """Raises ConversationLocked."""
        current.check_unlocked()
        await TimelineQueries(tx).delete(current.id)
        await self.prefix_cleanup.enqueue(tx, current.id)

    async def CreateConversationItems(
        self, project: str, request: pb.CreateConversationItemsRequest
    ) -> pb.CreateConversationItemsResponse:
        """Append items.

        Raises ConversationNotFound, ConversationLocked, and the errors of Create.
        """
        include = includes_from_pb(request.include)
        new = NewItems(
            conversation_id=request.conversation_id,
            items=input_items(request.items, "items"),
            request_id=request.request_id,
        )
        check_items(new.items, "items")
        now = self.clock()

        async def add(tx: Transaction) -> Sequence[Item]:
            await _lock_for_change(tx, new.conversation_id)
            items = await resolve_items(tx, new.items, self.ids, now, "items")
            record = IdempotencyRecord.of(ADD, new.request_id, items[0].id, now, new)
            earlier = await find_or_record(tx, record)
            if earlier is not None:
                return await _items_of_request(tx, new, earlier.resource_id)
            if calls := call_parts(items):
                before = await TimelineQueries(tx).call_parts(new.conversation_id)
                open_calls(before, calls, "items")
            await append_items(tx, new.conversation_id, new.items, items, "items")
            return items

        items = await self.transactions.of(project).write(add)
        return pb.CreateConversationItemsResponse(items=items_to_pb(items, include))

    @read_transaction
    async def GetConversationItem(
        self, tx: Transaction, request: pb.GetConversationItemRequest
    ) -> pb.GetConversationItemResponse:
        """Raises InvalidField, ConversationNotFound or ItemNotFound."""
        include = includes_from_pb(request.include)
        await ConversationQueries(tx).get(request.conversation_id)
        entry = await TimelineQueries(tx).get(request.conversation_id, request.item_id)
        if entry is None:
            raise ItemNotFound(item=request.item_id)
        (item,) = items_to_pb([entry.item], include)
        return pb.GetConversationItemResponse(item=item)

    @read_transaction
    async def ListConversationItems(
        self, tx: Transaction, request: pb.ListConversationItemsRequest
    ) -> pb.ListConversationItemsResponse:
        """A page of the items. Raises ConversationNotFound, OutOfRange or InvalidField."""
        include, timeline = includes_from_pb(request.include), request.conversation_id
        wanted = page_request(request)
        if wanted.after and not creation_key(wanted.after):
            raise InvalidField(field="after", problem="it must be the id of an item")
        binding = (tx.project, "conversation items", timeline)
        window = self.tokens.window(wanted, binding, MAX_PAGE)
        await ConversationQueries(tx).get(timeline)
        entries = await TimelineQueries(tx).page(timeline, window)
        page = window.page([entry.item for entry in entries], PAGE_BYTES)
        items = items_to_pb(page.items, include)
        return pb.ListConversationItemsResponse(items=items, next_page_token=page.next_token)

    @delete_transaction
    async def DeleteConversationItem(
        self, tx: Transaction, request: pb.DeleteConversationItemRequest
    ) -> Conversation:
        """Remove an item. Raises ConversationNotFound, ConversationLocked or ItemNotFound."""
        conversation = await _lock_for_change(tx, request.conversation_id)
        if not await TimelineQueries(tx).remove(conversation.id, request.item_id):
            raise ItemNotFound(item=request.item_id)
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
