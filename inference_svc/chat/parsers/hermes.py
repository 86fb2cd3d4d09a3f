"""Tool calls as Hermes and Qwen write them: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`.

Arguments are passed on while they are written, as soon as the name is known. Until then nothing of
a call has been sent, so what turns out not to be one comes out as content, markers included. What
breaks later stays in the arguments, as the model wrote it: an agent can show the model its mistake.
White space around calls is left out.
"""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from typing import Any, NamedTuple

from inference_svc.chat.parsers.json_scan import JsonScan, ScanState
from inference_svc.chat.parsers.markers import partial_marker
from inference_svc.chat.parsers.turn import Markers, ToolCallPiece
from inference_svc.chat.strict_json import json_or_none

_MAX_HEAD_CHARACTERS = 2048
_HEAD = re.compile(
    r'\s*\{\s*"name"\s*:\s*(?P<name>"(?:[^"\\\x00-\x1f]|\\.)+")\s*,'
    r'\s*"(?:arguments|parameters)"\s*:\s*(?=\{)'
)


class CallsDelta(NamedTuple):
    """What a turn gained."""

    content: str = ""
    pieces: tuple[ToolCallPiece, ...] = ()


class _Place(Enum):
    CONTENT = "outside of calls"
    HEAD = "after the begin marker, name or arguments not seen yet"
    ARGUMENTS = "inside the arguments"
    BROKEN = "inside arguments that are not JSON, until the end marker"
    TAIL = "after the arguments, before the end marker"
    SKIPPED = "further keys of a call, until the end marker"


