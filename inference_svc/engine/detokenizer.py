"""Incremental detokenization with stop strings.

Emits whole characters only, and holds back text that may be the beginning of a stop string. The
result does not depend on how the bytes are split into tokens.
"""

import codecs
from collections.abc import Sequence
from itertools import repeat
from typing import Protocol

_NO_CONTENT = "\ud800"
"""Stands for a character that is no content: in no text, and so in no stop string."""


class ContentFinder(Protocol):
    """Finds the content in the text of a turn. Positions count its characters."""

    @property
    def num_decided(self) -> int:
        """How many characters are content already or will never be."""

    def feed(self, text: str) -> Sequence[tuple[int, int]]:
        """Add text; return where new content begins and ends."""

    def finish(self, *, at_limit: bool) -> Sequence[tuple[int, int]]:
        """End the text, by itself or at a limit; return where new content begins and ends."""


class Detokenizer:
    """Detokenizes one sequence. The text ends before the stop string, or with it if
    `include_stop`.

    With `content`, the strings of `stop` end the text only where they are in one piece of content;
    those of `ends` do everywhere.
    """

    def __init__(
        self,
        stop: Sequence[str] = (),
        *,
        ends: Sequence[str] = (),
        include_stop: bool = False,
        content: ContentFinder | None = None,
    ) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        everywhere = (*ends, *(stop if content is None else ()))
        self._text = _StopMatcher(everywhere, include_stop=include_stop)
        self._content = None
        if content is not None and stop:
            self._content = _ContentMatcher(stop, content, include_stop=include_stop)

    @property
    def stop(self) -> str | None:
        """The stop string that ended the text, if any. One in the content is before the others."""
        found = self._content.stop if self._content is not None else None
        return self._text.stop if found is None else found

    def push(self, piece: bytes) -> str:
        """Add the bytes of a token; return the text that can be sent now."""
        return self._release(self._text.push(self._decoder.decode(piece)))

    def finish(self, *, at_limit: bool = False) -> str:
        """Return the text that was held back. An incomplete character becomes U+FFFD. `at_limit`:
        the text was cut off."""
        if self.stop is not None:
            return ""
        text = self._text.push(self._decoder.decode(b"", final=True)) + self._text.finish()
        if self._content is None:
            return text
        return self._content.push(text) + self._content.finish(at_limit=at_limit)

    def _release(self, text: str) -> str:
        if self._content is None:
            return text
        text = self._content.push(text)
        if self._text.stop is not None and self._content.stop is None:
            text += self._content.finish(at_limit=False)
        return text


class _StopMatcher:
    """Finds the first stop string in a text that arrives in pieces."""

    def __init__(self, stops: Sequence[str], *, include_stop: bool) -> None:
        self.stop: str | None = None
        self._stops = tuple(stops)
        self._beginnings = frozenset(stop[:1] for stop in stops)
        self._include_stop = include_stop
        self._held = ""

    def push(self, text: str) -> str:
        """Add text; return what is certainly before the stop string."""
        if not self._held and self._beginnings.isdisjoint(text):
            return text  # no stop string begins in it
        buffer = self._held + text
        match = self._first_match(buffer)
        if match is not None:
            start, self.stop = match
            self._held = ""
            return buffer[: start + len(self.stop) if self._include_stop else start]
        end = len(buffer) - partial_marker(buffer, self._stops)
        self._held = buffer[end:]
        return buffer[:end]

    def finish(self) -> str:
        """Return the text that was held back."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, buffer: str) -> tuple[int, str] | None:
        """The position and the text of the stop string that ends first."""
        matches = [
            (at + len(stop), at, stop) for stop in self._stops if (at := buffer.find(stop)) >= 0
        ]
        return min(matches)[1:] if matches else None


class _ContentMatcher:
    """Finds the first stop string in the content of a text that arrives in pieces: in the same text
    with other characters in the place of those that are no content."""

    def __init__(self, stops: Sequence[str], content: ContentFinder, *, include_stop: bool) -> None:
        self._matcher = _StopMatcher(stops, include_stop=include_stop)
        self._content = content
        self._text = ""  # not released
        self._num_released = 0
        self._num_read = 0  # by the matcher

    @property
    def stop(self) -> str | None:
        """The stop string that ended the text, if any."""
        return self._matcher.stop

    def push(self, text: str) -> str:
        """Add text; return what is certainly before the stop string."""
        if self.stop is not None:
            return ""
        self._text += text
        return self._read(self._content.feed(text), self._content.num_decided)

    def finish(self, *, at_limit: bool) -> str:
        """End the text; return what was held back."""
        if self.stop is not None:
            return ""
        ranges = self._content.finish(at_limit=at_limit)
        text = self._read(ranges, self._num_released + len(self._text))
        if self.stop is None:
            text, self._text = text + self._text, ""
        return text

    def _read(self, ranges: Sequence[tuple[int, int]], end: int) -> str:
        """Match the text up to a position, of which these parts are content."""
        pieces, at = [], self._num_read
        for begin, content_end in ranges:
            pieces.append(_NO_CONTENT * (begin - at))
            pieces.append(self._text[begin - self._num_released : content_end - self._num_released])
            at = content_end
        pieces.append(_NO_CONTENT * (end - at))
        self._num_read = max(at, end)
        size = len(self._matcher.push("".join(pieces)))
        released, self._text = self._text[:size], self._text[size:]
        self._num_released += size
        return released


def partial_marker(text: str, markers: Sequence[str]) -> int:
    """Return the length of the longest suffix of `text` that is the beginning of a marker. The text
    has no whole marker."""
    max_length = max(map(len, markers), default=0)
    firsts = {marker[:1] for marker in markers}
    for length in range(min(len(text), max_length - 1), 0, -1):
        if text[-length] in firsts and any(map(str.startswith, markers, repeat(text[-length:]))):
            return length
    return 0
