"""Tool calls between markers inside a section of the turn (DeepSeek, Kimi, Solar), and lists of
calls between markers (Cohere, Apertus).

DeepSeek R1 and V3 write the type of tool, the name, then the arguments in a Markdown fence; V3.1
writes the name, then the arguments. (V3.2 uses tags, see `tagged`.) Kimi K2 writes the call id,
`functions.NAME:NUMBER`, then the arguments. Models sometimes write variants of the markers, or omit
the one that opens the section.
"""

import re
from typing import NamedTuple

from inference_svc.chat.parsers.json_calls import BEGIN as HERMES_BEGIN
from inference_svc.chat.parsers.json_calls import (
    ReadItem,
    read_hermes_call,
    read_json_call,
    read_json_list,
    read_keyed_call,
)
from inference_svc.chat.parsers.json_scanner import ScanState
from inference_svc.chat.parsers.offered_tools import OfferedTools
from inference_svc.chat.parsers.output import TurnOutput
from inference_svc.chat.parsers.source import ParseSteps, Source
from inference_svc.structured_output.spec import ID, NUMBER, ToolCallSyntax


class Section(NamedTuple):
    """The markers of a model family. `begins` has the opening marker and its accepted variants."""

    begins: tuple[str, ...]
    call: str
    separator: str
    call_end: str
    end: str
    has_ids: bool = False  # an id that contains the name stands in its place
    id_end: str = ""  # between an id and the name
    frames: tuple[str, ...] = ()  # around the content
    reads_hermes: bool = False  # templates do not describe tools, so they are described in Hermes

    @property
    def call_begins(self) -> tuple[str, ...]:
        """The texts that begin a call; the first one is the usual one."""
        return (*self.begins, self.call, *((HERMES_BEGIN,) if self.reads_hermes else ()))

    @property
    def markers(self) -> tuple[str, ...]:
        """The texts that must be visible."""
        texts = (self.begins[0], self.call, self.id_end, self.separator, self.call_end, self.end)
        return (*filter(None, texts), *self.frames)


DEEPSEEK = Section(
    begins=("<｜tool▁calls▁begin｜>", "<｜tool_calls_begin｜>", "<｜tool calls begin｜>"),
    call="<｜tool▁call▁begin｜>",
    separator="<｜tool▁sep｜>",
    call_end="<｜tool▁call▁end｜>",
    end="<｜tool▁calls▁end｜>",
    reads_hermes=True,
)
KIMI = Section(
    begins=("<|tool_calls_section_begin|>", "<|tool_call_section_begin|>"),
    call="<|tool_call_begin|>",
    separator="<|tool_call_argument_begin|>",
    call_end="<|tool_call_end|>",
    end="<|tool_calls_section_end|>",
    has_ids=True,
)
SOLAR = Section(
    begins=("<|tool_calls|>",),
    call="<|tool_call:begin|>",
    separator="<|tool_call:args|>",
    call_end="<|tool_call:end|>",
    end="<|calls|>",
    id_end="<|tool_call:name|>",
    frames=("<|begin|>assistant", "<|content|>", "<|end|>"),
)
DEEPSEEK_SYNTAXES = (
    ToolCallSyntax(
        before=DEEPSEEK.begins[0],
        head=f"{DEEPSEEK.call}function{DEEPSEEK.separator}",
        middle="\n```json\n",
        tail=f"\n```{DEEPSEEK.call_end}",
        between="\n",
        after=DEEPSEEK.end,
    ),
    ToolCallSyntax(
        before=DEEPSEEK.begins[0],
        head=DEEPSEEK.call,
        middle=DEEPSEEK.separator,
        tail=DEEPSEEK.call_end,
        after=DEEPSEEK.end,
    ),
)
KIMI_SYNTAX = ToolCallSyntax(
    before=KIMI.begins[0],
    head=f"{KIMI.call}functions.",
    middle=f":{NUMBER}{KIMI.separator}",
    tail=KIMI.call_end,
    after=KIMI.end,
)
SOLAR_SYNTAX = ToolCallSyntax(
    before=SOLAR.begins[0],
    head=f"{SOLAR.call}{ID}{SOLAR.id_end}",
    middle=SOLAR.separator,
    tail=SOLAR.call_end,
    after=SOLAR.end,
)
_ID = re.compile(r"(functions\.)?(.+?)(:\d+)?")


def read_section(
    marks: Section, source: Source, output: TurnOutput, tools: OfferedTools
) -> ParseSteps[None]:
    """Parse a turn; without tools only the frames are removed."""
    begins = (*marks.frames, *(marks.call_begins if tools else ()))
    while begin := (yield from output.content_until(source, begins, marks.begins)):
        if begin in marks.frames:
            continue
        if begin == HERMES_BEGIN:
            yield from read_hermes_call(source, output)
            continue
        if begin != marks.call:
            yield from source.spaces()
            begin = yield from source.literal(marks.call, marks.end)
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
    call_id = ""
    if marks.id_end and (yield from source.literal(marks.id_end)):
        call_id, name = name, (yield from source.name(":"))
    yield from source.spaces()
    if not (yield from source.literal(marks.separator)):
        return False
    yield from source.spaces()
    if name and (yield from source.literal(marks.call_end)):
        _begin(marks, output, name, call_id)
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
    _begin(marks, output, name, call_id)
    if (yield from source.json(output.add_arguments)) is ScanState.BROKEN:
        yield from source.until((marks.call_end,), output.add_arguments)
        return True
    yield from source.spaces()
    yield from source.literal("```")
    yield from source.spaces()
    yield from source.literal(marks.call_end)
    return True


def _begin(marks: Section, output: TurnOutput, written: str, call_id: str) -> None:
    output.begin_call(*(_name_and_id(written) if marks.has_ids else (written, call_id)))


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
COHERE_SYNTAX = ToolCallSyntax(
    before=f"{COHERE.begin}[\n    ",
    head=f'{{"tool_call_id": "{NUMBER}", "tool_name": "',
    middle='", "parameters": ',
    tail="}",
    between=",\n    ",
    after=f"\n]{COHERE.end}",
)
APERTUS_SYNTAX = ToolCallSyntax(
    before=f"{APERTUS.begin}[",
    head='{"',
    middle='": ',
    tail="}",
    between=", ",
    after=f"]{APERTUS.end}",
)


def read_listed(
    listing: Listing, source: Source, output: TurnOutput, tools: OfferedTools
) -> ParseSteps[None]:
    """Parse a turn; without tools only the frames are removed."""
    begins = (listing.begin, *listing.frames) if tools else listing.frames
    while begin := (yield from output.content_until(source, begins)):
        if begin == listing.begin:
            yield from read_json_list(source, output, (listing.end,), listing.read_item)
