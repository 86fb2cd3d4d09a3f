"""Incremental text input of parsers, with matching of markers across pieces."""

import re
from collections.abc import Callable, Generator, Sequence
from functools import lru_cache
from typing import TypeVar

from inference_svc.chat.parsers.json_scanner import JsonScan, ScanState
from inference_svc.engine.detokenizer import partial_marker


class TextStripper:
    """Strips outer white space from a text that arrives in pieces. White space at the end of a
    piece is held back until other text follows."""

    def __init__(self) -> None:
        self._pending = ""
        self._has_text = False

    def feed(self, text: str) -> str:
        """Add a piece; returns the text that is certain to be inside."""
        if not self._has_text:
            text = text.lstrip()
        if not text:
            return ""
        self._has_text = True
        text = self._pending + text
        inside = text.rstrip()
        self._pending = text[len(inside) :]
        return inside


T = TypeVar("T")
ParseSteps = Generator[None, None, T]
TextSink = Callable[[str], None]


class Source:
    """The text of one turn so far, with a read position.

    Text read since the mark is buffered, so that a parser that fails can emit it as content.
    Positions count characters from the beginning of the turn.
    """

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._mark = 0
        self._num_dropped = 0  # characters before `_text`
        self.has_ended = False
        """Whether no more text comes."""

    def feed(self, text: str) -> None:
        self._text = self._text[self._mark :] + text
        self._num_dropped += self._mark
        self._at -= self._mark
        self._mark = 0

    def end(self) -> None:
        self.has_ended = True

    def drop_unread(self) -> int:
        """Drop the text behind the read position, which is the beginning of what is awaited; return
        its length."""
        length = self.num_unread
        self._text = self._text[: self._at]
        return length

    def mark(self) -> None:
        """Set the mark here; text before it is dropped."""
        self._mark = self._at

    @property
    def since_mark(self) -> str:
        """The text read since the mark, or since text was last passed to a sink."""
        return self._text[self._mark : self._at]

    @property
    def undecided(self) -> str:
        """The text behind the mark."""
        return self._text[self._mark :]

    @property
    def is_inside(self) -> bool:
        """Whether text was read that has not been passed to a sink, as inside the head of a
        call."""
        return self._at > self._mark

    @property
    def num_unread(self) -> int:
        """The number of characters behind the read position."""
        return len(self._text) - self._at

    @property
    def num_undecided(self) -> int:
        """The number of characters behind the mark."""
        return len(self._text) - self._mark

    @property
    def position(self) -> int:
        return self._num_dropped + self._at

    def since(self, position: int) -> str:
        """The text read since a position behind the mark."""
        return self._text[position - self._num_dropped : self._at]

    def rewind(self, position: int) -> None:
        """Go back to a position behind the mark."""
        self._at = position - self._num_dropped

    def more(self) -> ParseSteps[bool]:
        """Wait for more text or the end; False if the input has ended."""
        if self.has_ended:
            return False
        yield
        return True

    def peek(self) -> ParseSteps[str]:
        """Return the next character without reading it; empty at the end."""
        while self._at == len(self._text) and (yield from self.more()):
            pass
        return self._text[self._at : self._at + 1]

    def literal(self, *options: str) -> ParseSteps[str]:
        """Read the first of these texts that comes next; empty if none does."""
        while True:
            for option in options:
                rest = self._text[self._at : self._at + len(option)]
                if rest == option:
                    self._at += len(option)
                    return option
                if option.startswith(rest) and not self.has_ended:
                    break
            else:
                return ""
            yield from self.more()

    def is_truncated(self, *options: str) -> bool:
        """Whether the input has ended where one of these texts may have been cut off."""
        rest = self._text[self._at :]
        return self.has_ended and any(option.startswith(rest) for option in options)

    def chars(self, predicate: Callable[[str], bool]) -> ParseSteps[str]:
        """Read characters while `predicate` is true."""
        position = self.position
        while (character := (yield from self.peek())) and predicate(character):
            self._at += 1
        return self.since(position)

    def skip(self) -> None:
        """Read the character that `peek` returned."""
        self._at += 1

    def name(self, more: str = "") -> ParseSteps[str]:
        """Read the name of a tool: letters, digits, "_", "-", "." and the characters of `more`."""
        others = f"_-.{more}"
        return (yield from self.chars(lambda each: each.isalnum() or each in others))

    def spaces(self) -> ParseSteps[str]:
        """Read white space."""
        return (yield from self.chars(str.isspace))

    def until(
        self, markers: Sequence[str], sink: TextSink | None = None, *, stay: bool = False
    ) -> ParseSteps[str]:
        """Read up to and including the first of these markers; returns it, or an empty text at the
        end. `sink` receives the text before it, if set; `stay` does not read the marker."""
        while True:
            text, begin = self._text, self._at
            if match := _any_of((*markers,)).search(text, begin):
                self._advance(match.start(), sink)
                self._at += 0 if stay else len(match[0])
                return match[0]
            held_back = 0 if self.has_ended else partial_marker(text[begin:], markers)
            self._advance(len(text) - held_back, sink)
            if not (yield from self.more()):
                return ""

    def json(self, sink: TextSink | None = None, *, is_open: bool = False) -> ParseSteps[ScanState]:
        """Read a JSON object or array and the white space before it, up to the first character that
        cannot be JSON. `is_open`: the opening brace of an object has been read."""
        scan = JsonScan(is_open=is_open)
        while True:
            at = self._at
            while at < len(self._text) and scan.feed(self._text[at]) is ScanState.OPEN:
                at += 1
            self._advance(at + (scan.state is ScanState.CLOSED), sink)
            if scan.state is not ScanState.OPEN or not (yield from self.more()):
                return scan.state

    def string(self) -> ParseSteps[str]:
        """Read a JSON string with its quotes; empty if there is none or it is incomplete."""
        position = self.position
        if not (yield from self.literal('"')):
            return ""
        while (character := (yield from self.peek())) >= " ":
            self._at += 1
            if character == '"':
                return self.since(position)
            if character == "\\" and (yield from self.peek()):
                self._at += 1
        return ""

    def _advance(self, end: int, sink: TextSink | None) -> None:
        """Move to `end`, and pass the text before it to `sink`."""
        text, self._at = self._text[self._at : end], end
        if sink is not None:
            self._mark = end
            if text:
                sink(text)


@lru_cache(maxsize=1024)
def _any_of(markers: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, sorted(markers))) or "(?!)")
