"""Tool calls in Python syntax: `[get_weather(city="Paris"), get_time()]`.

Used by Llama 3.2, Llama 4 and LFM2, with or without markers, and by OLMo 3, with a call per line
in `<function_calls>`. LFM2 and OLMo may write JSON instead; LFM2's template shows earlier calls as
Hermes' JSON. Arguments in Python syntax are streamed as JSON.
"""

import re
import string
from collections.abc import Callable, Sequence

from inference_svc.chat.json_values import json_text
from inference_svc.chat.parsers.call_reader import CallReader
from inference_svc.chat.parsers.families import HERMES
from inference_svc.chat.parsers.json_calls import Read, any_name
from inference_svc.chat.parsers.notation import Calls
from inference_svc.chat.parsers.offered_tools import OfferedTools
from inference_svc.chat.parsers.output import TurnOutput
from inference_svc.chat.parsers.source import ParseSteps, Source, TextSink
from inference_svc.structured_output.spec import ArgumentSyntax

_KEYWORD = re.compile(r"([A-Za-z0-9_.-]|[^\x00-\x7F\s])+")
"""What is no letter in ASCII may be one in a later version of Unicode, which a grammar knows."""
_ARGUMENTS = ArgumentSyntax(
    begin="",
    key_end="=",
    between=", ",
    quotes=None,
    words={"true": "True", "false": "False", "null": "None"},
    brackets=True,
    key=_KEYWORD.pattern,
    extra_key=_KEYWORD.pattern,
)
CALLS = tuple(
    Calls("$name($arguments)", before, between, after, arguments=_ARGUMENTS)
    for before, between, after in (
        ("<|tool_call_start|>[", ", ", "]<|tool_call_end|>"),
        ("<|python_start|>[", ", ", "]<|python_end|>"),
        ("<function_calls>\n", "\n", "\n</function_calls>"),
    )
)
BEGINS = tuple(notation.opening for notation in CALLS)
ENDS = tuple(end for notation in CALLS for end in notation.section_ends)
_JSON = CallReader(
    (
        *(
            Calls(HERMES[0].call, f"{begin}[", after=f"]{end}")
            for begin, end in zip(BEGINS, ENDS, strict=True)
        ),
        *HERMES,
    )
)
_MAX_DEPTH = 32
_WORDS = {"True": "true", "False": "false", "None": "null"}
_WORDS |= {value: value for value in _WORDS.values()}
_NUMBER = re.compile(r"(-?)0*(\d+(\.\d+)?([eE][+-]?\d+)?)")
_QUOTES = ("'", '"')
_NUM_DIGITS = {"x": 2, "u": 4}
_HEX_DIGITS = (*string.hexdigits,)
_ESCAPED = {
    "n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0",
    "\n": "", "\\": "\\", "'": "'", '"': '"',
}  # fmt: skip


def read_pythonic(source: Source, output: TurnOutput, tools: OfferedTools) -> ParseSteps[None]:
    """Parse a turn: calls in markers, or calls of offered tools at its beginning."""
    yield from source.spaces()
    if (yield from source.peek()) == "[":
        yield from read_python_calls(source, output, tools.__contains__)
    output.add_content(source.since_mark)
    while begin := (yield from output.content_until(source, _JSON.begins)):
        if begin not in BEGINS or (yield from _is_json(source)):
            yield from _JSON.read_or_content(begin, source, output, tools)
        elif (yield from read_python_calls(source, output, ends=ENDS)):
            yield from source.spaces()
            if (yield from source.literal(*ENDS)):
                yield from _skip_echo(source, output)
        else:
            output.add_content(source.since_mark)


def _skip_echo(source: Source, output: TurnOutput) -> ParseSteps[None]:
    """Skip a list in one line that another closing marker follows: LFM2 writes calls twice."""
    source.mark()
    yield from source.spaces()
    if (yield from source.peek()) == "[":
        yield from source.until((*ENDS, *_JSON.begins, "\n"), stay=True)
        if (yield from source.literal(*ENDS)):
            source.mark()
    output.add_content(source.since_mark)


def _is_json(source: Source) -> ParseSteps[bool]:
    position = source.position
    yield from source.spaces()
    yield from source.literal("[")
    yield from source.spaces()
    character = yield from source.peek()
    source.rewind(position)
    return character == "{"


def read_python_calls(
    source: Source,
    output: TurnOutput,
    accepts: Callable[[str], bool] = any_name,
    ends: Sequence[str] = (),
) -> ParseSteps[bool]:
    """Read a list of calls, or calls without brackets. False if it or its rest is not one;
    `since_mark` then has the text that was not emitted. A call that turns out not to be Python is
    emitted as it was written, up to one of these texts."""
    yield from source.spaces()
    in_list = bool((yield from source.literal("[")))
    yield from source.spaces()
    if in_list and ends and (yield from source.literal("]")):
        return True
    while True:
        yield from source.spaces()
        name = yield from source.name()
        if not name or not accepts(name) or not (yield from source.literal("(")):
            return False
        read = yield from read_python_arguments(source, output, name)
        if read is Read.NOTHING:
            return False
        if read is Read.BROKEN:
            yield from source.until(ends, output.add_arguments, stay=True)
            return True
        source.mark()
        yield from source.spaces()
        end = yield from source.literal(",", "]")
        source.mark()
        if end == "]":
            return True
        if not end and not (yield from source.peek()).isidentifier():
            return not in_list


def read_python_arguments(source: Source, output: TurnOutput, name: str) -> ParseSteps[Read]:
    """Read the keyword arguments of a call and the closing parenthesis."""
    arguments = _Arguments(source, output, name)
    if (yield from arguments.items(")", "}", arguments.keyword)):
        return Read.CALL
    return Read.BROKEN if arguments.has_begun else Read.NOTHING


