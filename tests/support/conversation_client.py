"""A caller of ConversationService."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from corral.control.v1 import conversation_pb2, item_pb2
from corral.control.v1 import conversation_service_pb2 as pb
from corral.control.v1.conversation_service_pb2_grpc import ConversationServiceStub

from svc_kit.rpc.client import translate_errors
from tests.support.control import Client

if TYPE_CHECKING:  # stubs over an aio channel have names for type checkers only
    from corral.control.v1.conversation_service_pb2_grpc import ConversationServiceAsyncStub


def a_message(
    text: str, role: item_pb2.ItemRole = item_pb2.ITEM_ROLE_USER, **image: str
) -> item_pb2.Item:
    """A message with a text, and with an image where one is described."""
    parts = [item_pb2.ItemPart(text=item_pb2.TextPart(text=text))]
    if image:
        parts.append(item_pb2.ItemPart(image=item_pb2.ImagePart(**image)))
    return item_pb2.Item(message=item_pb2.MessageItem(role=role, parts=parts))


def text_of(item: item_pb2.Item) -> str:
    """The text of a message."""
    return "".join(part.text.text for part in item.message.parts)


@dataclass(frozen=True)
class ConversationClient:
    """The service as one project's caller sees it; failures are our errors."""

    client: Client

    @property
    def stub(self) -> "ConversationServiceAsyncStub":
        """The service, bare."""
        return ConversationServiceStub(self.client.channel)

    async def create(self, *items: item_pb2.Item, **request: Any) -> conversation_pb2.Conversation:
        """A conversation that begins with items."""
        asked = pb.CreateConversationRequest(items=items, **request)
        with translate_errors():
            answer = await self.stub.CreateConversation(asked, metadata=self.client.metadata)
        return answer.conversation

    async def get(self, conversation_id: str) -> conversation_pb2.Conversation:
        """One conversation."""
        asked = pb.GetConversationRequest(conversation_id=conversation_id)
        with translate_errors():
            answer = await self.stub.GetConversation(asked, metadata=self.client.metadata)
        return answer.conversation

    async def update(
        self, conversation_id: str, metadata: dict[str, str]
    ) -> conversation_pb2.Conversation:
        """Attach something else."""
        asked = pb.UpdateConversationRequest(conversation_id=conversation_id, metadata=metadata)
        with translate_errors():
            answer = await self.stub.UpdateConversation(asked, metadata=self.client.metadata)
        return answer.conversation

    async def delete(self, conversation_id: str) -> None:
        """Forget one."""
        asked = pb.DeleteConversationRequest(conversation_id=conversation_id)
        with translate_errors():
            await self.stub.DeleteConversation(asked, metadata=self.client.metadata)

    async def add(
        self, conversation_id: str, *items: item_pb2.Item, **request: Any
    ) -> list[item_pb2.Item]:
        """Add items."""
        asked = pb.CreateConversationItemsRequest(
            conversation_id=conversation_id, items=items, **request
        )
        with translate_errors():
            answer = await self.stub.CreateConversationItems(asked, metadata=self.client.metadata)
        return list(answer.items)

    async def item(self, conversation_id: str, item_id: str, **request: Any) -> item_pb2.Item:
        """One item."""
        asked = pb.GetConversationItemRequest(
            conversation_id=conversation_id, item_id=item_id, **request
        )
        with translate_errors():
            answer = await self.stub.GetConversationItem(asked, metadata=self.client.metadata)
        return answer.item

    async def page(self, conversation_id: str, **request: Any) -> pb.ListConversationItemsResponse:
        """A page of items."""
        asked = pb.ListConversationItemsRequest(conversation_id=conversation_id, **request)
        with translate_errors():
            return await self.stub.ListConversationItems(asked, metadata=self.client.metadata)

    async def items(self, conversation_id: str, **request: Any) -> list[item_pb2.Item]:
        """The items of a page."""
        return list((await self.page(conversation_id, **request)).items)

    async def remove(self, conversation_id: str, item_id: str) -> conversation_pb2.Conversation:
        """Take an item out."""
        asked = pb.DeleteConversationItemRequest(conversation_id=conversation_id, item_id=item_id)
        with translate_errors():
            answer = await self.stub.DeleteConversationItem(asked, metadata=self.client.metadata)
        return answer.conversation
