"""Tool calls with a tag for each argument, as in Qwen3-Coder, GLM, MiniMax, Kimi K3, DeepSeek V4:

    <tool_call><function=NAME><parameter=KEY>VALUE</parameter>…</function></tool_call>

Values have no quotes: their types are taken from the tool's schema, or else guessed. Strings are
streamed. MiniMax M3 also writes objects and lists as tags.
"""

import re
from typing import NamedTuple

from inference_svc.chat.json_values import json_text
from inference_svc.chat.parsers.json_scanner import ScanState
from inference_svc.chat.parsers.offered_tools import OfferedTools
from inference_svc.chat.parsers.output import TurnOutput
from inference_svc.chat.parsers.source import ParseSteps, Source
from inference_svc.structured_output.spec import NUMBER, SPACE, ArgumentSyntax, ToolCallSyntax


class Tags(NamedTuple):
    """The tags of a model family. If `call` is empty, the name follows the outer tag."""

    outer: tuple[str, ...]
    outer_ends: tuple[str, ...]
    call: str
    name_end: str
    call_end: str
    key: str
    key_ends: tuple[str, ...]
    value_end: str  # may contain the key, as "{key}"
    value: str = ""  # between key and value
    text_key_end: str = ""  # the one of `key_ends` that marks the value as a string
    typed_key_end: str = ""  # `key_ends` by type, as in `ArgumentSyntax`
    is_section: bool = False  # the outer tags enclose all calls
    attributes: str = ""  # between name and `name_end`
    padded: bool = False  # values may be enclosed in line breaks
    nesting: str = ""  # before the tags inside a value
    json: tuple[str, str] = ("", "")  # around all arguments as JSON, in the place of tags
    quotes: tuple[str, str] | None = None  # around a value that may contain `value_end`
    frames: tuple[str, ...] = ()  # around the content
    interrupts: tuple[str, ...] = ()  # end a thought that is not closed

    @property
    def markers(self) -> tuple[str, ...]:
        """The texts that must be visible."""
        return (*(self.outer or (self.call,)), *self.outer_ends, self.call_end, *self.frames)

    @property
    def syntaxes(self) -> tuple[ToolCallSyntax, ...]:
        """The syntaxes of calls, one for each outer tag."""
        ends = self.outer_ends or ("",) * len(self.outer)
        return tuple(map(self._syntax, self.outer or ("",), ends or ("",)))

    def _syntax(self, outer: str, outer_end: str) -> ToolCallSyntax:
        key_end = self.typed_key_end or self.key_ends[0]
        arguments = ArgumentSyntax(
            begin=self.key,
            key_end=f"{key_end}{SPACE}{self.value}" if self.value else key_end,
            end=self.value_end + SPACE,
            quotes=(self.quotes,) if self.quotes else (),
            may_quote=self.quotes is not None,
            barred=(f"{self.nesting}<",) if self.nesting else (self.key, self.call_end),
            padded=self.padded,
            words={"true": "True", "false": "False", "null": "None"},
            item=(f"{self.nesting}<item>", f"{self.nesting}</item>{SPACE}")
            if self.nesting
            else None,
        )
        middle, tail = self.attributes + self.name_end + SPACE, self.call_end
        opening = f"{outer}{SPACE}" if outer and self.call else outer
        closing = f"{SPACE}{outer_end}" if outer_end else ""
        if self.is_section:
            return ToolCallSyntax(
                self.call, middle, tail, opening, SPACE, closing, arguments=arguments
            )
        head = opening + self.call
        return ToolCallSyntax(head, middle, tail + closing, between=SPACE, arguments=arguments)


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
    interrupts=("<tool_call>\n<function=", "<seed:tool_call>"),
)
MINIMAX = Tags(
    outer=("<minimax:tool_call>",),
    outer_ends=("</minimax:tool_call>",),
    is_section=True,
    call='<invoke name="',
    name_end='">',
    call_end="</invoke>",
    key='<parameter name="',
    key_ends=('">',),
    value_end="</parameter>",
)
MUSE = Tags(
    outer=("<atem:function_calls>",),
    outer_ends=("</atem:function_calls>",),
    call='<atem:invoke name="',
    name_end='">',
    call_end="</atem:invoke>",
    key='<atem:parameter name="',
    key_ends=('">',),
    value_end="</atem:parameter>",
)
MINICPM = Tags(
    outer=(),
    outer_ends=(),
    call='<function name="',
    name_end='">',
    call_end="</function>",
    key='<param name="',
    key_ends=('">',),
    value_end="</param>",
    quotes=("<![CDATA[", "]]>"),
)
NESTING = "]<]minimax[>["
MINIMAX_M3 = Tags(
    outer=(f"{NESTING}<tool_call>",),
    outer_ends=(f"{NESTING}</tool_call>",),
    call=f'{NESTING}<invoke name="',
    name_end='">',
    call_end=f"{NESTING}</invoke>",
    key=f"{NESTING}<",
    key_ends=(">",),
    value_end=f"{NESTING}</{{key}}>",
    is_section=True,
    nesting=NESTING,
    interrupts=(f"{NESTING}<tool_call>",),
)
HUNYUAN = Tags(
    outer=("<tool_calls:opensource>",),
    outer_ends=("</tool_calls:opensource>",),
    is_section=True,
    call="<tool_call:opensource>",
    name_end="<tool_sep:opensource>",
    call_end="</tool_call:opensource>",
    key="<arg_key:opensource>",
    key_ends=("</arg_key:opensource>",),
    value="<arg_value:opensource>",
    value_end="</arg_value:opensource>",
    interrupts=("<tool_calls:opensource>",),
)
_KIMI_TYPES = ("string", "number", "boolean", "null", "object", "array")
KIMI_K3 = Tags(
    outer=("<|open|>tools<|sep|>",),
    outer_ends=("<|close|>tools<|sep|>",),
    call='<|open|>call tool="',
    name_end="<|sep|>",
    is_section=True,
    typed_key_end='" type="{type}"<|sep|>',
    call_end="<|close|>call<|sep|>",
    key='<|open|>argument key="',
    key_ends=tuple(f'" type="{name}"<|sep|>' for name in _KIMI_TYPES),
    value_end="<|close|>argument<|sep|>",
    text_key_end='" type="string"<|sep|>',
    attributes=f'" index="{NUMBER}"',
    json=('<|open|>json type="object"<|sep|>', "<|close|>json<|sep|>"),
    frames=("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"),
    interrupts=("<|open|>response<|sep|>", "<|open|>tools<|sep|>"),
)
DEEPSEEK_V32 = Tags(
    outer=("<｜DSML｜function_calls>", "<｜DSML｜tool_calls>"),
    outer_ends=("</｜DSML｜function_calls>", "</｜DSML｜tool_calls>"),
    call='<｜DSML｜invoke name="',
    name_end='">',
    call_end="</｜DSML｜invoke>",
    key='<｜DSML｜parameter name="',
    key_ends=('" string="true">', '" string="false">', '">'),
    value_end="</｜DSML｜parameter>",
    text_key_end='" string="true">',
    typed_key_end='" string="{is_string}">',
    is_section=True,
    interrupts=("<｜DSML｜function_calls>", "<｜DSML｜tool_calls>"),
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
    interrupts=("<tool_call>",),
)