_ReadItem = Callable[[], ParseSteps[bool]]


class _Arguments:
    """Writes the arguments of a call as JSON; methods return whether parsing can continue. The call
    begins with its first keyword."""

    def __init__(self, source: Source, output: TurnOutput, name: str) -> None:
        self._source = source
        self._output = output
        self._name = name
        self._closers: list[str] = []
        self.has_begun = False

    def items(
        self, closer: str, end: str, read_item: _ReadItem, separator: str = ""
    ) -> ParseSteps[bool]:
        """Read the items of a call, list, set or dictionary, and write its end. `separator` is
        written before the next item."""
        source = self._source
        self._closers.append(closer)
        while len(self._closers) <= _MAX_DEPTH:
            yield from source.spaces()
            if (yield from source.literal(closer)):
                self._closers.pop()
                self._write(end)
                return True
            if separator:
                self._write(separator)
            if not (yield from read_item()):
                return False
            separator = ", "
            yield from source.spaces()
            if not (yield from source.literal(",")) and (yield from source.peek()) != closer:
                return False
        return False

    def keyword(self) -> ParseSteps[bool]:
        name = yield from self._source.chars(lambda each: bool(_KEYWORD.fullmatch(each)))
        yield from self._source.spaces()
        if not name or not (yield from self._source.literal("=")):
            return False
        self._write(f"{json_text(name)}: ")
        return (yield from self._value())

    def _write(self, text: str) -> None:
        if not self.has_begun:
            self.has_begun = True
            self._output.begin_call(self._name)
            self._output.add_arguments("{")
        self._output.add_arguments(text)

    def _value(self) -> ParseSteps[bool]:
        source = self._source
        yield from source.spaces()
        match (yield from source.literal("[", "(", "{")):
            case "[":
                self._write("[")
                return (yield from self.items("]", "]", self._value))
            case "(":
                self._write("[")
                return (yield from self.items(")", "]", self._value))
            case "{":
                return (yield from self._dictionary_or_set())
        if (yield from source.peek()) in _QUOTES:
            self._write('"')
            is_closed = yield from self._string(self._write)
            self._write('"' if is_closed else "")
            return is_closed
        word = yield from source.chars(lambda each: each.isalnum() or each in "+-._")
        number = _NUMBER.fullmatch(word)
        self._write(f"{number[1]}{number[2]}" if number else _WORDS.get(word, word))
        return bool(number) or word in _WORDS

    def _dictionary_or_set(self) -> ParseSteps[bool]:
        """Read a dictionary, or a set, which is written as a JSON list: after the first string it
        has no colon."""
        source = self._source
        yield from source.spaces()
        if (yield from source.peek()) not in _QUOTES:
            self._write("{")
            return (yield from self.items("}", "}", self._pair))
        self._closers.append("}")
        first = yield from self._whole_string()
        yield from source.spaces()
        is_set = not (yield from source.literal(":"))
        self._write(f"[{first}" if is_set else f"{{{first}: ")
        if not first or not (is_set or (yield from self._value())):
            return False
        yield from source.spaces()
        if not (yield from source.literal(",")) and (yield from source.peek()) != "}":
            return False
        self._closers.pop()
        if is_set:
            return (yield from self.items("}", "]", self._value, ", "))
        return (yield from self.items("}", "}", self._pair, ", "))

    def _pair(self) -> ParseSteps[bool]:
        key = yield from self._whole_string()
        yield from self._source.spaces()
        if not key or not (yield from self._source.literal(":")):
            return False
        self._write(f"{key}: ")
        return (yield from self._value())

    def _whole_string(self) -> ParseSteps[str]:
        """Read a string; returns it as JSON, or an empty text if there is none."""
        pieces = ['"']
        is_closed = yield from self._string(pieces.append)
        return "".join((*pieces, '"')) if is_closed else ""

    def _string(self, sink: TextSink) -> ParseSteps[bool]:
        """Read a string. A quote is part of it if the call cannot go on behind it: models write
        commands with quotes inside."""
        source = self._source
        quote = yield from source.literal('"""', "'''", *_QUOTES)
        while quote and (
            end := (yield from source.until((quote, "\\"), _escaped(sink), stay=True))
        ):
            if end == "\\":
                _escaped(sink)((yield from self._escape()))
                continue
            yield from source.literal(quote)
            if len(quote) > 1 or (yield from self._goes_on()):
                return True
            _escaped(sink)(quote)
        return False

    def _goes_on(self) -> ParseSteps[bool]:
        """Whether what follows can be in the call or behind it."""
        source, closers = self._source, self._closers.copy()
        position = source.position
        yield from source.spaces()
        while closers and (yield from source.literal(closers[-1])):
            closers.pop()
            yield from source.spaces()
        character = yield from source.peek()
        source.rewind(position)
        return character in ("", ",", ":") if closers else character not in (")", "}", *_QUOTES)

    def _escape(self) -> ParseSteps[str]:
        source = self._source
        yield from source.literal("\\")
        character = yield from source.peek()
        source.skip()
        digits, num_digits = "", _NUM_DIGITS.get(character, 0)
        while len(digits) < num_digits and (yield from source.peek()) in _HEX_DIGITS:
            digits += yield from source.literal(*_HEX_DIGITS)
        if digits and len(digits) == num_digits:
            return chr(int(digits, 16))
        return _ESCAPED.get(character, f"\\{character}{digits}")


def _escaped(sink: TextSink) -> TextSink:
    return lambda text: sink(json_text(text)[1:-1])
