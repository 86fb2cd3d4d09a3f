"""Tool calls between markers inside a section of the turn (DeepSeek, Kimi), and lists of calls
between markers (Cohere, Apertus).

DeepSeek R1 and V3 write the type of tool, the name, then the arguments in a Markdown fence; V3.1
writes the name, then the arguments. (V3.2 uses tags, see `tagged`.) Kimi K2 writes the call id,
`functions.NAME:NUMBER`, then the arguments. Models sometimes write variants of the markers, or omit
the one that opens the section.
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
    """The markers of a model family. `begins` has the opening marker and its accepted variants."""

    begins: tuple[str, ...]
    call: str
    separator: str
    call_end: str
    end: str
    has_ids: bool = False  # an id that contains the name stands in its place

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
    marks: Section, source: Source, output: TurnOutput, _: OfferedTools
) -> ParseSteps[None]:
    """Parse a turn."""
    while begin := (yield from source.until((*marks.begins, marks.call), output.add_content)):
        if begin != marks.call:
            yield from source.spaces()
            begin = yield from source.literal(marks.call)
        while begin == marks.call and (yield from _call(marks, source, output)):
            source.mark()
            yield from source.spaces()
            begin = yield from source.literal(marks.call, marks.end)
        if begin != marks.end:
            output.add_content(source.since_mark)


def _call(marks: Section, source: Source, output: TurnOutput) -> ParseSteps[bool]:
    """Read a call after its opening marker; False if there is none."""
    yield from source.spaces()
    name = yield from source.name(":")
    yield from source.spaces()
    if not (yield from source.literal(marks.separator)):
        return False
    yield from source.spaces()
    if name and (yield from source.literal(marks.call_end)):
        _begin(marks, output, name)
        output.add_arguments("{}")
        return True
    if (yield from source.peek()) not in ("{", ""):  # the name follows the type of tool
        name = yield from source.name(":")
        yield from source.spaces()
        if (yield from source.literal("```")):
            yield from source.chars(str.isalpha)
        yield from source.spaces()
    if not name or (yield from source.peek()) != "{":
        return False
    _begin(marks, output, name)
    if (yield from source.json(output.add_arguments)) is ScanState.BROKEN:
        yield from source.until((marks.call_end,), output.add_arguments)
        return True
    yield from source.spaces()
    yield from source.literal("```")
    yield from source.spaces()
    yield from source.literal(marks.call_end)
    return True


def _begin(marks: Section, output: TurnOutput, written: str) -> None:
    output.begin_call(*(_name_and_id(written) if marks.has_ids else (written,)))


def _name_and_id(written: str) -> tuple[str, str]:
    """Return the name in an id, and the id if it is well-formed, since templates render it."""
    match = _ID.fullmatch(written)
    if match is None:
        return written, ""
    return match[2], written if match[1] and match[3] else ""


class Listing(NamedTuple):
    """The markers of a model family. `frames` are the texts around the content."""

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
    listing: Listing, source: Source, output: TurnOutput, tools: OfferedTools
) -> ParseSteps[None]:
    """Parse a turn; without tools only the frames are removed."""
    begins = (listing.begin, *listing.frames) if tools else listing.frames
    while begin := (yield from source.until(begins, output.add_content)):
        if begin == listing.begin:
            yield from read_json_list(source, output, (listing.end,), listing.read_item)