def read_tagged(
    tags: Tags, source: Source, output: TurnOutput, tools: OfferedTools
) -> ParseSteps[None]:
    """Parse a turn; without tools only the frames are removed."""
    begins = (*tags.outer, tags.call) if tags.call else tags.outer
    texts = (*tags.frames, *(begins if tools else ()))
    sections = tags.outer if tags.is_section else ()
    while begin := (yield from output.content_until(source, texts, sections)):
        if begin not in tags.frames:
            yield from read_calls(tags, begin, source, output, tools)


def read_calls(
    tags: Tags, begin: str, source: Source, output: TurnOutput, tools: OfferedTools
) -> ParseSteps[None]:
    """Read the calls after an opening tag; text that is not one is content."""
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
        if tags.attributes:
            yield from source.chars(_in_attributes)
        if not self._name or not (yield from self._skip(tags.name_end)):
            return False
        while True:
            yield from source.spaces()
            if tags.json[0] and (yield from source.literal(tags.json[0])):
                yield from self._json()
                return True
            expected = (tags.call_end, *tags.outer_ends, tags.key)
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

    def _json(self) -> ParseSteps[None]:
        self._begin()
        source, ends = self._source, (self._tags.json[1], self._tags.call_end)
        if (yield from source.json(self._output.add_arguments)) is ScanState.BROKEN:
            yield from source.until(ends, self._output.add_arguments, stay=True)
        yield from source.spaces()
        for end in ends:
            yield from source.literal(end)

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
        value_end = tags.value_end.replace("{key}", key)
        ends = (value_end,) if tags.nesting else (value_end, tags.key, tags.call_end)
        if tags.quotes and (yield from source.literal(tags.quotes[0])):
            ends = (tags.quotes[1],)
        if self._tools.takes_text(self._name, key, is_text=key_end == tags.text_key_end):
            output.add_arguments('"')
            end = yield from source.until(
                ends,
                lambda text: output.add_arguments(json_text(value.feed(text))[1:-1]),
                stay=True,
            )
            output.add_arguments('"' if end else "")
        else:
            written = [value.feed((yield from self._brackets()))]
            end = yield from source.until(
                ends, lambda text: written.append(value.feed(text)), stay=True
            )
            if end:
                output.add_arguments(self._as_json(key, "".join(written)))
        if tags.quotes:
            yield from source.literal(tags.quotes[1])
        yield from source.literal(value_end)
        source.mark()
        return True

    def _brackets(self) -> ParseSteps[str]:
        """Read a JSON object or list, inside which nothing ends the value."""
        source = self._source
        position = source.position
        yield from source.spaces()
        is_open = (yield from source.peek()) in ("{", "[")
        if not is_open or (yield from source.json()) is not ScanState.CLOSED:
            source.rewind(position)
        return source.since(position)

    def _as_json(self, key: str, written: str) -> str:
        nesting = self._tags.nesting
        if nesting and written.lstrip().startswith(f"{nesting}<"):
            pieces = re.split(f"{re.escape(nesting)}<(/?)([^<>]*)>", written)
            return _Nested(self._tools, self._name, pieces).read(key)
        return self._tools.as_json(self._name, (key,), written)

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
    """Removes the line breaks around a value that arrives in pieces, if it begins with one."""

    def __init__(self, *, padded: bool) -> None:
        self._padded = padded
        self._at_start = padded
        self._pending = ""

    def feed(self, text: str) -> str:
        """Add a piece; returns the text that is certain to be inside."""
        if self._at_start and text:
            self._at_start = False
            self._padded = text.startswith("\n")
            text = text.removeprefix("\n")
        text = self._pending + text
        self._pending = "\n" if self._padded and text.endswith("\n") else ""
        return text.removesuffix(self._pending)


class _Nested:
    """Converts a value with tags inside, split into text, slash, tag, text, and so on."""

    def __init__(self, tools: OfferedTools, name: str, pieces: list[str]) -> None:
        self._tools = tools
        self._name = name
        self._pieces = pieces
        self._at = 0

    def read(self, *path: str) -> str:
        """Read up to the closing tag: a text, an object, or a list of `<item>` tags."""
        text = self._pieces[self._at]
        members: list[tuple[str, str]] = []
        while self._at + 2 < len(self._pieces):
            slash, tag = self._pieces[self._at + 1 : self._at + 3]
            self._at += 3
            if slash:
                break
            members.append((tag, self.read(*path, tag)))
        if not members:
            return self._tools.as_json(self._name, path, text)
        if all(tag == "item" for tag, _ in members):
            return f"[{', '.join(value for _, value in members)}]"
        return "{" + ", ".join(f"{json_text(tag)}: {value}" for tag, value in members) + "}"


def _in_attributes(character: str) -> bool:
    return character not in "<>\n"


def _in_key(character: str) -> bool:
    return character not in '<>"\n'
