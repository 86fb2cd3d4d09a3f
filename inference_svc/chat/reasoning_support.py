"""How requests control the reasoning of a model: what its template can do, which options of a
request have an effect, and the budget of reasoning tokens.
"""

from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

from inference_svc.chat.conversation import Conversation, ReasoningEffort
from inference_svc.chat.parsers.formats import TurnFormat
from inference_svc.engine.reasoning_tracker import ReasoningSpec
from svc_kit.errors import InvalidField


class ThinkingMode(Enum):
    """Whether a model reasons: not at all or in no known format, if the request enables it, or
    always, because its template cannot disable it."""

    NONE = "none"
    SWITCHABLE = "switchable"
    ALWAYS = "always"


class ThinkingSupport(NamedTuple):
    """What a request can control. `efforts` are those that the template knows."""

    mode: ThinkingMode = ThinkingMode.NONE
    efforts: tuple[ReasoningEffort, ...] = ()
    keeps_budget: bool = False

    @classmethod
    def detect(
        cls, turn_format: TurnFormat, *, can_switch: bool, efforts: tuple[str, ...]
    ) -> "ThinkingSupport":
        """Combine the format of a model and what its template does with the variables."""
        if turn_format.reasoning_markers is None:
            return cls()
        known = tuple(map(ReasoningEffort, efforts))
        can_switch = can_switch or ReasoningEffort.NONE in known
        mode = ThinkingMode.SWITCHABLE if can_switch else ThinkingMode.ALWAYS
        return cls(mode, known, keeps_budget=True)


NO_THINKING = ThinkingSupport()


def ignored_options(conversation: Conversation, support: ThinkingSupport) -> Iterator[str]:
    """Yield the options of reasoning that have no effect with this model."""
    options = conversation.options
    is_none = support.mode is ThinkingMode.NONE
    if options.enable_thinking and is_none:
        yield "enable_thinking"
    asks_effort = options.reasoning_effort not in (None, ReasoningEffort.NONE)
    if asks_effort and not support.efforts and support.mode is not ThinkingMode.SWITCHABLE:
        yield "reasoning_effort"
    if options.thinking_budget_tokens and not support.keeps_budget:
        yield "thinking_budget_tokens"


def check_thinking(conversation: Conversation, support: ThinkingSupport, model: str) -> None:
    """Raise `InvalidField` if the request requires a model that reasons, and this one does not."""
    is_required = conversation.options.require_thinking and conversation.thinks
    if is_required and support.mode is ThinkingMode.NONE:
        raise InvalidField(
            field="enable_thinking", problem=f"the model {model!r} does not support thinking"
        )


def token_budget(conversation: Conversation) -> int | None:
    """The maximum number of reasoning tokens; 0 if thinking is disabled, None for no maximum."""
    if conversation.thinks is False:
        return 0
    return conversation.options.thinking_budget_tokens


def reasoning_spec(turn_format: TurnFormat, *, opens_in_reasoning: bool) -> ReasoningSpec | None:
    """How the engine recognizes the reasoning; None if the format has none. A call that begins in a
    thought is not recognized: where calls are constrained, none can."""
    markers = turn_format.reasoning_markers
    if markers is None:
        return None
    return ReasoningSpec(
        markers.begin.lstrip(),
        (*turn_format.reasoning_ends, *turn_format.interrupts),
        is_open=opens_in_reasoning or turn_format.starts_in_reasoning,
        repeats=turn_format.is_harmony,
    )
