"""Conversion of items to prompt messages."""

from datetime import UTC, datetime
from typing import Any

import pytest

from control_svc.agent.prompt import turn_messages
from control_svc.inference.turns import DocumentPart, ImagePart, TextPart
from control_svc.items.model import (
    Content,
    FileInput,
    FunctionCall,
    FunctionCallOutput,
    Image,
    Item,
    ItemStatus,
    Message,
    Reasoning,
    Role,
    Text,
)
from control_svc.items.service import call_parts
from control_svc.responses.compaction import check_calls
from svc_kit.errors import ToolOutputMissing


def make_call(city: str, call_id: str = "call_1") -> FunctionCall:
    return FunctionCall(call_id=call_id, name="weather", arguments=city)


def make_output(text: str, call_id: str = "call_1") -> FunctionCallOutput:
    return FunctionCallOutput(call_id=call_id, output=(Text(text=text),))


def make_items(*contents: Content) -> list[Item]:
    """Items i0, i1 and so on."""
    fields: Any = {"status": ItemStatus.COMPLETED, "created_at": datetime.now(UTC)}
    return [Item(id=f"i{n}", content=content, **fields) for n, content in enumerate(contents)]


def prompt_calls(*contents: Content) -> list[tuple[str, list[str]]]:
    return [
        (str(message.role), [call.arguments for call in message.calls])
        for message in turn_messages("", make_items(*contents))
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


def test_pictures_and_documents_keep_their_places_and_are_named_by_their_items() -> None:
    """By the name of the item or else its id; texts of an output are one text without them."""
    image, document = Image(url="https://host/x", detail="low"), FileInput(file_id="file-1")
    items = make_items(
        Message(role=Role.USER, content=(Text(text="?"), image)),
        make_call("Rome"),
        FunctionCallOutput(call_id="call_1", output=(document, Text(text="sun"))),
        Message(role=Role.ASSISTANT, content=(Image(file_id="file-2"),)),
        make_call("Oslo", "call_2"),
        FunctionCallOutput(call_id="call_2", output=(Text(text="a"), Text(text="b"))),
    )
    messages = turn_messages("Be brief", items, {"i2": "input[1]"})

    assert [message.parts for message in messages] == [
        (TextPart("Be brief"),),
        (TextPart("?"), ImagePart("i0.content[1]", url="https://host/x", detail="low")),
        (),
        (DocumentPart("input[1].output[0]", file_id="file-1"), TextPart("sun")),
        (ImagePart("i3.content[0]", file_id="file-2"),),
        (TextPart("ab"),),
    ]


def test_reasoning_between_a_call_and_its_output_is_of_the_calls_turn() -> None:
    """Also behind the output of another call."""
    question = Message(role=Role.USER, content=(Text(text="?"),))
    items = make_items(
        question,
        make_call("Rome"),
        make_call("Oslo", "call_2"),
        Reasoning(text="first "),
        make_output("sun"),
        Reasoning(text="second"),
        make_output("rain", "call_2"),
    )
    messages = turn_messages("", items)

    assert [message.reasoning for message in messages] == ["", "first second", "", ""]


def test_a_call_that_was_cut_off_is_shown_if_it_is_answered() -> None:
    """Whatever its status: clients execute what they received."""
    question = Message(role=Role.USER, content=(Text(text="?"),))
    for status in ItemStatus:
        items = make_items(question, make_call("Rome"), make_output("sun"))
        items[1] = items[1].with_content(items[1].content, status)

        assert [len(message.calls) for message in turn_messages("", items)] == [0, 1, 0]
        check_calls([], items)
        check_calls(call_parts(items[:2]), items[2:])


def test_only_a_completed_call_needs_an_output() -> None:
    """The client may not have seen the others."""
    question = Message(role=Role.USER, content=(Text(text="?"),))
    items = make_items(question, make_call("Rome"))
    with pytest.raises(ToolOutputMissing):
        check_calls(call_parts(items), [])
    items[1] = items[1].with_content(items[1].content, ItemStatus.INCOMPLETE)

    check_calls(call_parts(items), [])


def test_reasoning_behind_the_text_belongs_to_it() -> None:
    """As in the other APIs, whose messages have one text of reasoning; also where nothing follows
    since the turn was cut off."""
    text = Message(role=Role.ASSISTANT, content=(Text(text="!"),))
    question = Message(role=Role.USER, content=(Text(text="?"),))
    turn = (Reasoning(text="first "), text, Reasoning(text="second"))

    for rest, thoughts in [
        ((), ["first second"]),
        ((question,), ["first second", ""]),
        ((make_call("Rome"), question), ["first second", ""]),
        ((text,), ["first second"]),
        ((make_call("Rome"), make_output("sun")), ["first second", ""]),
    ]:
        messages = turn_messages("", make_items(*turn, *rest))
        assert [message.reasoning for message in messages] == thoughts
