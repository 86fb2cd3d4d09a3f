"""Chats that lose their oldest turns when they are too long for the model's context."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

from corral.inference.v1 import chat_pb2, inference_service_pb2

from gateway.rpc import InferenceClient
from svc_kit.errors import ContextLengthExceeded, DomainError

Conversation = inference_service_pb2.Conversation


class ShortenedChat:
    """The call of a chat (`Calls`). If it is too long, it is repeated without the oldest turns.

    System messages and the last turn stay. A turn is dropped with the results of its tools.
    """

    def __init__(
        self, inference: InferenceClient, request: inference_service_pb2.ChatRequest
    ) -> None:
        self._inference = inference
        self._request = request
        self._call = self._start()
        self._stopped: DomainError | None = None

    async def open(self) -> None:
        """Wait until the call is accepted. Raises ContextLengthExceeded if the last turn alone is
        too long."""
        try:
            await self._call.open()
            return
        except ContextLengthExceeded as error:
            conversation = await self._shorten(error.context_tokens)
            if conversation is None:
                raise
        if self._stopped is not None:
            raise self._stopped
        self._request.conversation.CopyFrom(conversation)
        self._call = self._start()
        await self._call.open()

    def __aiter__(self) -> AsyncIterator[tuple[int, Any]]:
        """As `Calls`."""
        return aiter(self._call)

    @property
    def first(self) -> Any:
        """As `Calls`."""
        return self._call.first

    def stop(self, error: DomainError) -> None:
        """As `Calls`."""
        self._stopped = error
        self._call.stop(error)

    def _start(self) -> Any:
        return self._inference.generate(self._inference.methods.Chat, [self._request])

    async def _shorten(self, context_tokens: int) -> Conversation | None:
        """The conversation with as many of its turns as leave space for a token; None if the last
        turn is too long."""
        conversation = self._request.conversation
        starts = turn_starts(conversation.messages)
        low, high = 0, len(starts)  # the first turn that may stay is in starts[low:high]
        shortest = None
        while low < high:
            middle = (low + high) // 2
            shortened = without_turns(conversation, starts[middle])
            if await self._count(shortened) < context_tokens:
                shortest, high = shortened, middle
            else:
                low = middle + 1
        return shortest

    async def _count(self, conversation: Conversation) -> int:
        request = inference_service_pb2.CountTokensRequest(
            model=self._request.model, conversation=conversation
        )
        reply = await self._inference.call(self._inference.methods.CountTokens, request)
        return reply.prompt_tokens


def turn_starts(messages: Sequence[chat_pb2.ChatMessage]) -> list[int]:
    """Where turns begin, without the first: at each message that is neither a system message nor
    the result of a tool."""
    others = (chat_pb2.ROLE_SYSTEM, chat_pb2.ROLE_DEVELOPER, chat_pb2.ROLE_TOOL)
    return [index for index, each in enumerate(messages) if each.role not in others][1:]


def without_turns(conversation: Conversation, start: int) -> Conversation:
    """A conversation without the turns before the message `start`."""
    shortened, system = Conversation(), (chat_pb2.ROLE_SYSTEM, chat_pb2.ROLE_DEVELOPER)
    shortened.CopyFrom(conversation)
    del shortened.messages[:]
    shortened.messages.extend(
        message
        for index, message in enumerate(conversation.messages)
        if index >= start or message.role in system
    )
    return shortened