class HermesCalls:
    """Takes the text of a turn, after its thinking, in any pieces."""

    def __init__(self, markers: Markers, new_call_id: Callable[[], str]) -> None:
        self._markers = markers
        self._new_call_id = new_call_id
        self._place = _Place.CONTENT
        self._held = ""
        self._gap = ""  # white space before the current call
        self._after_call = False
        self._scan = JsonScan()
        self._scanned = 0  # characters of `_held` that the scan has seen
        self._content: list[str] = []
        self._pieces: list[ToolCallPiece] = []
        self.num_calls = 0

    def feed(self, text: str) -> CallsDelta:
        """Take more text."""
        self._held += text
        while self._step():
            pass
        return self._take()

    def finish(self) -> CallsDelta:
        """Give out what was held back. Nothing may follow."""
        held, self._held = self._held, ""
        if self._place is _Place.CONTENT:
            self._content.append(held.lstrip() if self._after_call else held)
        elif self._place is _Place.HEAD:
            self._content.append(self._gap + self._markers.begin + held)
        elif self._place is _Place.BROKEN:
            self._add_arguments(held)
        return self._take()

    def _take(self) -> CallsDelta:
        delta = CallsDelta("".join(self._content), _joined(self._pieces))
        self._content.clear()
        self._pieces.clear()
        return delta

    def _step(self) -> bool:
        """Consume what can be; return whether the place changed, so that more may follow."""
        match self._place:
            case _Place.CONTENT:
                return self._in_content()
            case _Place.HEAD:
                return self._in_head()
            case _Place.ARGUMENTS:
                return self._in_arguments()
            case _Place.BROKEN:
                return self._until_end(self._add_arguments)
            case _Place.TAIL:
                return self._in_tail()
            case _Place.SKIPPED:
                return self._until_end(lambda _: None)

    def _in_content(self) -> bool:
        if self._after_call:
            self._held = self._held.lstrip()
            self._after_call = not self._held
        before, marker, after = self._held.partition(self._markers.begin)
        if marker:
            inside = before.rstrip()
            self._gap = before[len(inside) :]
            self._content.append(inside)
            self._held = after
            self._place = _Place.HEAD
            self._scan, self._scanned = JsonScan(), 0
            return True
        keep = partial_marker(self._held, self._markers.begin)
        inside = self._held[: len(self._held) - keep].rstrip()
        self._content.append(inside)
        self._held = self._held[len(inside) :]
        return False

    def _in_head(self) -> bool:
        head = _HEAD.match(self._held[:_MAX_HEAD_CHARACTERS])
        name = json_or_none(head["name"]) if head else None
        if head and name:
            self._begin_call(name)
            self._held = self._held[head.end() :]
            self._scan, self._scanned = JsonScan(), 0
            self._place = _Place.ARGUMENTS
            return True
        return self._scan_whole_call()

    def _scan_whole_call(self) -> bool:
        """Take a call that cannot be passed on while it is written, once it is complete."""
        while self._scanned < len(self._held):
            state = self._scan.feed(self._held[self._scanned])
            self._scanned += state is not ScanState.BROKEN
            if state is not ScanState.OPEN:
                self._end_whole_call()
                return True
        return False

    def _end_whole_call(self) -> None:
        text, self._held = self._held[: self._scanned], self._held[self._scanned :]
        calls = _read_calls(text)
        if not calls:
            self._content.append(self._gap + self._markers.begin + text)
            self._place = _Place.CONTENT
            return
        for name, arguments in calls:
            self._begin_call(name)
            self._add_arguments(arguments)
        self._place = _Place.TAIL

    def _in_arguments(self) -> bool:
        for place, character in enumerate(self._held):
            state = self._scan.feed(character)
            if state is ScanState.OPEN:
                continue
            end = place + (state is ScanState.CLOSED)
            self._add_arguments(self._held[:end])
            self._held = self._held[end:]
            self._place = _Place.TAIL if state is ScanState.CLOSED else _Place.BROKEN
            return True
        self._add_arguments(self._held)
        self._held = ""
        return False

    def _until_end(self, take: Callable[[str], None]) -> bool:
        end = self._markers.end
        before, marker, after = self._held.partition(end)
        if marker:
            take(before)
            self._end_call(after)
            return True
        keep = len(self._held) - partial_marker(self._held, end)
        take(self._held[:keep])
        self._held = self._held[keep:]
        return False

    def _in_tail(self) -> bool:
        rest = self._held.lstrip().removeprefix("}").lstrip()
        if self._markers.end.startswith(rest):
            if rest == self._markers.end:
                self._end_call("")
            return rest == self._markers.end
        if rest.startswith(self._markers.end):
            self._end_call(rest[len(self._markers.end) :])
        elif rest.startswith(","):
            self._place = _Place.SKIPPED
        else:
            self._end_call(rest)
        return True

    def _begin_call(self, name: str) -> None:
        self._pieces.append(ToolCallPiece(self.num_calls, self._new_call_id(), name, ""))
        self.num_calls += 1

    def _add_arguments(self, text: str) -> None:
        if text:
            self._pieces.append(ToolCallPiece(self.num_calls - 1, "", "", text))

    def _end_call(self, rest: str) -> None:
        self._held = rest
        self._place = _Place.CONTENT
        self._after_call = True


def _joined(pieces: list[ToolCallPiece]) -> tuple[ToolCallPiece, ...]:
    """Join neighbouring pieces of one call."""
    joined: list[ToolCallPiece] = []
    for piece in pieces:
        if joined and joined[-1].index == piece.index:
            last = joined[-1]
            joined[-1] = replace(last, arguments=last.arguments + piece.arguments)
        else:
            joined.append(piece)
    return tuple(joined)


def _read_calls(text: str) -> list[tuple[str, str]]:
    """Return (name, arguments) of one call or a list of calls; empty where it is neither."""
    value = json_or_none(text)
    calls = [_read_call(item) for item in (value if isinstance(value, list) else [value])]
    return [call for call in calls if call] if all(calls) else []


def _read_call(value: Any) -> tuple[str, str] | None:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"]:
        return None
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):  # some models write the arguments as a text of JSON
        return (value["name"], arguments) if json_or_none(arguments) is not None else None
    return value["name"], json.dumps(arguments, ensure_ascii=False)
