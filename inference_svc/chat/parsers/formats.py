"""How models write turns: the notations of tool calls and of thinking, and which of them a chat
template stands for.

A template writes the calls of earlier turns in the notation that its model answers in, so the
markers in its text tell the family. Where they mislead, the operator says what is right.
"""

from collections.abc import Callable
from enum import StrEnum
from functools import partial
from typing import NamedTuple

from inference_svc.chat.parsers import (
    any_json,
    gemma,
    harmony,
    hermes,
    listed,
    llama,
    mistral,
    python_calls,
    sections,
    tagged,
)
from inference_svc.chat.parsers.offered import OfferedTools
from inference_svc.chat.parsers.source import Source, Wait
from inference_svc.chat.parsers.turn import Markers
from inference_svc.chat.parsers.writer import TurnWriter

Reader = Callable[[Source, TurnWriter, OfferedTools], Wait[None]]


class CallNotation(StrEnum):
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


class ReasoningNotation(StrEnum):
    """How a model marks its thinking; `off`: not at all, or it is to stay in the content."""

    OFF = "off"
    THINK = "think"
    THINKING = "thinking"
    SEED = "seed"
    MISTRAL = "mistral"
    COHERE = "cohere"
    GEMMA = "gemma"
    HARMONY = "harmony"


READERS: dict[CallNotation, Reader] = {
    CallNotation.HERMES: hermes.read_hermes,
    CallNotation.LLAMA: llama.read_llama,
    CallNotation.PYTHONIC: python_calls.read_pythonic,
    CallNotation.MISTRAL: mistral.read_mistral,
    CallNotation.DEEPSEEK: partial(sections.read_section, sections.DEEPSEEK),
    CallNotation.DEEPSEEK_V32: partial(tagged.read_tagged, tagged.DEEPSEEK_V32),
    CallNotation.KIMI: partial(sections.read_section, sections.KIMI),
    CallNotation.COHERE: partial(listed.read_listed, listed.COHERE),
    CallNotation.APERTUS: partial(listed.read_listed, listed.APERTUS),
    CallNotation.QWEN_CODER: partial(tagged.read_tagged, tagged.QWEN_CODER),
    CallNotation.GLM: partial(tagged.read_tagged, tagged.GLM),
    CallNotation.MINIMAX: partial(tagged.read_tagged, tagged.MINIMAX),
    CallNotation.GEMMA: gemma.read_gemma,
    CallNotation.JSON: any_json.read_any_json,
}
REASONING_MARKERS: dict[ReasoningNotation, Markers] = {
    ReasoningNotation.HARMONY: Markers("<|channel|>analysis<|message|>", "<|end|>"),
    ReasoningNotation.GEMMA: Markers("<|channel>thought", "<channel|>"),
    ReasoningNotation.THINK: Markers("<think>", "</think>"),
    ReasoningNotation.THINKING: Markers("<thinking>", "</thinking>"),
    ReasoningNotation.SEED: Markers("<seed:think>", "</seed:think>"),
    ReasoningNotation.MISTRAL: Markers("[THINK]", "[/THINK]"),
    ReasoningNotation.COHERE: Markers("<|START_THINKING|>", "<|END_THINKING|>"),
}
_CALL_MARKERS: dict[CallNotation, tuple[str, ...]] = {
    CallNotation.HERMES: hermes.MARKERS,
    CallNotation.LLAMA: llama.MARKERS,
    CallNotation.PYTHONIC: python_calls.MARKERS,
    CallNotation.MISTRAL: mistral.MARKERS,
    CallNotation.DEEPSEEK: sections.DEEPSEEK.markers,
    CallNotation.DEEPSEEK_V32: tagged.DEEPSEEK_V32.markers,
    CallNotation.KIMI: sections.KIMI.markers,
    CallNotation.COHERE: listed.COHERE.markers,
    CallNotation.APERTUS: listed.APERTUS.markers,
    CallNotation.QWEN_CODER: tagged.QWEN_CODER.markers,
    CallNotation.GLM: tagged.GLM.markers,
    CallNotation.MINIMAX: tagged.MINIMAX.markers,
    CallNotation.GEMMA: gemma.MARKERS + gemma.STOP_TEXTS,
    CallNotation.HARMONY: harmony.MARKERS,
    CallNotation.JSON: any_json.MARKERS,
}
# In this order: the first whose texts are all in a template is its notation.
_SIGNS: tuple[tuple[CallNotation, tuple[str, ...]], ...] = (
    (CallNotation.HARMONY, (harmony.CHANNEL, harmony.MESSAGE)),
    (CallNotation.MISTRAL, (mistral.BEGIN,)),
    (CallNotation.DEEPSEEK, (sections.DEEPSEEK.call,)),
    (CallNotation.DEEPSEEK_V32, ("｜DSML｜",)),
    (CallNotation.KIMI, (sections.KIMI.begins[0],)),
    (CallNotation.KIMI, ("<|im_system|>tool_declare<|im_middle|>",)),
    (CallNotation.COHERE, (listed.COHERE.begin,)),
    (CallNotation.APERTUS, (listed.APERTUS.begin,)),
    (CallNotation.MINIMAX, (tagged.MINIMAX.outer[0],)),
    (CallNotation.MINIMAX, ("minimax:tool_call", "<invoke name=")),
    (CallNotation.QWEN_CODER, (tagged.QWEN_CODER.call, tagged.QWEN_CODER.key)),
    (CallNotation.GLM, (tagged.GLM.outer[0], tagged.GLM.key)),
    (CallNotation.GEMMA, (gemma.BEGINS[0],)),
    (CallNotation.GEMMA, (gemma.BEGINS[1],)),
    # Apriel's speaks of `<tool_call>` as well, by mistake.
    (CallNotation.JSON, ("<tool_calls>[",)),
    (CallNotation.HERMES, (hermes.BEGIN,)),
    (CallNotation.PYTHONIC, (python_calls.MARKERS[0],)),
    (CallNotation.PYTHONIC, ("<|tool_list_start|>",)),
    (CallNotation.PYTHONIC, ("<functions>", "<function_calls>")),
    (CallNotation.LLAMA, (llama.TAGS[0],)),
    (CallNotation.LLAMA, (llama.TAGS[1],)),
    (CallNotation.LLAMA, ("<|start_header_id|>", '"parameters": ')),
    (CallNotation.LLAMA, ("<|header_start|>", '"parameters": ')),
)


