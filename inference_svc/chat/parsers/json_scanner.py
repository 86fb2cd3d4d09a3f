"""Scans JSON text character by character, to find the end of a value while it streams."""

from enum import Enum

_MAX_DEPTH = 128


class ScanState(Enum):
    OPEN = "inside the value"
    CLOSED = "the value is complete"
    BROKEN = "not JSON"


class JsonScan:
    """Scans one object or array and the white space before it; `is_open`: the opening brace of an
    object has been read.

    Only brackets, strings and the nesting depth are checked. Values nested too deeply count as
    broken, since parsing them would overflow the stack.
    """

    def __init__(self, *, is_open: bool = False) -> None:
        self.state = ScanState.OPEN
        self._closers: list[str] = ["}"] if is_open else []
        self.is_in_string = False
        self._escaped = False

    def feed(self, character: str) -> ScanState:
        """Scan the next character. Must not be called after the value is complete or broken."""
        if self.is_in_string:
            self._feed_string(character)
        elif character == '"' and self._closers:
            self.is_in_string = True
        elif character in "{[":
            if len(self._closers) == _MAX_DEPTH:
                self.state = ScanState.BROKEN
            self._closers.append("}" if character == "{" else "]")
        elif character in "}]":
            if not self._closers or self._closers.pop() != character:
                self.state = ScanState.BROKEN
            elif not self._closers:
                self.state = ScanState.CLOSED
        elif character.isspace():
            pass
        elif not self._closers or character in "<>'":
            self.state = ScanState.BROKEN
        return self.state

    def _feed_string(self, character: str) -> None:
        if self._escaped:
            self._escaped = False
        elif character == "\\":
            self._escaped = True
        elif character == '"':
            self.is_in_string = False
        elif character < " ":
            self.state = ScanState.BROKEN
