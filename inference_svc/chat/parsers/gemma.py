"""Tool calls of Gemma 4 and FunctionGemma: `call:NAME{key:VALUE,…}` in markers.

Strings are enclosed in special markers instead of quotes; other values are as in JSON, with bare
keys. Arguments are streamed as JSON.
"""

from inference_svc.chat.json_values import json_or_none, json_text
from inference_svc.chat.parsers.offered_tools import OfferedTools
from inference_svc.chat.parsers.output import TurnOutput
from inference_svc.chat.parsers.source import ParseSteps, Source
from inference_svc.structured_output.spec import ArgumentSyntax, ToolCallSyntax

BEGINS = ("<|tool_call>", "<start_function_call>")
ENDS = ("<tool_call|>", "<end_function_call>")
QUOTES = ('<|"|>', "<escape>")
THOUGHT, THOUGHT_END = FRAMES = ("<|channel>", "<channel|>")
MARKERS = (*BEGINS, *ENDS, *QUOTES, *FRAMES)
STOP_TEXTS = ("<|tool_response>", "<start_function_response>")
_KEY = r'[^:{}\[\],<"\s\x1c-\x1f]+'
"""White space around a key is not part of it; of the controls Rust counts fewer as such."""
_ARGUMENTS = ArgumentSyntax(
    begin="",
    key_end=":",
    between=",",
    quotes=tuple((quote, quote) for quote in QUOTES),
    brackets=True,
    key=_KEY,
    extra_key=_KEY,
    quotes_other_keys=True,
    sorts_keys=True,
)
SYNTAXES = tuple(
    ToolCallSyntax(head=f"{begin}call:", middle="{", tail=f"}}{end}", arguments=_ARGUMENTS)
    for begin, end in zip(BEGINS, ENDS, strict=True)
)
_MAX_DEPTH = 32


def read_gemma(source: Source, output: TurnOutput, tools: OfferedTools) -> ParseSteps[None]:
    """Parse a turn after the thought at its beginning. There may be more thoughts, and the model
    may close one that is not open."""
    begins = (*FRAMES, *(BEGINS if tools else ()))
    while begin := (yield from output.content_until(source, begins)):
        if begin in FRAMES:
            if begin == THOUGHT and (yield from source.literal("thought")):
                yield from source.until((THOUGHT_END,), output.thought_sink())
            continue
        yield from source.spaces()
        has_name = bool((yield from source.literal("call:", ":")))
        name = yield from source.name()
        yield from source.spaces()
        if not has_name or not name or not (yield from source.literal("{")):
            output.add_content(source.since_mark)
            continue
        output.begin_call(name)
        if (yield from _Arguments(source, output, tools, name).read()):
            yield from source.spaces()
            yield from source.literal(*ENDS)
        else:
            yield from source.until(ENDS, output.add_arguments)


class _Arguments:
    """Parses the arguments of one call; methods return whether parsing can continue."""

    def __init__(self, source: Source, output: TurnOutput, tools: OfferedTools, name: str) -> None:
        self._source = source
        self._write = output.add_arguments
        self._tools = tools
        self._name = name
        self._last_key = ""

    def read(self) -> ParseSteps[bool]:
        """Read to the closing brace."""
        return (yield from self._items("{", "}", 0))

    def _items(self, opener: str, closer: str, depth: int) -> ParseSteps[bool]:
        source = self._source
        self._write(opener)
        while True:
            yield from source.spaces()
            if (yield from source.literal(closer)):
                self._write(closer)
                return True
            if closer == "}" and not (yield from self._key()):
                return False
            if depth == _MAX_DEPTH or not (yield from self._value(depth + 1)):
                return False
            yield from source.spaces()
            if (yield from source.literal(",")):
                self._write(", ")
            elif (yield from source.peek()) != closer:
                return False

    def _key(self) -> ParseSteps[bool]:
        source = self._source
        key: str | None
        quote = yield from source.literal(*QUOTES)
        if quote:
            position = source.position
            yield from source.until((quote,))
            key = source.since(position).removesuffix(quote)
        elif (yield from source.peek()) == '"':
            key = json_or_none((yield from source.string()))
        else:
            key = (yield from source.chars(_in_key)).strip() or None
        yield from source.spaces()
        if key is None or not (yield from source.literal(":")):
            return False
        self._write(f"{json_text(key)}: ")
        self._last_key = key
        return True

    def _value(self, depth: int) -> ParseSteps[bool]:
        source = self._source
        yield from source.spaces()
        opener = yield from source.literal("{", "[", *QUOTES)
        if opener in ("{", "["):
            return (yield from self._items(opener, "}" if opener == "{" else "]", depth))
        if opener and depth == 1 and not self._takes_text():
            return (yield from self._converted(opener))
        if opener:
            self._write('"')
            end = yield from source.until((opener,), self._write_text)
            self._write('"' if end else "")
            return bool(end)
        if (yield from source.peek()) == '"':
            text = yield from source.string()
            self._write(text)
            return text != ""
        word = (yield from source.chars(_in_word)).strip()
        if not word:
            return False
        self._write(word if json_or_none(word) is not None or word == "null" else json_text(word))
        return True

    def _takes_text(self) -> bool:
        return self._tools.takes_text(self._name, self._last_key, is_text=True)

    def _converted(self, quote: str) -> ParseSteps[bool]:
        """Read a string that the schema excludes; FunctionGemma encloses all values."""
        written: list[str] = []
        end = yield from self._source.until((quote,), written.append)
        if end:
            self._write(self._tools.as_json(self._name, (self._last_key,), "".join(written)))
        return bool(end)

    def _write_text(self, text: str) -> None:
        self._write(json_text(text)[1:-1])


def _in_key(character: str) -> bool:
    return character not in ':{}[],<"'


def _in_word(character: str) -> bool:
    return character not in ",{}[]<"
