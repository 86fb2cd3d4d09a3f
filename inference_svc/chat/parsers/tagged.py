"""Arguments of calls with a tag for each, as in Qwen3-Coder, GLM, MiniMax, Kimi K3, DeepSeek V4:

    <tool_call><function=NAME><parameter=KEY>VALUE</parameter>…</function></tool_call>

Values have no quotes: their types are taken from the tool's schema, or else guessed. Strings are
streamed. MiniMax M3 also writes objects and lists as tags.
"""

import re
from collections.abc import Sequence

from inference_svc.chat.json_values import json_text
from inference_svc.chat.parsers.json_calls import Read
from inference_svc.chat.parsers.json_scanner import ScanState
from inference_svc.chat.parsers.notation import Tags
from inference_svc.chat.parsers.offered_tools import OfferedTools
from inference_svc.chat.parsers.output import TurnOutput
from inference_svc.chat.parsers.source import ParseSteps, Source


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


def _in_key(character: str) -> bool:
    return character not in '<>"\n'
