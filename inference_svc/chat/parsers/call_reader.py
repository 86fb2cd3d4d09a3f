"""Reads calls by the examples of how a family writes them (`notation.py`).

White space may be before each part of a call. Of notations with the same beginning, the first
one counts that can be read up to the arguments, before which nothing is emitted.
"""

import re
from collections.abc import Callable, Sequence

from inference_svc.chat.parsers.json_calls import (
    Read,
    any_name,
    read_json_call,
    read_json_items,
    read_keyed_call,
)
from inference_svc.chat.parsers.json_scanner import ScanState
from inference_svc.chat.parsers.notation import Calls, Tags, begins
from inference_svc.chat.parsers.offered_tools import OfferedTools
from inference_svc.chat.parsers.output import TurnOutput
from inference_svc.chat.parsers.source import ParseSteps, Source
from inference_svc.chat.parsers.tagged import TagArguments


class CallReader:
    """Reads the turns of a family, or single calls in them. `frames` are the texts around the
    content, which are removed."""

    def __init__(self, notations: Sequence[Calls], frames: Sequence[str] = ()) -> None:
        self.begins = begins(notations)
        self._frames = frames
        self._sections = [
            text
            for notation in notations
            if not (notation.encloses_each or notation.is_list)
            for text in (notation.opening, *notation.variants)
        ]
        self._section_ends = [text for notation in notations for text in notation.section_ends]
        self._choices = {
            text: [
                (notation, parts)
                for notation in notations
                if (parts := _behind(notation, text)) is not None
            ]
            for text in self.begins
        }

    def read_turn(
        self, source: Source, output: TurnOutput, tools: OfferedTools
    ) -> ParseSteps[None]:
        """Parse a turn; without tools only the frames are removed."""
        texts = (*self._frames, *(self.begins if tools else ()))
        while begin := (yield from output.content_until(source, texts, self._sections)):
            if begin not in self._frames:
                yield from self.read_or_content(begin, source, output, tools)

    def read_or_content(
        self, begin: str, source: Source, output: TurnOutput, tools: OfferedTools
    ) -> ParseSteps[None]:
        """Read a call behind a text with which it begins; other text is content."""
        if not (yield from self.read(begin, source, output, tools)):
            output.add_content(source.since_mark)

    def read(
        self, begin: str, source: Source, output: TurnOutput, tools: OfferedTools
    ) -> ParseSteps[bool]:
        """Read a call, or a list of calls, behind a text with which it begins; False if something
        else follows, which was not emitted."""
        position = furthest = source.position
        if begin in self._sections:
            yield from source.spaces()
            if (yield from source.literal(*self._section_ends)):
                return True
        for notation, parts in self._choices[begin]:
            source.rewind(position)
            if (yield from self._read(notation, parts, source, output, tools)):
                return True
            furthest = max(furthest, source.position)
        source.rewind(furthest)
        return False

    def _read(
        self,
        notation: Calls,
        parts: Sequence[str],
        source: Source,
        output: TurnOutput,
        tools: OfferedTools,
    ) -> ParseSteps[bool]:
        values = yield from _read_parts(parts, source)
        if values is None:
            return False
        name, call_id = _name_and_id(notation, values)
        if not (name or notation.is_object) or (notation.only_offered and name not in tools):
            return False
        num_calls = output.num_calls
        ends = (*notation.ends, *notation.section_ends)
        if isinstance(notation.arguments, Tags):
            arguments = TagArguments(notation.arguments, ends, name, source, output, tools)
            read = yield from arguments.read()
        elif notation.is_object:
            read = yield from _read_object(notation, source, output, tools)
        else:
            read = yield from _read_arguments(notation, name, call_id, source, output)
        if read is Read.NOTHING:
            if output.num_calls == num_calls:
                return False
            output.add_content(source.since_mark)  # the rest of a list
        elif read is Read.BROKEN:
            markers = notation.ends[-1:] or self.begins
            yield from source.until(markers, output.add_arguments, stay=not notation.ends)
        else:
            yield from _skip_ends(ends, source)
        return True


def _skip_ends(ends: Sequence[str], source: Source) -> ParseSteps[None]:
    for end in ends:
        source.mark()
        yield from source.spaces()
        if not (yield from source.literal(end)):
            source.rewind(source.position - len(source.since_mark))


def _behind(notation: Calls, begin: str) -> tuple[str, ...] | None:
    """The parts of a call behind a text with which it begins; None if it does not."""
    if begin in (notation.opening, *notation.variants):
        return notation.parts
    if notation.parts and notation.parts[0].startswith(begin):
        rest = notation.parts[0].removeprefix(begin)
        return (rest, *notation.parts[1:]) if rest else notation.parts[1:]
    return None


def _read_parts(parts: Sequence[str], source: Source) -> ParseSteps[dict[str, str] | None]:
    """Read the parts before the arguments, without white space before a name that follows an id.
    Returns what is in the place of placeholders; None if a text is missing."""
    values: dict[str, str] = {}
    for part in parts:
        if not (values and part.startswith("$")):
            yield from source.spaces()
        if part == "$number":
            values[part] = yield from source.chars(str.isdigit)
        elif part.startswith("$"):
            values[part] = yield from source.name(":")
        elif not (yield from source.literal(part)):
            return None
    return values


def _name_and_id(notation: Calls, values: dict[str, str]) -> tuple[str, str]:
    """The name of a call, and its id if that is well-formed, since templates render it."""
    name, call_id = values.get("$name", ""), values.get("$id", "")
    if notation.id:
        before, after = map(re.escape, notation.id.split("$name"))
        form = f"({before})?(.+?)({after})?".replace(re.escape("$number"), r"\d+")
        if match := re.fullmatch(form, call_id):
            return match[2], call_id if match[1] and match[3] else ""
    if notation.id_length and not re.fullmatch(rf"[A-Za-z0-9]{{{notation.id_length}}}", call_id):
        call_id = ""
    return name, call_id


def _read_object(
    notation: Calls, source: Source, output: TurnOutput, tools: OfferedTools
) -> ParseSteps[Read]:
    """Read a call or a list of calls. Behind a call, models write a brace too many, or another call
    of an offered tool."""
    if notation.is_list:
        is_keyed = notation.call.startswith('{"$name"')
        read_item = read_keyed_call if is_keyed else read_json_call
        return (yield from read_json_items(source, output, read_item))
    read = Read.NOTHING
    accepts: Callable[[str], bool] = any_name
    while (following := (yield from read_json_call(source, output, accepts))) is Read.CALL:
        yield from source.spaces()
        yield from source.literal("}")
        source.mark()
        position, read, accepts = source.position, following, tools.__contains__
    if following is Read.BROKEN or read is Read.NOTHING:
        return following
    source.rewind(position)
    return read


def _read_arguments(
    notation: Calls, name: str, call_id: str, source: Source, output: TurnOutput
) -> ParseSteps[Read]:
    yield from source.spaces()
    if (yield from source.peek()) != "{":
        if not notation.ends or not (yield from source.literal(notation.ends[-1])):
            return Read.NOTHING
        output.begin_call(name, call_id)
        output.add_arguments("{}")
        return Read.CALL
    output.begin_call(name, call_id)
    state = yield from source.json(output.add_arguments)
    return Read.BROKEN if state is ScanState.BROKEN else Read.CALL
