"""Streaming parser of output into content, reasoning and tool calls.

The result does not depend on how the text is split into pieces. No text raises an error: whatever
is not a call is content.
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
    """Generate a tool call id in OpenAI's form."""
    return f"call_{secrets.token_hex(12)}"


class TurnParser:
    """Parses the turn of one choice.

    Args:
        turn_format: The model's output format.
        tools: The tools that may be called; without tools, calls are not parsed.
        opens_in_reasoning: The prompt ends inside the reasoning.
        inline_reasoning: Leave the reasoning in the content, with its markers.
        new_call_id: Generates call ids; by default in the form that the model's template accepts.
        used_ids: Ids of calls in earlier turns, which models may repeat.
    """

    def __init__(
        self,
        turn_format: TurnFormat,
        *,
        tools: OfferedTools = NO_TOOLS,
        opens_in_reasoning: bool = False,
        inline_reasoning: bool = False,
        new_call_id: Callable[[], str] | None = None,
        used_ids: Collection[str] = (),
    ) -> None:
        opens_in_reasoning = opens_in_reasoning or turn_format.starts_in_reasoning
        self._source = Source()
        new_id = new_call_id or _id_generator(turn_format.tool_calls)
        self._output = TurnOutput(new_id, used_ids)
        output = self._output
        self._reasoning = ReasoningSplitter(
            None if turn_format.is_harmony else turn_format.reasoning_markers,
            output.add_verbatim if inline_reasoning else output.add_reasoning,
            opens_in_reasoning=opens_in_reasoning,
            verbatim=inline_reasoning,
        )
        self._steps: ParseSteps[None] | None = None
        if turn_format.is_harmony:
            self._steps = HarmonyReader(
                self._source,
                self._output,
                tools,
                inline_reasoning=inline_reasoning,
                opens_in_reasoning=opens_in_reasoning,
            ).read()
        elif (tools or turn_format.frame_texts) and turn_format.tool_calls in READERS:
            read = READERS[turn_format.tool_calls]
            self._steps = read(self._source, self._output, tools)

    @property
    def has_tool_calls(self) -> bool:
        """Whether a call has begun, so that the finish reason is `tool_calls`."""
        return self._output.num_calls > 0

    def feed(self, text: str) -> None:
        """Parse a piece of text."""
        self._parse(self._reasoning.feed(text))

    def finish(self) -> None:
        """End the turn, which adds the text that was held back."""
        self._parse(self._reasoning.finish())
        self._source.end()
        for _ in self._steps or ():
            pass
        self._output.finish()

    def pop_delta(self) -> TurnDelta:
        """Return what was added since the last call."""
        return self._output.pop_delta()

    def _parse(self, text: str) -> None:
        """Parse text after the reasoning."""
        if self._steps is None:
            self._output.add_verbatim(text)
        elif text:
            self._source.feed(text)
            next(self._steps, None)


def _id_generator(tool_calls: ToolCallFormat) -> Callable[[], str]:
    return new_mistral_id if tool_calls is ToolCallFormat.MISTRAL else new_call_id
