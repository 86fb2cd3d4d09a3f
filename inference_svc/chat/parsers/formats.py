"""Tool-call and reasoning formats, and which of them a chat template uses.

A template renders the calls of earlier turns in the format of its model, so the format is detected
by the markers in the template.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

from inference_svc.chat.parsers import (
    families,
    functionary,
    gemma,
    harmony,
    llama,
    muse,
    pythonic,
    unmarked,
)
from inference_svc.chat.parsers.call_reader import CallReader
from inference_svc.chat.parsers.notation import Calls, begins
from inference_svc.chat.parsers.offered_tools import OfferedTools
from inference_svc.chat.parsers.output import TurnOutput
from inference_svc.chat.parsers.source import ParseSteps, Source
from inference_svc.chat.parsers.turn import Markers
from inference_svc.structured_output.spec import ToolCallSyntax

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
    KIMI_K3 = "kimi-k3"
    MINIMAX_M3 = "minimax-m3"
    MINICPM = "minicpm"
    HUNYUAN = "hunyuan"
    SOLAR = "solar"
    MUSE = "muse"
    FUNCTIONARY = "functionary"
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
    APRIEL = "apriel"
    KIMI_K3 = "kimi-k3"
    MINIMAX = "minimax"
    MUSE = "muse"
    HUNYUAN = "hunyuan"
    SOLAR = "solar"
    APERTUS = "apertus"


class Family(NamedTuple):
    """How the models of a family write their turns."""

    read: Reader | None
    """None: the reader of the whole turn reads the calls too."""
    markers: tuple[str, ...]
    """The texts that must be visible, even if they are control tokens."""
    signatures: tuple[tuple[str, ...], ...] = ()
    """A template has this format if all texts of one of these are in it."""
    frames: tuple[str, ...] = ()
    """The texts around the content, which are removed."""
    stop_texts: tuple[str, ...] = ()
    """The texts that end a turn with calls, in addition to the model's end tokens."""
    interrupts: tuple[str, ...] = ()
    """The texts that end a thought without its closing marker, and belong to what follows: frames,
    if an answer follows, and those with which calls begin, if a whole call follows."""
    reasoning: ReasoningFormat | None = None
    """The format of the reasoning, where templates do not show it."""
    reads_hermes: bool = False
    """Whether the reader also reads calls in the Hermes format."""
    syntaxes: tuple[ToolCallSyntax, ...] = ()
    """The syntaxes that grammars have; empty: calls are only parsed."""
    triggers: tuple[str, ...] = ()
    """The texts with which calls begin in free text. Empty: any text may be a call."""
    headers: tuple[str, ...] = ()
    """The control tokens before the texts that may have triggers."""
    after_reasoning: str = ""
    """What is between the reasoning and the rest of a turn."""
    opening: str = ""
    """What the content begins with."""
    after_message: str = ""
    """What is between the content and calls, if these are messages of their own."""
    begin: str = ""
    """What only calls begin with, if they are whole turns without a marker."""
    excludes: tuple[str, ...] = ()
    """Other texts that the reader accepts as the beginning of a call."""


def _written(
    notations: tuple[Calls, ...],
    *signatures: tuple[str, ...],
    frames: tuple[str, ...] = (),
    interrupts: tuple[str, ...] = (),
    end_thoughts: bool = False,
    reasoning: ReasoningFormat | None = None,
    reads_hermes: bool = False,
    read: Reader | None = None,
) -> Family:
    """A family of which examples tell how it writes calls. `end_thoughts`: what calls begin with
    is among the interrupts. `read`: its own reader."""
    syntaxes = tuple(notation.syntax for notation in notations if notation.is_enforced)
    texts = begins(notations)
    triggers = tuple(
        text for text in texts if any(each.begin.startswith(text) for each in syntaxes)
    )
    return Family(
        read or CallReader(notations, frames).read_turn,
        tuple(
            dict.fromkeys((*(text for notation in notations for text in notation.markers), *frames))
        ),
        signatures,
        frames=frames,
        interrupts=interrupts + texts if end_thoughts else interrupts,
        reasoning=reasoning,
        reads_hermes=reads_hermes,
        syntaxes=syntaxes,
        triggers=triggers,
        excludes=tuple(text for text in texts if text not in triggers),
    )


