"""Streaming parser of output into content, reasoning and tool calls.

The result does not depend on how the text is split into pieces. No text raises an error: whatever
is not a call is content.
"""

import re
import secrets
import string
from collections.abc import Callable, Collection, Sequence
from functools import partial

from inference_svc.chat.parsers.formats import ToolCallFormat, TurnFormat
from inference_svc.chat.parsers.harmony import MESSAGE, HarmonyReader
from inference_svc.chat.parsers.offered_tools import OfferedTools
from inference_svc.chat.parsers.output import TurnOutput
from inference_svc.chat.parsers.reasoning import CallProbe, ReasoningSplitter
from inference_svc.chat.parsers.source import ParseSteps, Source
from inference_svc.chat.parsers.turn import TurnDelta

NO_TOOLS = OfferedTools({})
_NAME = re.compile(r'"(?:tool_)?name"\s*:\s*"([^"]*)("?)')
_CALL_KEY = re.compile(
    r'\[?\s*\{\s*"(arguments|parameters|function|tool_call\w*|type"\s*:\s*"function)"'
)
_OTHER_KEY = re.compile(r'\[?\s*\{\s*"(id"\s*:\s*[^"\s]|type"\s*:\s*"[^f])')
_WORD = re.compile(r"\[?\s*([\w.-]+)")
_SEPARATORS = re.compile(r"[]});,\s]*(```\w*\s*)?")
"""What is between calls, and the beginning of a Markdown fence."""


def new_call_id() -> str:
    """Generate a tool call id in OpenAI's form."""
    return f"call_{secrets.token_hex(12)}"


