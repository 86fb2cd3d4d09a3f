"""A client of ConversationService."""

from typing import Any

from corral.control.v1 import conversation_pb2, item_pb2
from corral.control.v1 import conversation_service_pb2 as pb
from corral.control.v1.conversation_service_pb2_grpc import ConversationServiceStub

from tests.support.control import Client


def make_message(
    text: str, role: item_pb2.ItemRole = item_pb2.ITEM_ROLE_USER, **image: str
) -> item_pb2.Item:
    parts = [item_pb2.ItemPart(text=item_pb2.TextPart(text=text))]
    if image:
        parts.append(item_pb2.ItemPart(image=item_pb2.ImagePart(**image)))
    return item_pb2.Item(message=item_pb2.MessageItem(role=role, parts=parts))


def get_item_text(item: item_pb2.Item) -> str:
    return "".join(part.text.text for part in item.message.parts)


class ConversationClient:
    """ConversationService as one project sees it; calls raise DomainError."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.stub = ConversationServiceStub(client.channel)

    async def create(self, *items: item_pb2.Item, **fields: Any) -> conversation_pb2.Conversation:
        request = pb.CreateConversationRequest(items=items, **fields)
        return (await self.client.call(self.stub.CreateConversation, request)).conversation

    async def get(self, conversation_id: str) -> conversation_pb2.Conversation:
        request = pb.GetConversationRequest(conversation_id=conversation_id)
        return (await self.client.call(self.stub.GetConversation, request)).conversation

    async def update(
        self, conversation_id: str, metadata: dict[str, str]
    ) -> conversation_pb2.Conversation:
        request = pb.UpdateConversationRequest(conversation_id=conversation_id, metadata=metadata)
        return (await self.client.call(self.stub.UpdateConversation, request)).conversation

    async def delete(self, conversation_id: str) -> None:
        request = pb.DeleteConversationRequest(conversation_id=conversation_id)
        await self.client.call(self.stub.DeleteConversation, request)

    async def add(
        self, conversation_id: str, *items: item_pb2.Item, **fields: Any
    ) -> list[item_pb2.Item]:
        request = pb.CreateConversationItemsRequest(
            conversation_id=conversation_id, items=items, **fields
        )
        return list((await self.client.call(self.stub.CreateConversationItems, request)).items)

    async def item(self, conversation_id: str, item_id: str, **fields: Any) -> item_pb2.Item:
        request = pb.GetConversationItemRequest(
            conversation_id=conversation_id, item_id=item_id, **fields
        )
        return (await self.client.call(self.stub.GetConversationItem, request)).item

    async def page(self, conversation_id: str, **fields: Any) -> pb.ListConversationItemsResponse:
        request = pb.ListConversationItemsRequest(conversation_id=conversation_id, **fields)
        return await self.client.call(self.stub.ListConversationItems, request)

    async def items(self, conversation_id: str, **fields: Any) -> list[item_pb2.Item]:
        return list((await self.page(conversation_id, **fields)).items)

    async def remove(self, conversation_id: str, item_id: str) -> conversation_pb2.Conversation:
        request = pb.DeleteConversationItemRequest(conversation_id=conversation_id, item_id=item_id)
        return (await self.client.call(self.stub.DeleteConversationItem, request)).conversation