# In the order of detection: the format of a template is the first one that has a signature in it.
FAMILIES: dict[ToolCallFormat, Family] = {
    ToolCallFormat.HARMONY: Family(
        None,
        harmony.MARKERS,
        ((harmony.CHANNEL, harmony.MESSAGE),),
        syntaxes=harmony.SYNTAXES,
        triggers=harmony.TRIGGERS,
        headers=harmony.CALL_HEADERS,
        after_reasoning=harmony.BETWEEN,
        opening=harmony.FINAL,
        after_message=harmony.CLOSINGS[0],
    ),
    ToolCallFormat.MUSE: Family(
        muse.read_muse,
        muse.MARKERS,
        (("<atem:function_calls>", muse.MESSAGE),),
        frames=muse.FRAMES,
        reasoning=ReasoningFormat.MUSE,
    ),
    ToolCallFormat.MISTRAL: _written(families.MISTRAL, ("[TOOL_CALLS]",)),
    ToolCallFormat.DEEPSEEK: _written(
        families.DEEPSEEK, ("<｜tool▁call▁begin｜>",), reads_hermes=True
    ),
    ToolCallFormat.DEEPSEEK_V32: _written(families.DEEPSEEK_V32, ("｜DSML｜",), end_thoughts=True),
    ToolCallFormat.KIMI: _written(
        families.KIMI,
        ("<|tool_calls_section_begin|>",),
        ("<|im_system|>tool_declare<|im_middle|>",),
        end_thoughts=True,
        reasoning=ReasoningFormat.THINK,
    ),
    ToolCallFormat.KIMI_K3: _written(
        families.KIMI_K3,
        ("<|open|>", "xtml"),
        frames=families.KIMI_K3_FRAMES,
        interrupts=families.KIMI_K3_FRAMES[:1],
        end_thoughts=True,
        reasoning=ReasoningFormat.KIMI_K3,
    ),
    ToolCallFormat.SOLAR: _written(
        families.SOLAR,
        ("<|tool_call:begin|>",),
        frames=families.SOLAR_FRAMES,
        reasoning=ReasoningFormat.SOLAR,
    ),
    ToolCallFormat.HUNYUAN: _written(
        families.HUNYUAN,
        ("<tool_sep{}>", ":opensource"),
        end_thoughts=True,
        reasoning=ReasoningFormat.HUNYUAN,
    ),
    ToolCallFormat.COHERE: _written(
        families.COHERE, ("<|START_ACTION|>",), frames=families.COHERE_FRAMES
    ),
    ToolCallFormat.APERTUS: _written(families.APERTUS, ("<|tools_prefix|>",)),
    ToolCallFormat.MINIMAX_M3: _written(
        families.MINIMAX_M3, (families.NESTING,), end_thoughts=True
    ),
    ToolCallFormat.MINIMAX: _written(
        families.MINIMAX, ("<minimax:tool_call>",), ("minimax:tool_call", "<invoke name=")
    ),
    ToolCallFormat.QWEN_CODER: _written(
        families.QWEN_CODER,
        ("<function=", "<parameter="),
        interrupts=families.QWEN_CODER_INTERRUPTS,
    ),
    ToolCallFormat.GLM: _written(families.GLM, ("<tool_call>", "<arg_key>"), end_thoughts=True),
    ToolCallFormat.MINICPM: _written(families.MINICPM, ('<function name="', '<param name="')),
    ToolCallFormat.GEMMA: Family(
        gemma.read_gemma,
        gemma.MARKERS + gemma.STOP_TEXTS,
        ((gemma.BEGINS[0],), (gemma.BEGINS[1],)),
        frames=gemma.FRAMES,
        stop_texts=gemma.STOP_TEXTS,
        syntaxes=gemma.SYNTAXES,
        triggers=gemma.BEGINS,
    ),
    ToolCallFormat.FUNCTIONARY: Family(
        functionary.read_functionary,
        (functionary.BEGIN,),
        ((f"{functionary.BEGIN}all",),),
        frames=(functionary.TO_ALL,),
        syntaxes=(functionary.SYNTAX,),
    ),
    # Apriel's template also mentions `<tool_call>`, by mistake.
    ToolCallFormat.JSON: Family(
        unmarked.read_any_json,
        unmarked.MARKERS,
        (("<tool_calls>[",),),
        frames=(unmarked.SEPARATOR,),
        syntaxes=tuple(notation.syntax for notation in unmarked.CALLS),
        triggers=unmarked.TRIGGERS,
    ),
    ToolCallFormat.HERMES: _written(families.HERMES, ("<tool_call>",)),
    ToolCallFormat.PYTHONIC: _written(
        pythonic.CALLS + families.HERMES,
        (pythonic.BEGINS[0],),
        ("<|tool_list_start|>",),
        ("<functions>", "<function_calls>"),
        ("[func_name1(",),  # Llama 3.2 and 4, Gemma 3, ToolACE
        reads_hermes=True,
        read=pythonic.read_pythonic,
    ),
    ToolCallFormat.LLAMA: Family(
        llama.read_llama,
        llama.MARKERS,
        (
            (llama.TAGS[0],),
            (llama.TAGS[1],),
            ("<|start_header_id|>", '"parameters": '),
            ("<|header_start|>", '"parameters": '),
        ),
        syntaxes=llama.SYNTAXES,
        begin='{"name"',
    ),
}
REASONING_MARKERS: dict[ReasoningFormat, Markers] = {
    ReasoningFormat.HARMONY: Markers("<|channel|>analysis<|message|>", "<|end|>"),
    ReasoningFormat.GEMMA: Markers("<|channel>thought", "<channel|>"),
    ReasoningFormat.APRIEL: Markers("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),
    ReasoningFormat.THINK: Markers("<think>", "</think>"),
    ReasoningFormat.THINKING: Markers("<thinking>", "</thinking>"),
    ReasoningFormat.SEED: Markers("<seed:think>", "</seed:think>"),
    ReasoningFormat.MINIMAX: Markers("<mm:think>", "</mm:think>"),
    ReasoningFormat.MISTRAL: Markers("[THINK]", "[/THINK]"),
    ReasoningFormat.COHERE: Markers("<|START_THINKING|>", "<|END_THINKING|>"),
    ReasoningFormat.KIMI_K3: Markers("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
    ReasoningFormat.HUNYUAN: Markers("<think:opensource>", "</think:opensource>"),
    ReasoningFormat.SOLAR: Markers("<|think|>", "<|end|>"),
    ReasoningFormat.APERTUS: Markers("<|inner_prefix|>", "<|inner_suffix|>"),
    ReasoningFormat.MUSE: Markers(" to=self<|message|>", "<|eom|>"),
}
_NEVER_SHOWN = (ReasoningFormat.HARMONY, ReasoningFormat.MUSE, ReasoningFormat.SOLAR)
"""Their closing markers are in templates of other families too."""
_NO_CALLS = Family(None, ())
NO_MARKERS = Markers("", "")
_ANSWER = Markers("<answer>", "</answer>")
ANSWER_MARKERS: dict[str, Markers] = {
    "<answer>": _ANSWER,
    "<|extra_0|>": _ANSWER,  # Hunyuan A13B
    "<｜hy_Assistant｜>": _ANSWER,  # Hunyuan's dense models
    "<response></response>": Markers("<response>", "</response>"),  # Granite 3.2 and 3.3
    REASONING_MARKERS[ReasoningFormat.APRIEL].end: Markers("", "[END FINAL RESPONSE]"),
}
"""The texts around answers after reasoning, by a text in the templates of their models."""


class TurnFormat(NamedTuple):
    """The formats of a model's reasoning and tool calls."""

    reasoning: ReasoningFormat = ReasoningFormat.OFF
    tool_calls: ToolCallFormat = ToolCallFormat.OFF
    starts_in_reasoning: bool = False
    """Every turn starts with reasoning, although the prompt does not open it."""
    answer: Markers = NO_MARKERS
    """The texts around an answer after reasoning, which are removed; either may be empty."""

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
        markers = self.reasoning_markers
        if self.is_harmony:
            return harmony.REASONING_ENDS
        return () if markers is None else (markers.end,)

    @property
    def closings(self) -> tuple[str, ...]:
        """What is written to end the reasoning early; if it begins again, the next of them."""
        return harmony.CLOSINGS if self.is_harmony else self.reasoning_ends

    @property
    def family(self) -> Family:
        calls = ToolCallFormat.HARMONY if self.is_harmony else self.tool_calls
        return FAMILIES.get(calls, _NO_CALLS)

    @property
    def interrupts(self) -> tuple[str, ...]:
        """The texts that end a thought without its closing marker if an answer follows."""
        return tuple(text for text in self.family.interrupts if text in self.family.frames)

    @property
    def calls_in_thoughts(self) -> tuple[str, ...]:
        """The texts that end a thought without its closing marker if a whole call follows."""
        return tuple(text for text in self.family.interrupts if text not in self.family.frames)

    @property
    def marker_texts(self) -> tuple[str, ...]:
        """The texts that the parser needs even if they are control tokens."""
        return (*(self.reasoning_markers or ()), *self.family.markers, *filter(None, self.answer))

    @property
    def frame_texts(self) -> tuple[str, ...]:
        """The texts around the content, which are removed."""
        return self.family.frames

    @property
    def stop_texts(self) -> tuple[str, ...]:
        """The texts that end a turn with calls, in addition to the model's end tokens."""
        return self.family.stop_texts


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
        answer = detected.answer if reasoning is detected.reasoning else NO_MARKERS
        result = TurnFormat(reasoning, calls, bool(self.starts_in_reasoning), answer)
        if not result.is_harmony:
            return result
        return result._replace(
            reasoning=ReasoningFormat.HARMONY,
            tool_calls=calls if calls is ToolCallFormat.OFF else ToolCallFormat.HARMONY,
        )


NO_OVERRIDE = FormatOverride()


def matching_formats(template: str) -> dict[ToolCallFormat, tuple[str, ...]]:
    """The tool-call formats of which a template has all texts, the likeliest first, each with these
    texts. Formats of which the likeliest has all markers are left out."""
    matching: dict[ToolCallFormat, tuple[str, ...]] = {}
    known = ""
    for name, family in FAMILIES.items():
        for texts in family.signatures:
            is_shown = all(text in template for text in texts)
            if name not in matching and is_shown and any(text not in known for text in texts):
                known = known or " ".join(family.markers)
                matching[name] = texts
    return matching


def detect_format(template: str, *, supports_tools: bool = True) -> TurnFormat:
    """Detect the output format of a model from its chat template. If the template does not support
    tools, they are described in the Hermes format, which the model then uses for calls, unless it
    uses its own."""
    calls = next(iter(matching_formats(template)), ToolCallFormat.JSON)
    if calls is ToolCallFormat.HARMONY:
        return TurnFormat(ReasoningFormat.HARMONY, calls)
    shown = (
        name
        for name, markers in REASONING_MARKERS.items()
        if markers.end in template and name not in _NEVER_SHOWN
    )
    reasoning = next(shown, FAMILIES[calls].reasoning or ReasoningFormat.OFF)
    is_native = supports_tools or FAMILIES[calls].reads_hermes
    answers = (markers for text, markers in ANSWER_MARKERS.items() if text in template)
    return TurnFormat(
        reasoning,
        calls if is_native else ToolCallFormat.HERMES,
        answer=NO_MARKERS if reasoning is ReasoningFormat.OFF else next(answers, NO_MARKERS),
    )
