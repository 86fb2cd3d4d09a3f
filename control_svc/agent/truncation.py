"""Leaves out items of a history that does not fit into the context of a model."""

from collections.abc import Sequence
from dataclasses import replace

from control_svc.agent.prompt import turn_messages
from control_svc.inference.turn_client import TokenCounter
from control_svc.inference.turns import TurnRequest
from control_svc.items.model import Item, Message, Role
from svc_kit.errors import ContextLengthExceeded


def is_user_message(item: Item) -> bool:
    """Whether an item is a user message: chat templates expect that a prompt begins with one."""
    return isinstance(item.content, Message) and item.content.role is Role.USER


async def first_that_fits(
    counter: TokenCounter,
    request: TurnRequest,
    instructions: str,
    items: Sequence[Item],
    starts: Sequence[int],
    error: ContextLengthExceeded,
) -> int:
    """Binary search for the first of `starts` whose items fit into half of the exceeded limit, so
    that truncation is needed less often; the last start if none does.

    `starts` is ascending and not empty. `request` is that of the turn which exceeded the limit.
    """
    low, high = 0, len(starts) - 1
    while low < high:
        middle = (low + high) // 2
        messages = turn_messages(instructions, items[starts[middle] :])
        num_tokens = await counter.count(replace(request, messages=messages))
        if num_tokens <= error.context_tokens // 2:
            high = middle
        else:
            low = middle + 1
    return starts[low]