def _new_mistral_id() -> str:
    """Generate an id of nine letters and digits; Mistral's templates refuse others."""
    return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(9))


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
        self._num_characters = 0
        self._output = TurnOutput(
            new_id,
            used_ids,
            position=self._position,
            inline_reasoning=inline_reasoning,
            markers=turn_format.marker_texts if tools or turn_format.is_harmony else (),
            thought=None if inline_reasoning else turn_format.reasoning_markers,
        )
        output, family = self._output, turn_format.family
        self._answer = turn_format.answer
        if not (inline_reasoning or self._answer.begin):
            output.closing = self._answer.end
        self._reasoning = ReasoningSplitter(
            None if turn_format.is_harmony else turn_format.reasoning_markers,
            output.add_verbatim if inline_reasoning else output.add_reasoning,
            opens_in_reasoning=opens_in_reasoning,
            verbatim=inline_reasoning,
            interrupts=turn_format.interrupts,
            frames=tuple({*family.frames} - {*turn_format.interrupts}),
            calls=turn_format.calls_in_thoughts if tools else (),
            probe=partial(CallProbe, family.read, tools) if family.read else None,
            opening=self._answer.begin,
        )
        self._steps: ParseSteps[None] | None = None
        self._tools = tools
        self._markers = turn_format.marker_texts
        self._has_headers = turn_format.is_harmony
        self._has_opened = False
        self.ends_in_call = False
        """Whether the turn ended inside a call, which is incomplete."""
        if turn_format.is_harmony:
            self._steps = HarmonyReader(
                self._source,
                self._output,
                tools,
                inline_reasoning=inline_reasoning,
                opens_in_reasoning=opens_in_reasoning,
            ).read()
        elif family.read and (tools or family.frames):
            self._steps = family.read(self._source, output, tools)
        elif self._answer.end and not inline_reasoning:
            self._steps = _read_answer(self._source, output)

    @property
    def has_tool_calls(self) -> bool:
        """Whether a call has begun, so that the finish reason is `tool_calls`."""
        return self._output.num_calls > 0

    @property
    def num_decided(self) -> int:
        """The number of characters of the text that are content already or will never be."""
        if (begin := self._output.undecided_begin) is not None:
            return begin
        return self._num_characters - self._reasoning.num_pending - self._source.num_undecided

    def feed(self, text: str) -> None:
        self._num_characters += len(text)
        self._parse(self._reasoning.feed(text))

    def finish(self, cut_before: str | None = None, *, in_content: bool = False) -> None:
        """End the turn, which adds the text that was held back, except a call without arguments,
        unless these are all of a message.

        `cut_before`: the turn was cut off before this stop text, or if it is empty, at its limit.
        An open call then stays open; at the limit, what may be the beginning of a marker, and the
        head of a message without text, is dropped. `in_content`: the stop text was content, and so
        what is before it begins no call and is no closing marker. It is read too, since it can end
        a call, and then cut off.
        """
        at_limit = cut_before == ""
        if in_content and cut_before:
            self._output.content_end = self._num_characters
            self.feed(cut_before)
        if at_limit:
            self._num_characters -= self._reasoning.drop_pending()
        is_calling = self._reasoning.is_calling
        self._parse(self._reasoning.finish())
        source, output = self._source, self._output
        if at_limit:
            self._num_characters -= source.drop_unread()
        held = _SEPARATORS.sub("", source.undecided, 1) if source.is_inside else ""
        is_whole = cut_before is None and held.rstrip().endswith(MESSAGE)
        is_head = not (in_content or is_whole) and self._is_call_head(held, at_limit=at_limit)
        is_open = cut_before is not None and output.has_open_call and not in_content
        is_separator = source.is_inside and not (held or in_content) and output.is_after_call
        is_header = at_limit and self._has_headers and source.is_inside
        if not (is_head or is_open or is_separator or is_header):
            source.end()
            for _ in self._steps or ():
                pass
        self.ends_in_call = is_head or is_calling or output.has_open_call
        output.finish(in_content=in_content)

    def _is_call_head(self, held: str, *, at_limit: bool) -> bool:
        """Whether the text that is held back begins a call: with its marker or, for calls without
        one, with a key of calls or the name of a tool; inside another call only the first counts.
        At the limit and after another call, any text that can still become a call counts."""
        if not held or not self._tools:
            return False
        if held.startswith(("<", *self._markers)) or _CALL_KEY.match(held):
            return True
        if self._output.has_open_call:
            return False
        if name := _NAME.search(held):
            return name[1] in self._tools if name[2] else self._tools.has_name_with(name[1])
        if at_limit or self._output.is_after_call:
            return not _OTHER_KEY.match(held)
        word = _WORD.match(held)
        return word is not None and self._tools.has_name_with(word[1])

    def pop_deltas(self) -> list[TurnDelta]:
        """Return what was added since the last call, in the order in which the model wrote it; at
        least one delta, which may be empty."""
        return self._output.pop_deltas()

    def _position(self) -> int:
        return self._num_characters - self._reasoning.num_pending - self._source.num_unread

    def _parse(self, text: str) -> None:
        """Parse text after the reasoning."""
        if text and self._reasoning.has_opened and not self._has_opened:
            self._has_opened, self._output.closing = True, self._answer.end
        if self._steps is None:
            self._output.add_verbatim(text)
        elif text:
            self._source.feed(text)
            next(self._steps, None)


class ParsedContent:
    """Finds the content in the text of a turn (`ContentFinder`)."""

    def __init__(self, parser: TurnParser) -> None:
        self._parser = parser

    @property
    def num_decided(self) -> int:
        """The number of characters of the text that are content already or will never be."""
        return self._parser.num_decided

    def feed(self, text: str) -> Sequence[tuple[int, int]]:
        """Add text; return where new content begins and ends, in characters."""
        self._parser.feed(text)
        return self._pop_ranges()

    def finish(self, *, at_limit: bool) -> Sequence[tuple[int, int]]:
        """End the turn, by itself or at its limit; return where new content begins and ends."""
        self._parser.finish("" if at_limit else None)
        return self._pop_ranges()

    def _pop_ranges(self) -> list[tuple[int, int]]:
        return [each for delta in self._parser.pop_deltas() for each in delta.ranges]


def make_finder(
    turn_format: TurnFormat, tools: OfferedTools, opens_in_reasoning: bool
) -> ParsedContent:
    """Make a finder of the content of a turn; the arguments are those of `TurnParser`."""
    return ParsedContent(
        TurnParser(turn_format, tools=tools, opens_in_reasoning=opens_in_reasoning)
    )


def _read_answer(source: Source, output: TurnOutput) -> ParseSteps[None]:
    yield from output.content_until(source, ())


def _id_generator(tool_calls: ToolCallFormat) -> Callable[[], str]:
    return _new_mistral_id if tool_calls is ToolCallFormat.MISTRAL else new_call_id
