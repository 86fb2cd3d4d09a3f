"""Tool calls with a tag for each argument, as in Qwen3-Coder, GLM, MiniMax and DeepSeek V3.2:

    <tool_call><function=NAME><parameter=KEY>VALUE</parameter>…</function></tool_call>

Values have no quotes: their types are taken from the tool's schema, or else guessed. Strings are
streamed.
"""

from typing import NamedTuple

from inference_svc.chat.json_values import json_text
from inference_svc.chat.parsers.offered_tools import OfferedTools
from inference_svc.chat.parsers.output import TurnOutput
from inference_svc.chat.parsers.source import ParseSteps, Source


class Tags(NamedTuple):
    """The tags of a model family. If `call` is empty, the name follows the outer tag."""

    outer: tuple[str, ...]
    outer_ends: tuple[str, ...]
    call: str
    name_end: str
    call_end: str
    key: str
    key_ends: tuple[str, ...]
    value_end: str
    value: str = ""  # between key and value
    text_key_end: str = ""  # the one of `key_ends` that marks the value as a string
    padded: bool = False  # values are enclosed in line breaks

    @property
    def markers(self) -> tuple[str, ...]:
        """The texts that must be visible."""
        return (*self.outer, *self.outer_ends)


QWEN_CODER = Tags(
    outer=("<tool_call>", "<seed:tool_call>"),
    outer_ends=("</tool_call>", "</seed:tool_call>"),
    call="<function=",
    name_end=">",
    call_end="</function>",
    key="<parameter=",
    key_ends=(">",),
    value_end="</parameter>",
    padded=True,
)
MINIMAX = Tags(
    outer=("<minimax:tool_call>",),
    outer_ends=("</minimax:tool_call>",),
    call='<invoke name="',
    name_end='">',
    call_end="</invoke>",
    key='<parameter name="',
    key_ends=('">',),
    value_end="</parameter>",
)
DEEPSEEK_V32 = Tags(
    outer=("<｜DSML｜function_calls>",),
    outer_ends=("</｜DSML｜function_calls>",),
    call='<｜DSML｜invoke name="',
    name_end='">',
    call_end="</｜DSML｜invoke>",
    key='<｜DSML｜parameter name="',
    key_ends=('" string="true">', '" string="false">', '">'),
    value_end="</｜DSML｜parameter>",
    text_key_end='" string="true">',
)
GLM = Tags(
    outer=("<tool_call>",),
    outer_ends=(),
    call="",
    name_end="",
    call_end="</tool_call>",
    key="<arg_key>",
    key_ends=("</arg_key>",),
    value="<arg_value>",
    value_end="</arg_value>",
)


def read_tagged(
    tags: Tags, source: Source, output: TurnOutput, tools: OfferedTools
) -> ParseSteps[None]:
    """Parse a turn."""
    begins = (*tags.outer, tags.call) if tags.call else tags.outer
    while begin := (yield from source.until(begins, output.add_content)):
        is_call = True
        if tags.call and begin != tags.call:
            yield from source.spaces()
            is_call = bool((yield from source.literal(tags.call)))
        while is_call and (yield from _Call(tags, source, output, tools).read()):
            source.mark()
            yield from source.spaces()
            tag = yield from source.literal(*filter(None, (tags.call, *tags.outer_ends)))
            is_call = tag != "" and tag == tags.call
            if tag and not is_call:
                source.mark()
        output.add_content(source.since_mark)


class _Call:
    """Parses one call, starting at its name."""

    def __init__(self, tags: Tags, source: Source, output: TurnOutput, tools: OfferedTools) -> None:
        self._tags = tags
        self._source = source
        self._output = output
        self._tools = tools
        self._name = ""
        self._has_begun = False
        self._separator = "{"

    def read(self) -> ParseSteps[bool]:
        """Read the call; False if there is none and nothing was emitted. The call is emitted with
        its first argument; if the turn is cut off inside it, its arguments are not closed."""
        source, tags = self._source, self._tags
        self._name = yield from source.name(":")
        if not self._name or not (yield from self._skip(tags.name_end)):
            return False
        while True:
            yield from source.spaces()
            expected = (tags.key, tags.call_end, *tags.outer_ends)
            tag = yield from source.literal(*expected)
            if tag == tags.key:
                if (yield from self._argument()):
                    continue
                tag = ""
            if tag:
                self._close()
                return True
            if not self._has_begun:
                return False
            if not source.is_truncated(*expected):
                self._close()
            self._output.add_content(source.since_mark)
            return True

    def _argument(self) -> ParseSteps[bool]:
        source, tags, output = self._source, self._tags, self._output
        key = yield from source.chars(_in_key)
        key_end = yield from source.literal(*tags.key_ends)
        if not key or not key_end or not (yield from self._skip(tags.value)):
            return False
        self._begin()
        output.add_arguments(f"{self._separator}{json_text(key)}: ")
        self._separator = ", "
        value = _Value(padded=tags.padded)
        ends = (tags.value_end, tags.key, tags.call_end)
        if self._tools.takes_text(self._name, key) or key_end == tags.text_key_end:
            output.add_arguments('"')
            end = yield from source.until(
                ends,
                lambda text: output.add_arguments(json_text(value.feed(text))[1:-1]),
                stay=True,
            )
            output.add_arguments('"' if end else "")
        else:
            written: list[str] = []
            end = yield from source.until(
                ends, lambda text: written.append(value.feed(text)), stay=True
            )
            if end:
                output.add_arguments(self._tools.as_json(self._name, key, "".join(written)))
        yield from source.literal(tags.value_end)
        source.mark()
        return True

    def _skip(self, text: str) -> ParseSteps[bool]:
        if not text:
            return True
        yield from self._source.spaces()
        return bool((yield from self._source.literal(text)))

    def _begin(self) -> None:
        if not self._has_begun:
            self._output.begin_call(self._name)
            self._has_begun = True

    def _close(self) -> None:
        self._begin()
        self._output.add_arguments("{}" if self._separator == "{" else "}")


class _Value:
    """Removes the line breaks around a value that arrives in pieces."""

    def __init__(self, *, padded: bool) -> None:
        self._padded = padded
        self._at_start = padded
        self._pending = ""

    def feed(self, text: str) -> str:
        """Add a piece; returns the text that is certain to be inside."""
        if self._at_start:
            self._at_start = False
            text = text.removeprefix("\n")
        text = self._pending + text
        self._pending = "\n" if self._padded and text.endswith("\n") else ""
        return text.removesuffix(self._pending)


def _in_key(character: str) -> bool:
    return character not in '<>"\n'
