"""Finds markers in text that arrives in pieces."""

from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

from inference_svc.chat.parsers.json_scanner import JsonScan, ScanState


def partial_marker(text: str, marker: str) -> int:
    """Return the length of the longest end of `text` that begins, but is not all of, `marker`."""
    for length in range(min(len(marker) - 1, len(text)), 0, -1):
        if text.endswith(marker[:length]):
            return length
    return 0


class MarkerScanner:
    """Text whose outer white space is left out, though it arrives in pieces.

    White space at the end is held back until something follows it.
    """

    def __init__(self) -> None:
        self._held = ""
        self._begun = False

    def feed(self, text: str) -> str:
        """Take more text; return what is now certain to be inside."""
        if not self._begun:
            text = text.lstrip()
        if not text:
            return ""
        self._begun = True
        text = self._held + text
        inside = text.rstrip()
        self._held = text[len(inside) :]
        return inside


T = TypeVar("T")
ParseSteps = Generator[None, None, T]
TextSink = Callable[[str], None]


class Source:
    """The text of one turn, as far as it has come.

    Invariant: what was read since the mark, and not passed on, is kept, so that a reader that went
    wrong can give it out as it was written. Places count from the beginning of the turn.
    """

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._mark = 0
        self._gone = 0  # characters in front of `_text`
        self._has_ended = False

    def feed(self, text: str) -> None:
        """Add more text."""
        self._text = self._text[self._mark :] + text
        self._gone += self._mark
        self._at -= self._mark
        self._mark = 0

    def end(self) -> None:
        """End the input."""
        self._has_ended = True

    def mark(self) -> None:
        """Let go of everything before this place."""
        self._mark = self._at

    @property
    def since_mark(self) -> str:
        """What was read since the mark, or since text was last passed on."""
        return self._text[self._mark : self._at]

    @property
    def place(self) -> int:
        """Where the source stands."""
        return self._gone + self._at

    def since(self, place: int) -> str:
        """What was read since a place behind the mark."""
        return self._text[place - self._gone : self._at]

    def rewind(self, place: int) -> None:
        """Go back to a place behind the mark."""
        self._at = place - self._gone

    def more(self) -> ParseSteps[bool]:
        """Wait for more text, or the end; false where the end is known already."""
        if self._has_ended:
            return False
        yield
        return True

    def peek(self) -> ParseSteps[str]:
        """Wait for the next character and leave it there; empty at the end."""
        while self._at == len(self._text) and (yield from self.more()):
            pass
        return self._text[self._at : self._at + 1]

    def literal(self, *options: str) -> ParseSteps[str]:
        """Take the first of these texts that comes next; empty where none does."""
        while True:
            for option in options:
                rest = self._text[self._at : self._at + len(option)]
                if rest == option:
                    self._at += len(option)
                    return option
                if option.startswith(rest) and not self._has_ended:
                    break
            else:
                return ""
            yield from self.more()

    def breaks_off(self, *options: str) -> bool:
        """Whether the turn is over, and one of these texts was perhaps coming."""
        rest = self._text[self._at :]
        return self._has_ended and any(option.startswith(rest) for option in options)

    def chars(self, wanted: Callable[[str], bool]) -> ParseSteps[str]:
        """Take characters as long as they are wanted."""
        place = self.place
        while (character := (yield from self.peek())) and wanted(character):
            self._at += 1
        return self.since(place)

    def skip(self) -> None:
        """Take the character that `peek` showed."""
        self._at += 1

    def spaces(self) -> ParseSteps[str]:
        """Take white space."""
        return (yield from self.chars(str.isspace))

    def until(
        self, markers: Sequence[str], take: TextSink | None = None, *, stay: bool = False
    ) -> ParseSteps[str]:
        """Pass text on up to the first of these markers, and take the marker; empty at the end.

        Args:
            take: gets the text; without it the text is kept for `since`.
            stay: leave the marker where it is.
        """
        while True:
            places = ((self._text.find(marker, self._at), marker) for marker in markers)
            found = min((each for each in places if each[0] >= 0), default=None)
            if found:
                self._pass_on(found[0], take)
                self._at += 0 if stay else len(found[1])
                return found[1]
            rest = self._text[self._at :]
            keep = max((partial_marker(rest, marker) for marker in markers), default=0)
            if self._has_ended:
                keep = 0
            self._pass_on(len(self._text) - keep, take)
            if not (yield from self.more()):
                return ""

    def json(self, take: TextSink | None = None, *, is_open: bool = False) -> ParseSteps[ScanState]:
        """Pass one object or array on, with the white space before it.

        Where it cannot be JSON, what comes before the first wrong character is passed on.

        Args:
            is_open: the object's opening brace has been read.
        """
        scan = JsonScan(is_open=is_open)
        while True:
            at = self._at
            while at < len(self._text) and scan.feed(self._text[at]) is ScanState.OPEN:
                at += 1
            self._pass_on(at + (scan.state is ScanState.CLOSED), take)
            if scan.state is not ScanState.OPEN or not (yield from self.more()):
                return scan.state

    def string(self) -> ParseSteps[str]:
        """Take a JSON string, quotes included; empty where none comes next or it breaks off."""
        place = self.place
        if not (yield from self.literal('"')):
            return ""
        while (character := (yield from self.peek())) >= " ":
            self._at += 1
            if character == '"':
                return self.since(place)
            if character == "\\" and (yield from self.peek()):
                self._at += 1
        return ""

    def _pass_on(self, end: int, take: TextSink | None) -> None:
        """Move to `end`; the text before it is given out, or kept."""
        text, self._at = self._text[self._at : end], end
        if take is not None:
            self._mark = end
            if text:
                take(text)
