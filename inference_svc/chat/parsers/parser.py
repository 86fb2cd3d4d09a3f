"""Parses raw text into content, reasoning and tool calls while it streams.

Text may be split anywhere without changing the sum of the deltas. No text raises: what is not a
call is content.
"""

import secrets
from collections.abc import Callable, Collection

from inference_svc.chat.parsers.formats import READERS, ToolCallFormat, TurnFormat
from inference_svc.chat.parsers.harmony import HarmonyReader
from inference_svc.chat.parsers.mistral import new_mistral_id
from inference_svc.chat.parsers.offered_tools import OfferedTools
from inference_svc.chat.parsers.output import TurnOutput
from inference_svc.chat.parsers.reasoning import ReasoningSplitter
from inference_svc.chat.parsers.source import ParseSteps, Source
from inference_svc.chat.parsers.turn import TurnDelta

NO_TOOLS = OfferedTools({})


def new_call_id() -> str:
    """Return an id for a tool call, in OpenAI's form."""
    return f"call_{secrets.token_hex(12)}"


class TurnParser:
    """Parses one choice's turn.

    Args:
        turn_format: how the model writes.
        tools: the tools that may be called; without any, calls are not looked for.
        opens_in_reasoning: the prompt ends inside the thinking.
        inline_reasoning: leave the thinking in the content, as it was written.
        new_call_id: makes the ids of calls; without it they have the form that suits the model.
        taken_ids: those of calls in earlier turns, which models may write again.
    """

    def __init__(
        self,
        turn_format: TurnFormat,
        *,
        tools: OfferedTools = NO_TOOLS,
        opens_in_reasoning: bool = False,
        inline_reasoning: bool = False,
        new_call_id: Callable[[], str] | None = None,
        taken_ids: Collection[str] = (),
    ) -> None:
        opens_in_reasoning = opens_in_reasoning or turn_format.starts_in_reasoning
        self._source = Source()
        self._writer = TurnOutput(new_call_id or _id_maker(turn_format.tool_calls), taken_ids)
        self._reasoning = ReasoningSplitter(
            None if turn_format.is_harmony else turn_format.reasoning_markers,
            opens_in_reasoning=opens_in_reasoning,
            verbatim=inline_reasoning,
        )
        self._inline_reasoning = inline_reasoning
        self._steps: ParseSteps[None] | None = None
        if turn_format.is_harmony:
            self._steps = HarmonyReader(
                self._source,
                self._writer,
                tools,
                inline_reasoning=inline_reasoning,
                opens_in_reasoning=opens_in_reasoning,
            ).read()
        elif (tools or turn_format.frame_texts) and turn_format.tool_calls in READERS:
            read = READERS[turn_format.tool_calls]
            self._steps = read(self._source, self._writer, tools)

    @property
    def is_thinking(self) -> bool:
        """Whether the model is inside its thinking."""
        return self._reasoning.is_thinking or self._writer.is_thinking

    @property
    def num_tool_calls(self) -> int:
        """How many calls have begun."""
        return self._writer.num_calls

    @property
    def has_tool_calls(self) -> bool:
        """Whether a call has begun: then the turn's finish reason is `tool_calls`."""
        return self.num_tool_calls > 0

    def feed(self, text: str) -> TurnDelta:
        """Take more text; return what it adds."""
        split = self._reasoning.feed(text)
        return self._delta(split.reasoning, self._read(split.rest))

    def finish(self) -> TurnDelta:
        """Return what was held back. Nothing may follow."""
        split = self._reasoning.finish()
        before = self._read(split.rest)
        self._source.end()
        for _ in self._steps or ():
            pass
        self._writer.finish()
        return self._delta(split.reasoning, before.then(self._writer.take()))

    def _read(self, text: str) -> TurnDelta:
        """Parse the turn after the reasoning."""
        if self._steps is None:
            return TurnDelta(text)
        if text:
            self._source.feed(text)
            next(self._steps, None)
        return self._writer.take()

    def _delta(self, thought: str, said: TurnDelta) -> TurnDelta:
        if self._inline_reasoning:
            return said._replace(content=thought + said.content)
        return said._replace(reasoning=thought + said.reasoning)


def _id_maker(notation: ToolCallFormat) -> Callable[[], str]:
    return new_mistral_id if notation is ToolCallFormat.MISTRAL else new_call_id
