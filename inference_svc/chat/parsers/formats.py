"""Tool-call and reasoning formats, and which of them a chat template uses.

A template writes the calls of earlier turns in the format in which its model answers, so the format
is found by the markers in the template.
"""

from collections.abc import Callable
from enum import StrEnum
from functools import partial
from typing import NamedTuple

from inference_svc.chat.parsers import (
    delimited,
    gemma,
    harmony,
    json_calls,
    llama,
    mistral,
    pythonic,
    tagged,
    unmarked,
)
from inference_svc.chat.parsers.offered_tools import OfferedTools
from inference_svc.chat.parsers.output import TurnOutput
from inference_svc.chat.parsers.source import ParseSteps, Source
from inference_svc.chat.parsers.turn import Markers

Reader = Callable[[Source, TurnOutput, OfferedTools], ParseSteps[None]]


class ToolCallFormat(StrEnum):
    """How a model writes tool calls. The values are what operators and callers see; `off`: not at
    all, or calls are not to be looked for."""

    OFF = "off"
    HERMES = "hermes"
    LLAMA = "llama"
    PYTHONIC = "pythonic"
    MISTRAL = "mistral"
    DEEPSEEK = "deepseek"
    DEEPSEEK_V32 = "deepseek-v3.2"
    KIMI = "kimi"
    COHERE = "cohere"
    APERTUS = "apertus"
    QWEN_CODER = "qwen-coder"
    GLM = "glm"
    MINIMAX = "minimax"
    GEMMA = "gemma"
    HARMONY = "harmony"
    JSON = "json"


class ReasoningFormat(StrEnum):
    """How a model marks its thinking; `off`: not at all, or it is to stay in the content."""

    OFF = "off"
    THINK = "think"
    THINKING = "thinking"
    SEED = "seed"
    MISTRAL = "mistral"
    COHERE = "cohere"
    GEMMA = "gemma"
    HARMONY = "harmony"


READERS: dict[ToolCallFormat, Reader] = {
    ToolCallFormat.HERMES: json_calls.parse_hermes,
    ToolCallFormat.LLAMA: llama.read_llama,
    ToolCallFormat.PYTHONIC: pythonic.read_pythonic,
    ToolCallFormat.MISTRAL: mistral.read_mistral,
    ToolCallFormat.DEEPSEEK: partial(delimited.read_section, delimited.DEEPSEEK),
    ToolCallFormat.DEEPSEEK_V32: partial(tagged.read_tagged, tagged.DEEPSEEK_V32),
    ToolCallFormat.KIMI: partial(delimited.read_section, delimited.KIMI),
    ToolCallFormat.COHERE: partial(delimited.read_listed, delimited.COHERE),
    ToolCallFormat.APERTUS: partial(delimited.read_listed, delimited.APERTUS),
    ToolCallFormat.QWEN_CODER: partial(tagged.read_tagged, tagged.QWEN_CODER),
    ToolCallFormat.GLM: partial(tagged.read_tagged, tagged.GLM),
    ToolCallFormat.MINIMAX: partial(tagged.read_tagged, tagged.MINIMAX),
    ToolCallFormat.GEMMA: gemma.read_gemma,
    ToolCallFormat.JSON: unmarked.read_any_json,
}
REASONING_MARKERS: dict[ReasoningFormat, Markers] = {
    ReasoningFormat.HARMONY: Markers("<|channel|>analysis<|message|>", "<|end|>"),
    ReasoningFormat.GEMMA: Markers("<|channel>thought", "<channel|>"),
    ReasoningFormat.THINK: Markers("<think>", "</think>"),
    ReasoningFormat.THINKING: Markers("<thinking>", "</thinking>"),
    ReasoningFormat.SEED: Markers("<seed:think>", "</seed:think>"),
    ReasoningFormat.MISTRAL: Markers("[THINK]", "[/THINK]"),
    ReasoningFormat.COHERE: Markers("<|START_THINKING|>", "<|END_THINKING|>"),
}
_CALL_MARKERS: dict[ToolCallFormat, tuple[str, ...]] = {
    ToolCallFormat.HERMES: json_calls.MARKERS,
    ToolCallFormat.LLAMA: llama.MARKERS,
    ToolCallFormat.PYTHONIC: pythonic.MARKERS,
    ToolCallFormat.MISTRAL: mistral.MARKERS,
    ToolCallFormat.DEEPSEEK: delimited.DEEPSEEK.markers,
    ToolCallFormat.DEEPSEEK_V32: tagged.DEEPSEEK_V32.markers,
    ToolCallFormat.KIMI: delimited.KIMI.markers,
    ToolCallFormat.COHERE: delimited.COHERE.markers,
    ToolCallFormat.APERTUS: delimited.APERTUS.markers,
    ToolCallFormat.QWEN_CODER: tagged.QWEN_CODER.markers,
    ToolCallFormat.GLM: tagged.GLM.markers,
    ToolCallFormat.MINIMAX: tagged.MINIMAX.markers,
    ToolCallFormat.GEMMA: gemma.MARKERS + gemma.STOP_TEXTS,
    ToolCallFormat.HARMONY: harmony.MARKERS,
    ToolCallFormat.JSON: unmarked.MARKERS,
}
# In this order: the first whose texts are all in a template is its notation.
_SIGNS: tuple[tuple[ToolCallFormat, tuple[str, ...]], ...] = (
    (ToolCallFormat.HARMONY, (harmony.CHANNEL, harmony.MESSAGE)),
    (ToolCallFormat.MISTRAL, (mistral.BEGIN,)),
    (ToolCallFormat.DEEPSEEK, (delimited.DEEPSEEK.call,)),
    (ToolCallFormat.DEEPSEEK_V32, ("｜DSML｜",)),
    (ToolCallFormat.KIMI, (delimited.KIMI.begins[0],)),
    (ToolCallFormat.KIMI, ("<|im_system|>tool_declare<|im_middle|>",)),
    (ToolCallFormat.COHERE, (delimited.COHERE.begin,)),
    (ToolCallFormat.APERTUS, (delimited.APERTUS.begin,)),
    (ToolCallFormat.MINIMAX, (tagged.MINIMAX.outer[0],)),
    (ToolCallFormat.MINIMAX, ("minimax:tool_call", "<invoke name=")),
    (ToolCallFormat.QWEN_CODER, (tagged.QWEN_CODER.call, tagged.QWEN_CODER.key)),
    (ToolCallFormat.GLM, (tagged.GLM.outer[0], tagged.GLM.key)),
    (ToolCallFormat.GEMMA, (gemma.BEGINS[0],)),
    (ToolCallFormat.GEMMA, (gemma.BEGINS[1],)),
    # Apriel's speaks of `<tool_call>` as well, by mistake.
    (ToolCallFormat.JSON, ("<tool_calls>[",)),
    (ToolCallFormat.HERMES, (json_calls.BEGIN,)),
    (ToolCallFormat.PYTHONIC, (pythonic.MARKERS[0],)),
    (ToolCallFormat.PYTHONIC, ("<|tool_list_start|>",)),
    (ToolCallFormat.PYTHONIC, ("<functions>", "<function_calls>")),
    (ToolCallFormat.LLAMA, (llama.TAGS[0],)),
    (ToolCallFormat.LLAMA, (llama.TAGS[1],)),
    (ToolCallFormat.LLAMA, ("<|start_header_id|>", '"parameters": ')),
    (ToolCallFormat.LLAMA, ("<|header_start|>", '"parameters": ')),
)


