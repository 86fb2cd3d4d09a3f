"""Tool-call and reasoning formats, and which of them a chat template uses.

A template renders the calls of earlier turns in the format of its model, so the format is detected
by the markers in the template.
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
    """The format of a model's tool calls. Values are part of the API; `off` disables parsing."""

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
    """The format of a model's reasoning; `off` leaves reasoning in the content."""

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
# The format of a template is the first one whose texts are all in it.
_SIGNATURES: tuple[tuple[ToolCallFormat, tuple[str, ...]], ...] = (
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
    # Apriel's template also mentions `<tool_call>`, by mistake.
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
    """The formats of a model's reasoning and tool calls."""

    reasoning: ReasoningFormat = ReasoningFormat.OFF
    tool_calls: ToolCallFormat = ToolCallFormat.OFF
    starts_in_reasoning: bool = False
    """Every turn starts with reasoning, although the prompt does not open it."""

    @property
    def is_harmony(self) -> bool:
        """Whether the turn consists of harmony channels."""
        return (
            self.reasoning is ReasoningFormat.HARMONY or self.tool_calls is ToolCallFormat.HARMONY
        )

    @property
    def reasoning_markers(self) -> Markers | None:
        """The texts around the reasoning."""
        return REASONING_MARKERS.get(ReasoningFormat.HARMONY if self.is_harmony else self.reasoning)

    @property
    def reasoning_ends(self) -> tuple[str, ...]:
        """The texts that end the reasoning."""
        markers = self.reasoning_markers
        if self.is_harmony:
            return harmony.REASONING_ENDS
        return () if markers is None else (markers.end,)

    @property
    def closings(self) -> tuple[str, ...]:
        """What is written to end the reasoning early; if it begins again, the next of them."""
        return harmony.CLOSINGS if self.is_harmony else self.reasoning_ends

    @property
    def marker_texts(self) -> tuple[str, ...]:
        """The texts that the parser needs even if they are control tokens."""
        calls = harmony.MARKERS if self.is_harmony else _CALL_MARKERS.get(self.tool_calls, ())
        return (*(self.reasoning_markers or ()), *calls)

    @property
    def frame_texts(self) -> tuple[str, ...]:
        """The texts around the content, which are removed."""
        return delimited.COHERE.frames if self.tool_calls is ToolCallFormat.COHERE else ()

    @property
    def stop_texts(self) -> tuple[str, ...]:
        """The texts that end a turn with calls, in addition to the model's end tokens."""
        return gemma.STOP_TEXTS if self.tool_calls is ToolCallFormat.GEMMA else ()


class FormatOverride(NamedTuple):
    """An operator's override of a model's format; None means detected from the template."""

    tool_calls: ToolCallFormat | None = None
    reasoning: ReasoningFormat | None = None
    starts_in_reasoning: bool | None = None

    def apply(self, detected: TurnFormat) -> TurnFormat:
        """Override a detected format.

        Harmony channels contain the whole turn: harmony for calls or for reasoning implies harmony
        for both, and another format for calls implies that reasoning is not in channels either.
        """
        reasoning, calls = self.reasoning, self.tool_calls
        if reasoning is None:
            leaves_harmony = detected.is_harmony and calls not in (None, ToolCallFormat.OFF)
            reasoning = ReasoningFormat.OFF if leaves_harmony else detected.reasoning
        if calls is None:
            calls = detected.tool_calls
        result = TurnFormat(reasoning, calls, bool(self.starts_in_reasoning))
        if not result.is_harmony:
            return result
        return result._replace(
            reasoning=ReasoningFormat.HARMONY,
            tool_calls=calls if calls is ToolCallFormat.OFF else ToolCallFormat.HARMONY,
        )


NO_OVERRIDE = FormatOverride()


def detect_format(template: str, *, supports_tools: bool = True) -> TurnFormat:
    """Detect the output format of a model from its chat template. If the template does not support
    tools, they are described in the Hermes format, which the model then uses for calls."""
    calls = next(
        (name for name, texts in _SIGNATURES if all(text in template for text in texts)),
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
    return TurnFormat(reasoning, calls if supports_tools else ToolCallFormat.HERMES)
