"""The examination uses held-out questions and grades replies."""

from typing import Any

import pytest

from tools.demo_model.conversation import Call
from tools.demo_model.evaluate import GradedItem, body, grade, record
from tools.demo_model.examination import EXAMINATION, Item, items
from tools.demo_model.skills.stories import THE_END
from tools.demo_model.split import is_held_out


def make_reply(
    content: str | None = None, calls: tuple[tuple[str, str], ...] = (), **more: Any
) -> Any:
    """Return a chat completion as the API sends it."""
    message = {
        "content": content,
        "tool_calls": [{"function": {"name": name, "arguments": text}} for name, text in calls],
        **more,
    }
    return {"choices": [{"message": message}], "usage": {"completion_tokens": 250}}


@pytest.mark.parametrize("skill", EXAMINATION)
def test_items_are_deterministic_held_out_and_have_an_answer(skill: str) -> None:
    """A longer examination starts with the items of a shorter one."""
    first = items(skill, 3)

    assert items(skill, 4)[:3] == first
    assert all(item.content or item.calls or item.story_about for item in first)
    assert all(item.messages[-1]["role"] in {"user", "tool"} for item in first)
    assert all(is_held_out(item.key) for item in first)


def test_an_answer_must_match_exactly() -> None:
    """A difference in case is wrong, and so is an additional tool call."""
    item = Item("facts", [], content="Paris.")

    assert grade(item, make_reply("Paris.")).right
    assert not grade(item, make_reply("paris.")).right
    assert not grade(item, make_reply("Paris.", (("f", "{}"),))).right


def test_a_call_must_match_by_name_and_arguments() -> None:
    """The order of arguments is ignored; their types are compared."""
    item = Item("tool_call", [], calls=(Call("f", {"a": 1, "b": "x"}),))

    assert grade(item, make_reply(None, (("f", '{"b": "x", "a": 1}'),))).right
    assert not grade(item, make_reply(None, (("f", '{"b": "x", "a": "1"}'),))).right
    assert not grade(item, make_reply(None, (("f", "{"),))).right
    assert not grade(item, make_reply("Well.", (("f", '{"b": "x", "a": 1}'),))).right


def test_reasoning_must_be_present_only_if_requested() -> None:
    item = Item("think_sum", [], content="4", thinking=True)

    assert grade(item, make_reply("4", reasoning_content="2 + 2")).right
    assert not grade(item, make_reply("4")).right
    unasked = Item("no_think", [], content="4", thinking=False)
    assert not grade(unasked, make_reply("4", reasoning_content="2 + 2")).right
    assert body(item)["enable_thinking"] is True


def test_a_story_must_be_long_name_its_hero_and_end() -> None:
    """The rest of its text is not compared."""
    item = Item("story", [], story_about="Rolo")

    assert grade(item, make_reply(f"Rolo. {THE_END}")).right
    assert not grade(item, make_reply(f"Somebody. {THE_END}")).right
    assert not grade(item, make_reply("Rolo")).right
    short = make_reply(f"Rolo. {THE_END}") | {"usage": {"completion_tokens": 199}}
    assert not grade(item, short).right


def test_marks_are_recorded_item_by_item() -> None:
    """A part of the examination can be compared with the record."""
    marked = [
        GradedItem(Item(skill, []), right, "") for skill, right in (("a", True), ("a", False))
    ]

    assert record(marked) == {"a": "10"}
