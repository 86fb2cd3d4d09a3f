"""Which field of a request is at a place of its prompt.

The prompt is rendered once more with marks, random digits that templates copy, around the texts of
messages and before the names of tools and calls. A field is only named if the prompt up to the
place is the same without the marks, which it is not if a template trims or compares a text there.
"""

import re
import secrets
from bisect import bisect_right
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from inference_svc.chat.conversation import Conversation

_SECRET_DIGITS: Final = 36
_NUMBER_DIGITS: Final = 6
_END: Final = "1"
_TEXT: Final = re.compile(r"(\s*)(.*\S)(\s*)", re.DOTALL)
"""Templates trim texts, so marks are within the spaces around them."""


class _Place(NamedTuple):
    """A field, and the spaces before and after its text."""

    field: str
    before: str = ""
    after: str = ""


class _Region(NamedTuple):
    """Where the text of a field is. It has no `end` if that is not marked."""

    begin: int
    end: int | None
    field: str


class PlaceMarks:
    """The marks of one rendering."""

    def __init__(self) -> None:
        number = secrets.randbelow(10**_SECRET_DIGITS)
        self._secret = f"{number:0{_SECRET_DIGITS}}"
        self._places: list[_Place] = []

    def mark(self, variables: Mapping[str, Any], conversation: Conversation) -> dict[str, Any]:
        """The variables of a template with marks in copies of messages and tools. A message is
        missing in them if it is a thought that the model continues."""
        messages = [
            self._marked_message(variable, f"messages[{message.position}]")
            for message, variable in zip(conversation.messages, variables["messages"], strict=False)
        ]
        tools = [
            self._marked_function(tool, f"tools[{number}]")
            for (number, _), tool in zip(
                conversation.offered_tools, variables["tools"] or (), strict=True
            )
        ]
        return {**variables, "messages": messages, "tools": tools or None}

    def find(self, marked: str, text: str, offset: int) -> str:
        """The field at a character of a prompt, `text`, which with marks was rendered to `marked`:
        the one in whose text it is, else that of the next text, whose role or markup it is. Empty
        if it is not known."""
        plain, regions = self._split(marked)
        if not regions or plain[:offset] != text[:offset]:
            return ""
        index = bisect_right(regions, offset, key=lambda region: region.begin)
        region = regions[max(index - 1, 0)]
        if region.end is not None and region.end < offset and index < len(regions):
            region = regions[index]
        return region.field

    def _split(self, marked: str) -> tuple[str, list[_Region]]:
        """The text without marks, and the regions in order."""
        first, *others = marked.split(self._secret)
        texts, regions, length = [first], list[_Region](), len(first)
        for each in others:
            place = self._places[int(each[:_NUMBER_DIGITS])]
            kind, text = each[_NUMBER_DIGITS], each[_NUMBER_DIGITS + 1 :]
            if kind != _END:
                begin = length - (len(place.before) if texts[-1].endswith(place.before) else 0)
                regions.append(_Region(begin, None, place.field))
            elif regions and regions[-1].field == place.field:
                end = length + (len(place.after) if text.startswith(place.after) else 0)
                regions[-1] = regions[-1]._replace(end=end)
            texts.append(text)
            length += len(text)
        return "".join(texts), regions

    def _around(self, text: str, field: str, *, is_open: bool = False) -> str:
        """The text with marks around it, or only before it if `is_open`; none if it is empty."""
        found = _TEXT.fullmatch(text)
        if found is None:
            return text
        before, inner, after = found.groups()
        number = f"{self._secret}{len(self._places):0{_NUMBER_DIGITS}}"
        self._places.append(_Place(field, before, after))
        return f"{before}{number}0{inner}{'' if is_open else number + _END}{after}"

    def _marked_message(self, variable: dict[str, Any], path: str) -> dict[str, Any]:
        marked = dict(variable)
        for name in ("reasoning_content", "thinking"):
            if name in marked:
                marked[name] = self._around(marked[name], f"{path}.reasoning_content")
        if texts := marked.get("parts"):
            marked["parts"] = [self._around(text, f"{path}.content") for text in texts]
            marked["content"] = "\n".join(marked["parts"])
        else:
            marked["content"] = self._around(marked["content"], f"{path}.content")
        if calls := marked.get("tool_calls"):
            marked["tool_calls"] = [
                self._marked_function(call, f"{path}.tool_calls[{number}]")
                for number, call in enumerate(calls)
            ]
        return marked

    def _marked_function(self, variable: dict[str, Any], field: str) -> dict[str, Any]:
        """A tool or call with marks before its name and description, of which some templates write
        the description first."""
        function = dict(variable["function"])
        for name in function.keys() & {"name", "description"}:
            function[name] = self._around(function[name], field, is_open=True)
        return {**variable, "function": function}
