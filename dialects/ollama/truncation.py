"""Chats that lose their oldest turns when they are too long for the model's context.

System messages and the last turn stay. A turn is dropped with the results of its tools.
"""

from collections.abc import Awaitable, Callable, Sequence

from corral.inference.v1 import chat_pb2, inference_service_pb2

Conversation = inference_service_pb2.Conversation
CountTokens = Callable[
    [inference_service_pb2.CountTokensRequest],
    Awaitable[inference_service_pb2.CountTokensResponse],
]


async def shorten(
    request: inference_service_pb2.ChatRequest, context_tokens: int, count: CountTokens
) -> bool:
    """Drop as few of the oldest turns as leave space for a token; False if the last turn alone is
    too long."""
    conversation = request.conversation
    starts = turn_starts(conversation.messages)
    low, high = 0, len(starts)  # the first turn that may stay is in starts[low:high]
    shortest = None
    while low < high:
        middle = (low + high) // 2
        shortened = without_turns(conversation, starts[middle])
        counted = await count(
            inference_service_pb2.CountTokensRequest(model=request.model, conversation=shortened)
        )
        if counted.prompt_tokens < context_tokens:
            shortest, high = shortened, middle
        else:
            low = middle + 1
    if shortest is not None:
        conversation.CopyFrom(shortest)
    return shortest is not None


def turn_starts(messages: Sequence[chat_pb2.ChatMessage]) -> list[int]:
    """Where turns begin, without the first: at each message that is neither a system message nor
    the result of a tool."""
    others = (chat_pb2.ROLE_SYSTEM, chat_pb2.ROLE_DEVELOPER, chat_pb2.ROLE_TOOL)
    return [index for index, each in enumerate(messages) if each.role not in others][1:]


def without_turns(conversation: Conversation, start: int) -> Conversation:
    """A conversation without the turns before the message `start`, and without the results of their
    calls, which may come later."""
    shortened, system = Conversation(), (chat_pb2.ROLE_SYSTEM, chat_pb2.ROLE_DEVELOPER)
    shortened.CopyFrom(conversation)
    del shortened.messages[:]
    dropped: set[str] = set()
    for index, message in enumerate(conversation.messages):
        if index < start and message.role not in system:
            dropped.update(call.id for call in message.tool_calls)
            dropped.discard(message.tool_call_id)
        elif message.tool_call_id in dropped:
            dropped.discard(message.tool_call_id)
        else:
            shortened.messages.append(message)
    return shortened
