"""Fields that control reasoning, under the names of several servers and SDKs.

Whether the model reasons, how much, and for how many tokens at most can each be set by several
fields, which must agree.
"""

from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import Field, Tag

from dialects.shared.efforts import Effort
from dialects.shared.fields import BY_KIND, Count, WireModel, agreed_value
from dialects.shared.parameters import Ignored, Policy
from svc_kit.errors import InvalidType


class ThinkingSwitch(WireModel):
    """Whether the model thinks, as in Anthropic's and DeepSeek's APIs."""

    policy: ClassVar[Policy] = {"display": Ignored("the text of the reasoning is always sent")}

    type: Literal["enabled", "disabled", "adaptive", "auto"]
    budget_tokens: Count | None = Field(
        None, description="The maximum number of reasoning tokens. Then the answer follows."
    )


class Reasoning(WireModel):
    """Reasoning settings."""

    policy: ClassVar[Policy] = {
        "context": Ignored("the chat template decides which reasoning it reads", ("auto",)),
        "exclude": Ignored("the text of the reasoning is always sent", (False,)),
        "mode": Ignored("models have no such setting"),
    }

    effort: Effort | None = Field(
        None, description="none disables thinking; the nearest that the template knows is used."
    )
    summary: Literal["auto", "concise", "detailed"] | None = Field(
        None, description="Every value returns the full reasoning text."
    )
    generate_summary: Literal["auto", "concise", "detailed"] | None = Field(
        None, description="The older name of summary."
    )
    enabled: bool | None = Field(None, description="Enables or disables thinking.")
    max_tokens: Count | None = Field(None, description="As thinking.budget_tokens.")


class ReasoningFields(WireModel):
    """Fields of requests for chat completions and responses."""

    reasoning: Reasoning | None = None
    thinking: ThinkingSwitch | None = Field(None, description="Enables or disables thinking.")
    thinking_token_budget: Count | None = Field(None, description="As thinking.budget_tokens.")
    think: (
        Annotated[Annotated[Effort, Tag("~string")] | Annotated[bool, Tag("~other")], BY_KIND]
        | None
    ) = Field(None, description="Enables or disables thinking, or sets the effort, as in Ollama.")
    enable_thinking: bool | None = Field(None, description="Enables or disables thinking.")


class ChosenReasoning(NamedTuple):
    """What a body says about reasoning. `names` are the caller's names of the proto fields."""

    enabled: bool | None
    effort: str
    budget_tokens: int | None
    names: dict[str, str]


def chosen_reasoning(
    body: ReasoningFields, effort: Effort | None = None, in_kwargs: object = None
) -> ChosenReasoning:
    """Combine the fields of a body, its `reasoning_effort`, and the switch of its template kwargs.

    Raises InvalidField if two disagree, and InvalidType for a switch that is no boolean.
    """
    kwarg = "chat_template_kwargs.enable_thinking"
    if not isinstance(in_kwargs, bool | None):
        raise InvalidType(field=kwarg, expected="a boolean")
    think, thinking = body.think, body.thinking
    efforts = {
        "reasoning_effort": effort,
        "reasoning.effort": body.reasoning and body.reasoning.effort,
        "think": think if isinstance(think, str) else None,
    }
    fields: dict[str, dict[str, Any]] = {
        "reasoning_effort": efforts,
        "enable_thinking": {
            **{name: False for name, value in efforts.items() if value == "none"},
            "enable_thinking": body.enable_thinking,
            "reasoning.enabled": body.reasoning and body.reasoning.enabled,
            "thinking": thinking and thinking.type != "disabled",
            **({"think": think} if isinstance(think, bool) else {}),
            kwarg: in_kwargs,
        },
        "thinking_budget_tokens": {
            "thinking.budget_tokens": thinking and thinking.budget_tokens,
            "thinking_token_budget": body.thinking_token_budget,
            "reasoning.max_tokens": body.reasoning and body.reasoning.max_tokens,
        },
    }
    given = {key: [n for n, v in values.items() if v is not None] for key, values in fields.items()}
    names = {proto: found[0] for proto, found in given.items() if found}
    chosen, enabled, budget = map(agreed_value, fields.values())
    return ChosenReasoning(enabled, chosen or "", budget, names)
