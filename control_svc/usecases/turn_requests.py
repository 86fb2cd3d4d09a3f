"""What the loop asks of a turn: the settings of an object in the words of turns."""

from collections.abc import Mapping, Sequence

from control_svc.domain.agent import LoopSettings, Progress
from control_svc.domain.drafts import A_CUSTOM_TOOL, Callee, DraftKind
from control_svc.domain.hosted_tools import HostedTool
from control_svc.domain.items import Item
from control_svc.domain.tools import (
    ChoiceMode,
    CustomTool,
    FormatKind,
    FunctionTool,
    ResponseFormat,
    Tool,
    ToolChoice,
)
from control_svc.domain.turn_messages import CUSTOM_INPUT, compact_json, turn_messages
from control_svc.domain.turns import (
    AS_IT_LIKES,
    JsonObject,
    JsonSchema,
    TurnChoice,
    TurnFormat,
    TurnRequest,
    TurnTool,
)


class Toolbox:
    """The tools of one object, the client's and the server's."""

    def __init__(self, tools: Sequence[Tool], hosted: Sequence[HostedTool]) -> None:
        self._clients = [turn_tool(t) for t in tools if isinstance(t, FunctionTool | CustomTool)]
        self._functions = [function for tool in hosted for function in tool.functions]
        self.hosted: Mapping[str, HostedTool] = {
            function.name: tool for tool in hosted for function in tool.functions
        }
        customs = {t.name: A_CUSTOM_TOOL for t in tools if isinstance(t, CustomTool)}
        hosts = {n: Callee(DraftKind.HOSTED, t.item_prefix) for n, t in self.hosted.items()}
        self.callees: Mapping[str, Callee] = customs | hosts
        """What becomes of calls, by name."""

    def offered(self, *, with_hosted: bool) -> tuple[TurnTool, ...]:
        """What the model is told of."""
        return (*self._clients, *(self._functions if with_hosted else ()))

    def choice(
        self,
        asked: ToolChoice,
        offered: Sequence[TurnTool],
        *,
        is_first: bool,
        parallel: bool | None,
    ) -> TurnChoice:
        """Which of the offered tools are called. Hosted ones may be named by their kinds."""
        if not offered:
            return AS_IT_LIKES
        is_free = asked.mode is ChoiceMode.REQUIRED and not is_first
        mode = ChoiceMode.AUTO if is_free else asked.mode
        names = {tool.name for tool in offered}
        hosted = (name for name, tool in self.hosted.items() if tool.kind in asked.allowed_names)
        allowed = [name for name in (*asked.allowed_names, *hosted) if name in names]
        if asked.allowed_names and not allowed:  # none of them is offered, which allows no other
            return TurnChoice(ChoiceMode.NONE)
        return TurnChoice(mode, tuple(dict.fromkeys(allowed)), parallel)


def turn_request(
    settings: LoopSettings, progress: Progress, toolbox: Toolbox, items: Sequence[Item]
) -> TurnRequest:
    """The next turn, or what is left of the open one."""
    limits = settings.limits
    has_calls_left = limits.hosted_calls is None or progress.num_hosted_calls < limits.hosted_calls
    offered = toolbox.offered(with_hosted=has_calls_left)
    return TurnRequest(
        project=settings.project,
        model=settings.model,
        messages=turn_messages(settings.instructions, items),
        tools=offered,
        choice=toolbox.choice(
            settings.choice,
            offered,
            is_first=not progress.num_turns,
            parallel=settings.parallel_calls,
        ),
        format=turn_format(settings.format),
        options=settings.options,
        max_tokens=tokens_left(settings, progress),
        thinks=False if settings.effort == "none" else None,
        template_values=_template_values(settings.effort),
        seed=settings.seed + progress.num_turns,
        token_ids=tuple(progress.token_ids),
        priority=settings.priority,
        label=settings.label,
        keep_for=settings.keep_for,
    )


def tokens_left(settings: LoopSettings, progress: Progress) -> int | None:
    """How many tokens the open turn, or the next one, may have; None: there is no limit."""
    most = settings.limits.completion_tokens
    return None if most is None else max(0, most - progress.usage.completion_tokens)


def _template_values(effort: str) -> str:
    """As for a chat completion: templates that know the word read it there."""
    return compact_json({"reasoning_effort": effort}) if effort not in ("", "none") else ""


def turn_tool(tool: FunctionTool | CustomTool) -> TurnTool:
    """A tool of the client's as a function."""
    if isinstance(tool, CustomTool):
        return TurnTool(tool.name, tool.description, _custom_schema(tool), strict=True)
    return TurnTool(tool.name, tool.description, tool.parameters_json, tool.strict)


def _custom_schema(tool: CustomTool) -> str:
    text = {"type": "string"}
    if tool.syntax:
        text["pattern"] = f"^(?:{tool.definition})$"  # a pattern is looked for, a grammar is whole
    return compact_json(
        {
            "type": "object",
            "properties": {CUSTOM_INPUT: text},
            "required": [CUSTOM_INPUT],
            "additionalProperties": False,
        }
    )


def turn_format(asked: ResponseFormat) -> TurnFormat | None:
    """The form of the answer."""
    match asked.kind:
        case FormatKind.JSON_OBJECT:
            return JsonObject()
        case FormatKind.JSON_SCHEMA:
            return JsonSchema(asked.schema_json)
        case FormatKind.TEXT:
            return None
