"""Arguments of calls with a tag for each, as in Qwen3-Coder, GLM, MiniMax, Kimi K3, DeepSeek V4:

    <tool_call><function=NAME><parameter=KEY>VALUE</parameter>…</function></tool_call>

Values have no quotes: their types are taken from the tool's schema, or else guessed. Strings are
streamed. MiniMax M3 also writes objects and lists as tags.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from inference_svc.chat.json_values import json_text
from inference_svc.chat.parsers.json_calls import Read
from inference_svc.chat.parsers.json_scanner import ScanState
from inference_svc.chat.parsers.notation import Tags
from inference_svc.chat.parsers.offered_tools import OfferedTools
from inference_svc.chat.parsers.output import TurnOutput
from inference_svc.chat.parsers.source import ParseSteps, Source

_MAX_DEPTH = 32
"""Of tags inside a value; one with more is text."""


class TagArguments:
    """Parses the arguments of one call, up to the first of `ends`, the text that ends it; the
    others may be without it."""

    def __init__(
        self,
        tags: Tags,
        ends: Sequence[str],
        name: str,
        source: Source,
        output: TurnOutput,
        tools: OfferedTools,
    ) -> None:
        self._tags = tags
        self._call_end = ends[0]
        self._ends = ends
        self._name = name
        self._source = source
        self._output = output
        self._tools = tools
        self._has_begun = False
        self._separator = "{"

    def read(self) -> ParseSteps[Read]:
        """Read the arguments; nothing was emitted if there are none. The call is emitted
        with its first argument; if the turn is cut off inside it, its arguments are not closed."""
        source, tags = self._source, self._tags
        while True:
            yield from source.spaces()
            if tags.json[0] and (yield from source.literal(tags.json[0])):
                yield from self._json()
                return Read.CALL
            expected = (*self._ends, tags.begin)
            tag = yield from source.literal(*expected)
            if tag == tags.begin:
                if (yield from self._argument()):
                    continue
                tag = ""
            if tag:
                self._close()
                return Read.CALL
            if not self._has_begun:
                return Read.NOTHING
            if not source.is_truncated(*expected):
                self._close()
            self._output.add_content(source.since_mark)
            return Read.CALL

    def _json(self) -> ParseSteps[None]:
        self._begin()
        source, ends = self._source, (self._tags.json[1], self._call_end)
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
        is_text = len(tags.key_ends) > 1 and key_end == tags.key_ends[0]
        value = _Value(padded=tags.padded)
        value_end = tags.value_end.replace("$key", key)
        ends = (value_end,) if tags.nesting else (value_end, tags.begin, self._call_end)
        if tags.quotes and (yield from source.literal(tags.quotes[0])):
            ends = (tags.quotes[1],)
        if self._tools.takes_text(self._name, key, is_text=is_text):
            output.add_arguments('"')
            end = yield from source.until(
                ends,
                lambda text: output.add_arguments(json_text(value.feed(text))[1:-1]),
                stay=True,
            )
            output.add_arguments('"' if end else "")
        elif tags.nesting:
            output.add_arguments((yield from self._nested(key, value_end)))
        else:
            written = [value.feed((yield from self._brackets()))]
            end = yield from source.until(
                ends, lambda text: written.append(value.feed(text)), stay=True
            )
            if end:
                output.add_arguments(self._tools.as_json(self._name, (key,), "".join(written)))
        if tags.quotes:
            yield from source.literal(tags.quotes[1])
        yield from source.literal(value_end)
        source.mark()
        return True

    def _brackets(self) -> ParseSteps[str]:
        """Read a JSON object or list, inside which nothing ends the value."""
        source, nesting = self._source, self._tags.nesting
        position = source.position
        yield from source.spaces()
        is_open = (yield from source.peek()) in ("{", "[")
        is_closed = is_open and (yield from source.json()) is ScanState.CLOSED
        # MiniMax M3's tags begin with a bracket, which does not close what is open.
        if not is_closed or (nesting and (yield from source.literal(nesting[1:]))):
            source.rewind(position)
        return source.since(position)

    def _nested(self, key: str, value_end: str) -> ParseSteps[str]:
        """Read a value that may have tags inside, up to its closing tag; return it as JSON, or an
        empty text if the turn ends inside. A closing tag closes all that is open in it, as does the
        end of the call; one that closes nothing is dropped."""
        source, begin = self._source, f"{self._tags.nesting}<"
        open_tags, written = [_Tag(key)], list[str]()
        while len(open_tags) <= _MAX_DEPTH:
            position = source.position
            yield from self._brackets()
            if not (yield from source.until((begin,), stay=True)):
                return ""
            written.append(source.since(position))
            open_tags[-1].text += written[-1]
            source.mark()
            yield from source.literal(begin)
            slash = yield from source.literal("/")
            tag = yield from source.chars(_in_key)
            yield from source.literal(">")
            written.append(source.since_mark)
            if not slash:
                open_tags.append(_Tag(tag))
            elif value := self._closed(open_tags, tag):
                source.rewind(source.position - len(source.since_mark))
                return value
        if not (yield from source.until((value_end,), written.append, stay=True)):
            return ""
        return self._tools.as_json(self._name, (key,), "".join(written))

    def _closed(self, open_tags: "list[_Tag]", name: str) -> str:
        """Close the last tag of this name and those inside it; all of them at the end of the call.
        Returns the value of the first tag if that is closed, else an empty text."""
        names = [tag.name for tag in open_tags]
        is_end = f"{self._tags.nesting}</{name}>" == self._call_end
        while name in names or is_end:
            tag = open_tags.pop()
            value = tag.as_json(self._tools, self._name, names[: len(open_tags) + 1])
            if not open_tags:
                return value
            open_tags[-1].members.append((tag.name, value))
            if name == tag.name:
                break
        return ""

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


@dataclass
class _Tag:
    """What was read of a value: a text, an object, or a list of `<item>` tags."""

    name: str
    text: str = ""
    members: list[tuple[str, str]] = field(default_factory=list)

    def as_json(self, tools: OfferedTools, tool: str, path: Sequence[str]) -> str:
        if not self.members:
            return tools.as_json(tool, path, self.text)
        if all(name == "item" for name, _ in self.members):
            return f"[{', '.join(value for _, value in self.members)}]"
        return "{" + ", ".join(f"{json_text(name)}: {value}" for name, value in self.members) + "}"


def _in_key(character: str) -> bool:
    return character not in '<>"\n'
