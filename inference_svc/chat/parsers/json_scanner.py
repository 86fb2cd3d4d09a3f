"""Follows JSON text character by character, to know where a value ends before it can be parsed."""

from enum import Enum

_MAX_DEPTH = 128


class ScanState(Enum):
    """Where a scan is."""

    OPEN = "inside the value"
    CLOSED = "the value is complete"
    BROKEN = "this cannot be JSON"


class JsonScan:
    """Scans one object or array, and white space before it.

    It checks brackets, strings and nesting, not every rule of JSON. Nested deeper than any tool's
    arguments counts as broken: reading or writing it would overrun the stack.

    Args:
        is_open: the value is an object whose opening brace has been read.
    """

    def __init__(self, *, is_open: bool = False) -> None:
        self.state = ScanState.OPEN
        self._closers: list[str] = ["}"] if is_open else []
        self._in_string = False
        self._escaped = False

    def feed(self, character: str) -> ScanState:
        """Take the next character; nothing after the value is complete or broken."""
        if self._in_string:
            self._feed_string(character)
        elif character == '"' and self._closers:
            self._in_string = True
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
            self._in_string = False
        elif character < " ":
            self.state = ScanState.BROKEN
