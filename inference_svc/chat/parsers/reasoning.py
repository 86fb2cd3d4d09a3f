"""Splits a turn into reasoning and content.

Reasoning is at the start of a turn, or was opened by the prompt; then a second opening marker is
accepted. It ends with its closing marker, or where a whole call or answer is written: a marker of
these that is only mentioned is part of the thought.
White space around reasoning is dropped, and so are a repeated closing marker and the text that
opens an answer. The work is linear in the length of the turn.
"""

from collections.abc import Callable, Iterator
from enum import Enum

from inference_svc.chat.json_values import json_or_none
from inference_svc.chat.parsers.json_scanner import JsonScan, ScanState
from inference_svc.chat.parsers.offered_tools import OfferedTools
from inference_svc.chat.parsers.output import MAX_NOISE_CHARACTERS, TurnOutput
from inference_svc.chat.parsers.source import ParseSteps, Source, TextSink, TextStripper
from inference_svc.chat.parsers.turn import Markers
from inference_svc.engine.detokenizer import partial_marker

MAX_CALL_CHARACTERS = 8192
"""The length up to which what may be a call is held back; a longer one does not end a thought."""
MAX_BROKEN_CALLS = 8
"""After so many calls that begin in a thought and become no whole ones, markers are only text."""
_PIECE_CHARACTERS = 256
"""The length of the pieces in which text is read, so that little is read again."""


class _State(Enum):
    START = "only white space so far"
    THINKING = "inside the reasoning"
    CALLING = "inside the reasoning, in what may be a call"
    ANSWERING = "inside the reasoning, in what may be an answer"
    AFTER = "white space and markers after the reasoning"
    REST = "the rest of the turn"


class CallProbe:
    """Reads the text from a marker of calls on, to find out whether a whole call of an offered tool
    follows. `read` is the reader of the family."""

    def __init__(
        self,
        read: Callable[[Source, TurnOutput, OfferedTools], ParseSteps[None]],
        tools: OfferedTools,
    ) -> None:
        self._source = Source()
        self._output = _FirstCall(tools, position=lambda: self._source.position)
        self._steps = read(self._source, self._output, tools)

    @property
    def has_begun(self) -> bool:
        return self._output.num_calls > 0

    @property
    def is_open(self) -> bool:
        """Whether a call has begun and may become a whole one."""
        return self.has_begun and self._output.is_whole is None

    def feed(self, text: str) -> bool | None:
        """Add text; returns whether there is a whole call, None until that is certain."""
        self._source.feed(text)
        next(self._steps, None)
        return self._output.is_whole


class _FirstCall(TurnOutput):
    """Checks the first call, and that nothing is before it, and that nothing else ends it."""

    def __init__(self, tools: OfferedTools, *, position: Callable[[], int]) -> None:
        super().__init__(str, position=position)
        self._tools = tools
        self._scan = JsonScan()
        self._end: int | None = None
        self.is_whole: bool | None = None

    def add_content(self, text: str) -> None:
        # At the end of the call: its reader has closed it, because of this text.
        if text.strip() and (self.is_whole is None or self._end == self._position()):
            self.is_whole = False

    def begin_call(self, name: str, call_id: str = "") -> None:
        if self.is_whole is None and name in self._tools:
            super().begin_call(name, call_id or "call")
        elif self.is_whole is None:
            self.is_whole = False

    def add_arguments(self, text: str) -> None:
        if self.is_whole is not None:
            return
        for at, character in enumerate(text):
            if self._scan.feed(character) is not ScanState.OPEN:
                self._arguments.append(text[: at + 1])
                self.is_whole = json_or_none("".join(self._arguments)) is not None
                self._end = self._position()
                return
        self._arguments.append(text)


