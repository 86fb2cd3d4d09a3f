"""Conversion of items to prompt messages."""

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


def make_call(city: str, call_id: str = "call_1") -> FunctionCall:
    """A function call."""
    return FunctionCall(call_id=call_id, name="weather", arguments=city)


def make_output(text: str, call_id: str = "call_1") -> FunctionCallOutput:
    """The output of a call."""
    return FunctionCallOutput(call_id=call_id, output=(Text(text=text),))


def prompt_calls(*contents: Content) -> list[tuple[str, list[str]]]:
    """The roles of the messages, with the arguments of their calls."""
    fields: Any = {"status": ItemStatus.COMPLETED, "created_at": datetime.now(UTC)}
    items = [Item(id=f"i{n}", content=content, **fields) for n, content in enumerate(contents)]
    return [
        (str(message.role), [call.arguments for call in message.calls])
        for message in turn_messages("", items)
    ]


def test_a_call_without_output_is_omitted() -> None:
    """Also if a model reused the id of an answered call: templates require an output."""
    question = Message(role=Role.USER, content=(Text(text="?"),))
    answered_once = [("user", []), ("assistant", ["Rome"]), ("tool", [])]

    assert prompt_calls(question, make_call("Rome"), make_output("sun")) == answered_once
    assert (
        prompt_calls(question, make_call("Rome"), make_output("sun"), make_call("Oslo"))
        == answered_once
    )
    assert prompt_calls(
        question, make_call("Rome"), make_output("sun"), make_call("Oslo"), make_output("rain")
    ) == [
        *answered_once,
        ("assistant", ["Oslo"]),
        ("tool", []),
    ]
    assert prompt_calls(
        question, make_call("Rome"), make_call("Oslo", "call_2"), make_output("rain", "call_2")
    ) == [
        ("user", []),
        ("assistant", ["Oslo"]),
        ("tool", []),
    ]
