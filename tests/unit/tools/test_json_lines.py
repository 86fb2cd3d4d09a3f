"""The layout of JSON files that people read."""

import json

from tools.json_lines import layout


def test_items_in_a_row_may_share_a_line() -> None:
    """Those with the same value of a member; others have a line each."""
    items = [{"round": 0, "a": 1}, {"round": 0, "a": 2}, {"round": 1}, {"a": 3}, {"a": 4}, 5, 5]

    text = layout({"c": items}, together="round")

    assert json.loads(text) == {"c": items}
    assert text.splitlines()[2:5] == [
        '  {"round": 0, "a": 1}, {"round": 0, "a": 2},',
        '  {"round": 1},',
        '  {"a": 3},',
    ]
    assert len(text.splitlines()) == 10


def test_a_member_or_an_item_of_one_is_a_line() -> None:
    """However deep it is; empty ones and scalars stand beside their names."""
    content = {"a": 1, "b": [], "c": [{"d": [1, 2]}, "é"], "e": {"f": {"g": None}}}

    text = layout(content)

    assert json.loads(text) == content
    assert text.splitlines() == [
        *("{", ' "a": 1,', ' "b": [],', ' "c": [', '  {"d": [1, 2]},', '  "\\u00e9"', " ],"),
        *(' "e": {', '  "f": {"g": null}', " }", "}"),
    ]
