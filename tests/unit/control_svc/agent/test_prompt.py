"""What a model is shown of items."""

from datetime import UTC, datetime
from typing import Any

from control_svc.agent.prompt import turn_messages
from control_svc.items.model import (
    Content,
    FunctionCall,
    FunctionCallOutput,
    Item,
    ItemStatus,
    Message,
    Role,
    Text,
)


def a_call(city: str, call_id: str = "call_1") -> FunctionCall:
    """A call of the one function."""
    return FunctionCall(call_id=call_id, name="weather", arguments=city)


def an_answer(text: str, call_id: str = "call_1") -> FunctionCallOutput:
    """What a call gave."""
    return FunctionCallOutput(call_id=call_id, output=(Text(text=text),))


def shown(*contents: Content) -> list[tuple[str, list[str]]]:
    """The roles of the messages, with the arguments of their calls."""
    made: Any = {"status": ItemStatus.COMPLETED, "created_at": datetime.now(UTC)}
    items = [Item(id=f"i{n}", content=content, **made) for n, content in enumerate(contents)]
    return [
        (str(message.role), [call.arguments for call in message.calls])
        for message in turn_messages("", items)
    ]


def test_a_call_that_was_not_answered_is_left_out() -> None:
    """Also where a model wrote the id of one again that was: no template takes a call without what
    it gave."""
    asked = Message(role=Role.USER, content=(Text(text="?"),))
    once = [("user", []), ("assistant", ["Rome"]), ("tool", [])]

    assert shown(asked, a_call("Rome"), an_answer("sun")) == once
    assert shown(asked, a_call("Rome"), an_answer("sun"), a_call("Oslo")) == once
    assert shown(asked, a_call("Rome"), an_answer("sun"), a_call("Oslo"), an_answer("rain")) == [
        *once,
        ("assistant", ["Oslo"]),
        ("tool", []),
    ]
    assert shown(asked, a_call("Rome"), a_call("Oslo", "call_2"), an_answer("rain", "call_2")) == [
        ("user", []),
        ("assistant", ["Oslo"]),
        ("tool", []),
    ]