class TurnFormat(NamedTuple):
    """How a model writes thinking and tool calls."""

    reasoning: ReasoningFormat = ReasoningFormat.OFF
    tool_calls: ToolCallFormat = ToolCallFormat.OFF
    starts_in_reasoning: bool = False
    """Every turn starts with reasoning, although the prompt does not open it."""

    @property
    def is_harmony(self) -> bool:
        """Whether the whole turn is in channels."""
        return (
            self.reasoning is ReasoningFormat.HARMONY or self.tool_calls is ToolCallFormat.HARMONY
        )

    @property
    def reasoning_markers(self) -> Markers | None:
        """The texts around the thinking."""
        notation = ReasoningFormat.HARMONY if self.is_harmony else self.reasoning
        return REASONING_MARKERS.get(notation)

    @property
    def marker_texts(self) -> tuple[str, ...]:
        """The texts that must reach the parser, also where they are control tokens."""
        calls = harmony.MARKERS if self.is_harmony else _CALL_MARKERS.get(self.tool_calls, ())
        return (*(self.reasoning_markers or ()), *calls)

    @property
    def frame_texts(self) -> tuple[str, ...]:
        """Texts around answers, which are not theirs."""
        return delimited.COHERE.frames if self.tool_calls is ToolCallFormat.COHERE else ()

    @property
    def stop_texts(self) -> tuple[str, ...]:
        """Texts that end a turn with calls, beside the model's own end tokens."""
        return gemma.STOP_TEXTS if self.tool_calls is ToolCallFormat.GEMMA else ()


class FormatOverride(NamedTuple):
    """An operator's override of a model's format; None means detected from the template."""

    tool_calls: ToolCallFormat | None = None
    reasoning: ReasoningFormat | None = None
    starts_in_reasoning: bool | None = None

    def apply(self, events: TurnFormat) -> TurnFormat:
        """Return the format with this in its place.

        Channels hold the whole turn: who says that calls, or thoughts, come in them says so of
        both; who says that calls come otherwise says that there are none.
        """
        reasoning, calls = self.reasoning, self.tool_calls
        if reasoning is None:
            is_moved = events.is_harmony and calls not in (None, ToolCallFormat.OFF)
            reasoning = ReasoningFormat.OFF if is_moved else events.reasoning
        if calls is None:
            calls = events.tool_calls
        chosen = TurnFormat(reasoning, calls, bool(self.starts_in_reasoning))
        if not chosen.is_harmony:
            return chosen
        return chosen._replace(
            reasoning=ReasoningFormat.HARMONY,
            tool_calls=calls if calls is ToolCallFormat.OFF else ToolCallFormat.HARMONY,
        )


NO_OVERRIDE = FormatOverride()


def choose_format(template: str, *, understands_tools: bool = True) -> TurnFormat:
    """Tell from a chat template how its model writes.

    Tools are described in Hermes' notation to a template that does not understand them, so calls
    come in it.
    """
    calls = next(
        (name for name, signs in _SIGNS if all(sign in template for sign in signs)),
        ToolCallFormat.JSON,
    )
    if calls is ToolCallFormat.HARMONY:
        return TurnFormat(ReasoningFormat.HARMONY, calls)
    reasoning = next(
        (
            name
            for name, markers in REASONING_MARKERS.items()
            if markers.end in template and name is not ReasoningFormat.HARMONY
        ),
        ReasoningFormat.OFF,
    )
    return TurnFormat(reasoning, calls if understands_tools else ToolCallFormat.HERMES)
