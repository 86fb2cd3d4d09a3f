"""Collects the deltas that a parser finds. White space around tool calls is dropped."""

from collections.abc import Callable, Collection
from dataclasses import replace

from inference_svc.chat.parsers.turn import ToolCallPiece, TurnDelta

_MAX_ID_CHARACTERS = 64


class TurnOutput:
    """Takes content, reasoning and calls; `take` gives what came since the last time."""

    def __init__(self, new_call_id: Callable[[], str], taken_ids: Collection[str] = ()) -> None:
        self._new_call_id = new_call_id
        self._taken_ids = taken_ids  # of calls in earlier turns
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._pieces: list[ToolCallPiece] = []
        self._gap = ""  # white space that is content only if content follows
        self._after_call = False
        self._call_ids: set[str] = set()
        self.is_thinking = False

    def say(self, text: str) -> None:
        """Add content."""
        if self._after_call:
            text = text.lstrip()
        if not text:
            return
        self._after_call = False
        text = self._gap + text
        inside = text.rstrip()
        self._gap = text[len(inside) :]
        self._content.append(inside)

    def think(self, text: str) -> None:
        """Add reasoning."""
        self._reasoning.append(text)

    @property
    def num_calls(self) -> int:
        """How many calls were begun."""
        return len(self._call_ids)

    def begin_call(self, name: str, call_id: str = "") -> None:
        """Begin a call; it ends where the next one, or content, begins.

        Its id is the model's own unless an earlier call has it: results are told apart by it. Nor
        is it longer than what clients may send back.
        """
        self._gap = ""
        self._after_call = True
        is_taken = call_id in self._call_ids or call_id in self._taken_ids
        if not call_id or is_taken or len(call_id) > _MAX_ID_CHARACTERS:
            call_id = self._new_call_id()
        self._pieces.append(ToolCallPiece(self.num_calls, call_id, name, ""))
        self._call_ids.add(call_id)

    def add_arguments(self, text: str) -> None:
        """Add to the arguments of the call that was begun last."""
        last = self._pieces[-1] if self._pieces else None
        if last and last.index == self.num_calls - 1:
            self._pieces[-1] = replace(last, arguments=last.arguments + text)
        elif text:
            self._pieces.append(ToolCallPiece(self.num_calls - 1, "", "", text))

    def write_call(self, name: str, arguments: str) -> None:
        """Add a whole call."""
        self.begin_call(name)
        self.add_arguments(arguments)

    def finish(self) -> None:
        """End the turn: trailing white space becomes content."""
        if self._gap:
            self._content.append(self._gap)
            self._gap = ""

    def take(self) -> TurnDelta:
        """Return what was added since the last time."""
        delta = TurnDelta("".join(self._content), "".join(self._reasoning), tuple(self._pieces))
        self._content.clear()
        self._reasoning.clear()
        self._pieces.clear()
        return delta
