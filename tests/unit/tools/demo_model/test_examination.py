"""The examination asks what nobody trained, and marks what comes back."""

from typing import Any

import pytest

from tools.demo_model.conversation import Call
from tools.demo_model.evaluate import Marked, body, mark, record
from tools.demo_model.examination import EXAMINATION, Item, items
from tools.demo_model.skills.stories import THE_END
from tools.demo_model.split import is_held_out


def a_reply(
    content: str | None = None, calls: tuple[tuple[str, str], ...] = (), **more: Any
) -> Any:
    """A chat completion as the API sends it."""
    message = {
        "content": content,
        "tool_calls": [{"function": {"name": name, "arguments": text}} for name, text in calls],
        **more,
    }
    return {"choices": [{"message": message}], "usage": {"completion_tokens": 250}}


@pytest.mark.parametrize("skill", EXAMINATION)
def test_items_repeat_and_have_an_answer(skill: str) -> None:
    """The same items every time; a longer examination begins with the shorter one."""
    first = items(skill, 3)

    assert items(skill, 4)[:3] == first
    assert all(item.content or item.calls or item.story_about for item in first)
    assert all(item.messages[-1]["role"] in {"user", "tool"} for item in first)
    assert all(is_held_out(item.key) for item in first)


def test_an_answer_is_right_to_the_letter() -> None:
    """Almost right is wrong, and so is a call where an answer was due."""
    item = Item("facts", [], content="Paris.")

    assert mark(item, a_reply("Paris.")).right
    assert not mark(item, a_reply("paris.")).right
    assert not mark(item, a_reply("Paris.", (("f", "{}"),))).right


def test_a_call_is_right_with_its_name_and_values() -> None:
    """The order of the arguments does not matter; their types do."""
    item = Item("tool_call", [], calls=(Call("f", {"a": 1, "b": "x"}),))

    assert mark(item, a_reply(None, (("f", '{"b": "x", "a": 1}'),))).right
    assert not mark(item, a_reply(None, (("f", '{"b": "x", "a": "1"}'),))).right
    assert not mark(item, a_reply(None, (("f", "{"),))).right
    assert not mark(item, a_reply("Well.", (("f", '{"b": "x", "a": 1}'),))).right


def test_a_thought_is_part_of_a_thinking_answer() -> None:
    """An answer under thinking has reasoning of its own."""
    item = Item("think_sum", [], content="4", thinking=True)

    assert mark(item, a_reply("4", reasoning_content="2 + 2")).right
    assert not mark(item, a_reply("4")).right
    unasked = Item("no_think", [], content="4", thinking=False)
    assert not mark(unasked, a_reply("4", reasoning_content="2 + 2")).right
    assert body(item)["enable_thinking"] is True


def test_a_story_is_long_has_its_hero_and_ends() -> None:
    """Its words are free."""
    item = Item("story", [], story_about="Rolo")

    assert mark(item, a_reply(f"Rolo. {THE_END}")).right
    assert not mark(item, a_reply(f"Somebody. {THE_END}")).right
    assert not mark(item, a_reply("Rolo")).right
    short = a_reply(f"Rolo. {THE_END}") | {"usage": {"completion_tokens": 199}}
    assert not mark(item, short).right


def test_marks_are_kept_item_by_item() -> None:
    """So that a part of the examination can be compared with its record."""
    marked = [Marked(Item(skill, []), right, "") for skill, right in (("a", True), ("a", False))]

    assert record(marked) == {"a": "10"}
