"""Turns an assistant's raw text into content, reasoning and tool calls while it is written.

Text may be cut anywhere: the sum of the deltas is the same.
"""

import secrets
from collections.abc import Callable

from inference_svc.chat.parsers.hermes import CallsDelta, HermesCalls
from inference_svc.chat.parsers.reasoning import ReasoningSplitter, Split
from inference_svc.chat.parsers.turn import TurnDelta, TurnFormat


def new_call_id() -> str:
    """Return an id for a tool call, in OpenAI's form."""
    return f"call_{secrets.token_hex(12)}"


class TurnParser:
    """Parses one choice's turn.

    Args:
        turn_format: how the model writes.
        offers_tools: whether calls are looked for; a turn without tools is never parsed for them.
        opens_in_reasoning: the prompt ends inside the thinking.
        inline_reasoning: leave the thinking in the content, as it was written.
        new_call_id: makes the ids of calls.
    """

    def __init__(
        self,
        turn_format: TurnFormat,
        *,
        offers_tools: bool,
        opens_in_reasoning: bool = False,
        inline_reasoning: bool = False,
        new_call_id: Callable[[], str] = new_call_id,
    ) -> None:
        self._reasoning = ReasoningSplitter(
            turn_format.reasoning,
            opens_in_reasoning=opens_in_reasoning,
            verbatim=inline_reasoning,
        )
        self._inline_reasoning = inline_reasoning
        self._calls = (
            HermesCalls(turn_format.tool_calls, new_call_id)
            if turn_format.tool_calls and offers_tools
            else None
        )

    @property
    def is_thinking(self) -> bool:
        """Whether the model is inside its thinking."""
        return self._reasoning.is_thinking

    @property
    def num_tool_calls(self) -> int:
        """How many calls have begun."""
        return self._calls.num_calls if self._calls else 0

    @property
    def has_tool_calls(self) -> bool:
        """Whether a call has begun: then the turn's finish reason is `tool_calls`."""
        return self.num_tool_calls > 0

    def feed(self, text: str) -> TurnDelta:
        """Take more text; return what it adds."""
        return self._delta(self._reasoning.feed(text), finish=False)

    def finish(self) -> TurnDelta:
        """Return what was held back. Nothing may follow."""
        return self._delta(self._reasoning.finish(), finish=True)

    def _delta(self, split: Split, *, finish: bool) -> TurnDelta:
        calls = CallsDelta(split.rest)
        if self._calls:
            fed = self._calls.feed(split.rest)
            rest = self._calls.finish() if finish else CallsDelta()
            calls = CallsDelta(fed.content + rest.content, fed.pieces + rest.pieces)
        if self._inline_reasoning:
            return TurnDelta(split.reasoning + calls.content, "", calls.pieces)
        return TurnDelta(calls.content, split.reasoning, calls.pieces)
