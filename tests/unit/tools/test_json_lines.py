"""The layout of JSON files that people read."""

import json

from tools.json_lines import layout


def test_a_member_or_an_item_of_one_is_a_line() -> None:
    """However deep it is; empty ones and scalars stand beside their names."""
    content = {"a": 1, "b": [], "c": [{"d": [1, 2]}, "é"], "e": {"f": {"g": None}}}

    text = layout(content)

    assert json.loads(text) == content
    assert text.splitlines() == [
        *("{", ' "a": 1,', ' "b": [],', ' "c": [', '  {"d": [1, 2]},', '  "\\u00e9"', " ],"),
        *(' "e": {', '  "f": {"g": null}', " }", "}"),
    ]