class ReasoningSplitter:
    """Splits text that arrives in pieces; `sink` receives the reasoning. `verbatim` preserves
    markers and white space.

    `interrupts` end the reasoning and are not part of it, unless the end of the reasoning follows
    within `MAX_NOISE_CHARACTERS`, and none of `frames` before it. `calls` do so if a whole call
    follows within `MAX_CALL_CHARACTERS`, which a new `probe` finds out. `opening` is what an answer
    may begin with, which is dropped.
    """

    def __init__(
        self,
        markers: Markers | None,
        sink: TextSink,
        *,
        opens_in_reasoning: bool,
        verbatim: bool,
        interrupts: tuple[str, ...] = (),
        frames: tuple[str, ...] = (),
        calls: tuple[str, ...] = (),
        probe: Callable[[], CallProbe] | None = None,
        opening: str = "",
    ) -> None:
        self._markers = Markers(markers.begin.lstrip(), markers.end) if markers else Markers("", "")
        self._calls = calls if probe is not None else ()
        self._interrupts = interrupts
        self._frames = frames
        self._new_probe = probe
        self._probe: CallProbe | None = None
        self._num_read = 0  # of what is pending, in what may be a call or an answer
        self._num_broken = 0
        self._opening = opening
        self._sink = sink
        self._is_open = opens_in_reasoning
        self._verbatim = verbatim
        self._pending = ""
        self._num_unread = 0
        self._stripper = TextStripper()
        self._state = _State.START if markers else _State.REST
        self.has_opened = False
        """Whether the text that opens an answer was dropped."""

    @property
    def is_thinking(self) -> bool:
        """Whether the model is inside its reasoning."""
        return self._state in (_State.THINKING, _State.CALLING, _State.ANSWERING) or (
            self._state is _State.START and self._is_open
        )

    @property
    def is_calling(self) -> bool:
        """Whether a call has begun inside the reasoning, which may become a whole one."""
        return self._state is _State.CALLING and self._probe is not None and self._probe.is_open

    @property
    def _ends(self) -> tuple[str, ...]:
        return (self._markers.end, *self._interrupts, *self._calls)

    @property
    def num_pending(self) -> int:
        """The number of characters that are held back or not read yet."""
        return len(self._pending) + self._num_unread

    def feed(self, text: str) -> str:
        """Split a piece of text; returns the part that is not reasoning."""
        if self._state is _State.REST:
            return text
        self._num_unread = len(text)
        return "".join(map(self._feed, _pieces(text)))

    def _feed(self, text: str) -> str:
        self._num_unread -= len(text)
        self._pending += text
        before = None
        while self._state is not before and self._state is not _State.REST:
            before = self._state
            self._step()
        if self._state is not _State.REST:
            return ""
        rest, self._pending = self._pending, ""
        return rest

    def drop_pending(self) -> int:
        """Drop the text that is held back, since it may be the beginning of a marker; return its
        length. What may be a call or an answer is not dropped."""
        if self._verbatim or self._state in (_State.CALLING, _State.ANSWERING):
            return 0
        length, self._pending = len(self._pending), ""
        return length

    def finish(self) -> str:
        """End the turn; returns the text that was held back and is not reasoning."""
        pending, self._pending = self._pending, ""
        if not self.is_thinking or self._state is _State.ANSWERING:
            return pending
        self._add_reasoning(pending)
        return ""

    def _step(self) -> None:
        if self._state is _State.START:
            self._read_start()
        elif self._state is _State.THINKING:
            self._read_reasoning()
        elif self._state is _State.CALLING:
            self._read_call()
        elif self._state is _State.ANSWERING:
            self._read_answer()
        else:
            self._read_after()

    def _read_start(self) -> None:
        begin, end = self._markers
        trimmed = self._pending.lstrip()
        if trimmed.startswith(begin):
            self._state = _State.THINKING
            spaces = len(self._pending) - len(trimmed)
            opening, self._pending = self._pending[: spaces + len(begin)], trimmed[len(begin) :]
            if self._verbatim:
                self._sink(opening)
        elif not self._verbatim and self._drop_marker(trimmed):
            self._state = _State.AFTER
        elif trimmed and not any(text.startswith(trimmed) for text in (begin, end, self._opening)):
            self._state = _State.THINKING if self._is_open else _State.REST

    def _read_reasoning(self) -> None:
        found = [(at, end) for end in self._ends if (at := self._pending.find(end)) >= 0]
        if found:
            at, end = min(found)
            marker = end if end == self._markers.end else ""
            if marker:
                self._state = _State.REST if self._verbatim else _State.AFTER
            elif self._new_probe is not None and end in self._calls:
                self._probe, self._num_read, self._state = self._new_probe(), 0, _State.CALLING
            else:
                self._num_read, self._state = len(end), _State.ANSWERING
            text, self._pending = self._pending[:at], self._pending[at + len(marker) :]
        else:
            marker = ""
            size = len(self._pending) - partial_marker(self._pending, self._ends)
            text, self._pending = self._pending[:size], self._pending[size:]
        self._add_reasoning(text, marker)

    def _read_call(self) -> None:
        """Read what may be a call; the end of the reasoning is in none."""
        end = self._markers.end
        at = self._pending.find(end, max(0, self._num_read - len(end)))
        size = len(self._pending) - partial_marker(self._pending, (end,)) if at < 0 else at
        size = min(size, MAX_CALL_CHARACTERS)
        is_call = self._probe_to(size)
        if is_call:
            self._state = _State.REST
        elif is_call is False:
            marker = next(text for text in self._calls if self._pending.startswith(text))
            self._num_broken += self._probe is not None and self._probe.has_begun
            if self._num_broken == MAX_BROKEN_CALLS:
                self._calls = ()
            self._resume_thought(len(marker))
        elif size == MAX_CALL_CHARACTERS:
            self._resume_thought(size - partial_marker(self._pending[:size], self._ends))
        elif at >= 0:
            self._resume_thought(at)

    def _read_answer(self) -> None:
        """Read what may be an answer, up to one of its frames or the end of the reasoning."""
        texts = (self._markers.end, *self._frames)
        found = [
            (at, text) for text in texts if (at := self._pending.find(text, self._num_read)) >= 0
        ]
        at, text = min(found, default=(len(self._pending), ""))
        self._num_read = at if text else at - partial_marker(self._pending, texts)
        if text == self._markers.end and at <= MAX_NOISE_CHARACTERS:
            self._resume_thought(at)
        elif text or self._num_read > MAX_NOISE_CHARACTERS:
            self._state = _State.REST

    def _probe_to(self, size: int) -> bool | None:
        """Read the text up to there; return whether there is a whole call."""
        is_call = None
        pieces = _pieces(self._pending[self._num_read : size])
        while self._probe is not None and is_call is None and (piece := next(pieces, "")):
            is_call = self._probe.feed(piece)
        self._num_read = max(size, self._num_read)
        return is_call

    def _resume_thought(self, size: int) -> None:
        """Go on behind so much text, which is reasoning, and in which no other call or answer is
        looked for."""
        text, self._pending = self._pending[:size], self._pending[size:]
        self._state = _State.THINKING
        self._add_reasoning(text)

    def _read_after(self) -> None:
        self._pending = self._pending.lstrip()
        while self._drop_marker(self._pending):
            self._pending = self._pending.lstrip()
        texts = (self._markers.end, "" if self.has_opened else self._opening)
        if self._pending and not any(text.startswith(self._pending) for text in texts):
            self._state = _State.REST

    def _drop_marker(self, text: str) -> bool:
        """Hold back a text without the closing marker, or the opening of the answer, with which it
        begins; return whether it begins with one."""
        is_open = self._is_open and self._state is _State.START
        opens = self._opening and not is_open and not self.has_opened
        marker = self._markers.end
        if opens and text.startswith(self._opening):
            self.has_opened, marker = True, self._opening
        if not text.startswith(marker):
            return False
        self._pending = text[len(marker) :]
        return True

    def _add_reasoning(self, text: str, marker: str = "") -> None:
        self._sink(text + marker if self._verbatim else self._stripper.feed(text))


def _pieces(text: str) -> Iterator[str]:
    return (text[at : at + _PIECE_CHARACTERS] for at in range(0, len(text), _PIECE_CHARACTERS))
