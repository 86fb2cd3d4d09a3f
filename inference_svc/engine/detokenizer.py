"""Incremental detokenization with stop strings.

Emits whole characters only, and holds back text that may be the beginning of a stop string. The
result does not depend on how the bytes are split into tokens.
"""

import codecs
from collections.abc import Sequence
from itertools import repeat


class Detokenizer:
    """Detokenizes one sequence. The text ends before the stop string, or with it if
    `include_stop`."""

    def __init__(self, stop: Sequence[str] = (), *, include_stop: bool = False) -> None:
        self.stop: str | None = None
        """The stop string that ended the text, if any."""
        self._stops = tuple(stop)
        self._include_stop = include_stop
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""

    def push(self, piece: bytes) -> str:
        """Add the bytes of a token; return the text that can be sent now."""
        return self._release(self._decoder.decode(piece))

    def finish(self) -> str:
        """Return the text that was held back. An incomplete character becomes U+FFFD."""
        if self.stop is not None:
            return ""
        released = self._release(self._decoder.decode(b"", final=True))
        held, self._held = self._held, ""
        return released + held

    def _release(self, text: str) -> str:
        if not self._stops or not text:
            return text
        buffer = self._held + text
        match = self._first_match(buffer)
        if match is not None:
            start, self.stop = match
            self._held = ""
            return buffer[: start + len(self.stop) if self._include_stop else start]
        end = len(buffer) - partial_marker(buffer, self._stops)
        self._held = buffer[end:]
        return buffer[:end]

    def _first_match(self, buffer: str) -> tuple[int, str] | None:
        """The position and the text of the stop string that ends first."""
        matches = [
            (at + len(stop), at, stop) for stop in self._stops if (at := buffer.find(stop)) >= 0
        ]
        return min(matches)[1:] if matches else None


def partial_marker(text: str, markers: Sequence[str]) -> int:
    """Return the length of the longest suffix of `text` that is the beginning of a marker. The text
    has no whole marker."""
    max_length = max(map(len, markers), default=0)
    firsts = {marker[:1] for marker in markers}
    for length in range(min(len(text), max_length - 1), 0, -1):
        if text[-length] in firsts and any(map(str.startswith, markers, repeat(text[-length:]))):
            return length
    return 0
