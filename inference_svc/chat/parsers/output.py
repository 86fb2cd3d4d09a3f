"""Collects the output of a parser. White space around tool calls is dropped."""

from collections.abc import Callable, Collection
from dataclasses import replace

from inference_svc.chat.parsers.turn import ToolCallPiece, TurnDelta

_MAX_ID_CHARACTERS = 64


class TurnOutput:
    """Collects content, reasoning and calls; `pop_delta` returns what was added since its last
    call, with the pieces of a call joined."""

    def __init__(self, new_call_id: Callable[[], str], used_ids: Collection[str] = ()) -> None:
        self._new_call_id = new_call_id
        self._used_ids = used_ids  # of calls in earlier turns
        self.content = ""
        self.reasoning = ""
        self._pieces: list[ToolCallPiece] = []
        self._gap = ""  # white space that is content only if content follows
        self._after_call = False
        self._call_ids: set[str] = set()

    def add_content(self, text: str) -> None:
        """Add content."""
        if self._after_call:
            text = text.lstrip()
        if not text:
            return
        self._after_call = False
        text = self._gap + text
        inside = text.rstrip()
        self._gap = text[len(inside) :]
        self.content += inside

    def add_verbatim(self, text: str) -> None:
        """Add content with its white space."""
        self.content += text

    def add_reasoning(self, text: str) -> None:
        """Add reasoning."""
        self.reasoning += text

    @property
    def num_calls(self) -> int:
        """Number of calls that have begun."""
        return len(self._call_ids)

    def begin_call(self, name: str, call_id: str = "") -> None:
        """Begin a call; it ends when the next call or content begins. The model's `call_id` is
        replaced if an earlier call has it, or if it is longer than clients may send back."""
        self._gap = ""
        self._after_call = True
        is_used = call_id in self._call_ids or call_id in self._used_ids
        if not call_id or is_used or len(call_id) > _MAX_ID_CHARACTERS:
            call_id = self._new_call_id()
        self._pieces.append(ToolCallPiece(self.num_calls, call_id, name, ""))
        self._call_ids.add(call_id)

    def add_arguments(self, text: str) -> None:
        """Add to the arguments of the current call."""
        last = self._pieces[-1] if self._pieces else None
        if last and last.index == self.num_calls - 1:
            self._pieces[-1] = replace(last, arguments=last.arguments + text)
        elif text:
            self._pieces.append(ToolCallPiece(self.num_calls - 1, "", "", text))

    def add_call(self, name: str, arguments: str) -> None:
        """Add a complete call."""
        self.begin_call(name)
        self.add_arguments(arguments)

    def finish(self) -> None:
        """End the turn: trailing white space becomes content."""
        self.content += self._gap
        self._gap = ""

    def pop_delta(self) -> TurnDelta:
        """Return and clear what was added."""
        delta = TurnDelta(self.content, self.reasoning, tuple(self._pieces))
        self.content = self.reasoning = ""
        self._pieces.clear()
        return delta