class TurnFormat(NamedTuple):
    """How a model writes thinking and tool calls."""

    reasoning: ReasoningNotation = ReasoningNotation.OFF
    tool_calls: CallNotation = CallNotation.OFF
    starts_in_reasoning: bool = False
    """Every turn starts inside the thinking, though the prompt does not say so."""

    @property
    def is_harmony(self) -> bool:
        """Whether the whole turn is in channels."""
        return (
            self.reasoning is ReasoningNotation.HARMONY or self.tool_calls is CallNotation.HARMONY
        )

    @property
    def reasoning_markers(self) -> Markers | None:
        """The texts around the thinking."""
        notation = ReasoningNotation.HARMONY if self.is_harmony else self.reasoning
        return REASONING_MARKERS.get(notation)

    @property
    def marker_texts(self) -> tuple[str, ...]:
        """The texts that must reach the parser, also where they are control tokens."""
        calls = harmony.MARKERS if self.is_harmony else _CALL_MARKERS.get(self.tool_calls, ())
        return (*(self.reasoning_markers or ()), *calls)

    @property
    def frame_texts(self) -> tuple[str, ...]:
        """Texts around answers, which are not theirs."""
        return listed.COHERE.frames if self.tool_calls is CallNotation.COHERE else ()

    @property
    def stop_texts(self) -> tuple[str, ...]:
        """Texts that end a turn with calls, beside the model's own end tokens."""
        return gemma.STOP_TEXTS if self.tool_calls is CallNotation.GEMMA else ()


class FormatOverride(NamedTuple):
    """What an operator says of a model's format. None: as the template tells."""

    tool_calls: CallNotation | None = None
    reasoning: ReasoningNotation | None = None
    starts_in_reasoning: bool | None = None

    def apply(self, told: TurnFormat) -> TurnFormat:
        """Return the format with this in its place.

        Channels hold the whole turn: who says that calls, or thoughts, come in them says so of
        both; who says that calls come otherwise says that there are none.
        """
        reasoning, calls = self.reasoning, self.tool_calls
        if reasoning is None:
            is_moved = told.is_harmony and calls not in (None, CallNotation.OFF)
            reasoning = ReasoningNotation.OFF if is_moved else told.reasoning
        if calls is None:
            calls = told.tool_calls
        chosen = TurnFormat(reasoning, calls, bool(self.starts_in_reasoning))
        if not chosen.is_harmony:
            return chosen
        return chosen._replace(
            reasoning=ReasoningNotation.HARMONY,
            tool_calls=calls if calls is CallNotation.OFF else CallNotation.HARMONY,
        )


AS_TOLD = FormatOverride()


def choose_format(template: str, *, understands_tools: bool = True) -> TurnFormat:
    """Tell from a chat template how its model writes.

    Tools are described in Hermes' notation to a template that does not understand them, so calls
    come in it.
    """
    calls = next(
        (name for name, signs in _SIGNS if all(sign in template for sign in signs)),
        CallNotation.JSON,
    )
    if calls is CallNotation.HARMONY:
        return TurnFormat(ReasoningNotation.HARMONY, calls)
    reasoning = next(
        (
            name
            for name, markers in REASONING_MARKERS.items()
            if markers.end in template and name is not ReasoningNotation.HARMONY
        ),
        ReasoningNotation.OFF,
    )
    return TurnFormat(reasoning, calls if understands_tools else CallNotation.HERMES)
