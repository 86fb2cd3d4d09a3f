"""Tool calls in a section of the turn, each between markers, as DeepSeek and Kimi write them.

DeepSeek's R1 and V3 write the kind of tool, then the name, then the arguments in a Markdown fence;
V3.1 the name, then the arguments. (V3.2 writes tags, see `tagged`.) Kimi K2 writes the call's id,
`functions.NAME:NUMBER`, then the arguments. Some write the markers with other characters, or leave
out the one that opens the section.
"""

import re
from typing import NamedTuple

from inference_svc.chat.parsers.json_calls import (
    ReadItem,
    read_json_call,
    read_json_list,
    read_keyed_call,
)
from inference_svc.chat.parsers.json_scanner import ScanState
from inference_svc.chat.parsers.offered_tools import OfferedTools
from inference_svc.chat.parsers.output import TurnOutput
from inference_svc.chat.parsers.source import ParseSteps, Source


class Section(NamedTuple):
    """The markers of one family. `begins`: how it begins, and what is put up with instead."""

    begins: tuple[str, ...]
    call: str
    separator: str
    call_end: str
    end: str
    has_ids: bool = False  # an id stands for the name, and says it

    @property
    def markers(self) -> tuple[str, ...]:
        """The texts that must be visible."""
        return (self.begins[0], self.call, self.separator, self.call_end, self.end)


DEEPSEEK = Section(
    begins=("<｜tool▁calls▁begin｜>", "<｜tool_calls_begin｜>", "<｜tool calls begin｜>"),
    call="<｜tool▁call▁begin｜>",
    separator="<｜tool▁sep｜>",
    call_end="<｜tool▁call▁end｜>",
    end="<｜tool▁calls▁end｜>",
)
KIMI = Section(
    begins=("<|tool_calls_section_begin|>", "<|tool_call_section_begin|>"),
    call="<|tool_call_begin|>",
    separator="<|tool_call_argument_begin|>",
    call_end="<|tool_call_end|>",
    end="<|tool_calls_section_end|>",
    has_ids=True,
)
_ID = re.compile(r"(functions\.)?(.+?)(:\d+)?")


def read_section(
    marks: Section, source: Source, writer: TurnOutput, _: OfferedTools
) -> ParseSteps[None]:
    """Read a turn."""
    while begin := (yield from source.until((*marks.begins, marks.call), writer.say)):
        if begin != marks.call:
            yield from source.spaces()
            begin = yield from source.literal(marks.call)
        while begin == marks.call and (yield from _call(marks, source, writer)):
            source.mark()
            yield from source.spaces()
            begin = yield from source.literal(marks.call, marks.end)
        if begin != marks.end:
            writer.say(source.since_mark)


def _call(marks: Section, source: Source, writer: TurnOutput) -> ParseSteps[bool]:
    """Read a call after its begin marker; false where it is none."""
    yield from source.spaces()
    name = yield from source.chars(_in_name)
    yield from source.spaces()
    if not (yield from source.literal(marks.separator)):
        return False
    yield from source.spaces()
    if name and (yield from source.literal(marks.call_end)):
        _begin(marks, writer, name)
        writer.add_arguments("{}")
        return True
    has_kind = (yield from source.peek()) not in ("{", "")
    if has_kind:
        name = yield from source.chars(_in_name)
        yield from source.spaces()
        if (yield from source.literal("```")):
            yield from source.chars(str.isalpha)
        yield from source.spaces()
    if not name or (yield from source.peek()) != "{":
        return False
    _begin(marks, writer, name)
    if (yield from source.json(writer.add_arguments)) is ScanState.BROKEN:
        yield from source.until((marks.call_end,), writer.add_arguments)
        return True
    yield from source.spaces()
    yield from source.literal("```")
    yield from source.spaces()
    yield from source.literal(marks.call_end)
    return True


def _begin(marks: Section, writer: TurnOutput, written: str) -> None:
    writer.begin_call(*(_name_and_id(written) if marks.has_ids else (written,)))


def _name_and_id(written: str) -> tuple[str, str]:
    """The name in an id, and the id if it is as it should be: templates write it back."""
    match = _ID.fullmatch(written)
    if match is None:
        return written, ""
    return match[2], written if match[1] and match[3] else ""


def _in_name(character: str) -> bool:
    return character.isalnum() or character in "_-.:"


class Listing(NamedTuple):
    """How one family writes. `frames`: the texts around answers."""

    begin: str
    end: str
    read_item: ReadItem
    frames: tuple[str, ...] = ()

    @property
    def markers(self) -> tuple[str, ...]:
        """The texts that must be visible."""
        return (self.begin, self.end, *self.frames)


COHERE = Listing(
    begin="<|START_ACTION|>",
    end="<|END_ACTION|>",
    read_item=read_json_call,
    frames=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
)
APERTUS = Listing(begin="<|tools_prefix|>", end="<|tools_suffix|>", read_item=read_keyed_call)


def read_listed(
    listing: Listing, source: Source, writer: TurnOutput, tools: OfferedTools
) -> ParseSteps[None]:
    """Read a turn; without tools it is read for the frames alone."""
    begins = (listing.begin, *listing.frames) if tools else listing.frames
    while begin := (yield from source.until(begins, writer.say)):
        if begin == listing.begin:
            yield from read_json_list(source, writer, (listing.end,), listing.read_item)
