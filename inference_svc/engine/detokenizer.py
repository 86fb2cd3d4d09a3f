"""Detokenizes incrementally: whole characters only, and no text that may become part of a stop
text.

The result does not depend on how bytes are split. A stop text ends the text where it begins.
"""

import codecs
from collections.abc import Sequence
from typing import NamedTuple


class TextChunk(NamedTuple):
    """Text that may be sent, and the stop text that ended the stream, if one did."""

    text: str
    stop: str | None


class Detokenizer:
    """The text of one sequence."""

    def __init__(self, stop: Sequence[str] = (), *, include_stop: bool = False) -> None:
        self._stops = tuple(stop)
        self._include_stop = include_stop
        self._longest = max(map(len, self._stops), default=0)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""

    def push(self, piece: bytes) -> TextChunk:
        """Add a token's bytes."""
        return self._release(self._decoder.decode(piece))

    def finish(self) -> TextChunk:
        """Release what was held back; bytes of an unfinished character become U+FFFD."""
        released = self._release(self._decoder.decode(b"", final=True))
        if released.stop is not None:
            return released
        held, self._held = self._held, ""
        return TextChunk(released.text + held, None)

    def _release(self, text: str) -> TextChunk:
        if not self._stops or not text:
            return TextChunk(text, None)
        buffer = self._held + text
        match = self._first_match(buffer)
        if match is not None:
            start, stop = match
            self._held = ""
            return TextChunk(
                buffer[: start + len(stop)] if self._include_stop else buffer[:start], stop
            )
        keep = self._held_back(buffer)
        self._held = buffer[len(buffer) - keep :]
        return TextChunk(buffer[: len(buffer) - keep], None)

    def _first_match(self, buffer: str) -> tuple[int, str] | None:
        found = [
            (at + len(stop), at, stop) for stop in self._stops if (at := buffer.find(stop)) >= 0
        ]
        if not found:
            return None
        _, start, stop = min(found)
        return start, stop

    def _held_back(self, buffer: str) -> int:
        """The length of the longest end of `buffer` that begins a stop text."""
        for length in range(min(len(buffer), self._longest - 1), 0, -1):
            tail = buffer[-length:]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0
