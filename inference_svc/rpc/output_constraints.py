"""Converts the output format, forced tool calls and reasoning of a request to a grammar spec.

A forced call uses the tool-call format of the model's family if that is based on JSON.
"""

import json
from dataclasses import replace

from corral.inference.v1 import generation_pb2 as generation

from inference_svc.chat.conversation import Conversation, ToolMode
from inference_svc.chat.parsers import delimited, json_calls, mistral
from inference_svc.chat.parsers.formats import ToolCallFormat, TurnFormat
from inference_svc.chat.templates import RenderedPrompt
from inference_svc.structured_output.spec import (
    MAX_CHOICES,
    NUMBER,
    CallableTool,
    OutputFormat,
    OutputFormatKind,
    OutputSpec,
    Reasoning,
    ToolCallSpec,
    ToolCallSyntax,
)
from inference_svc.validation import check_count
from svc_kit.errors import InvalidField, MissingField

_HERMES = ToolCallSyntax(
    head=f'{json_calls.BEGIN}\n{{"name": "',
    middle='", "arguments": ',
    tail=f"}}\n{json_calls.END}",
    between="\n",
)
_DEEPSEEK, _KIMI = delimited.DEEPSEEK, delimited.KIMI
_COHERE, _APERTUS = delimited.COHERE, delimited.APERTUS
TOOL_CALL_SYNTAXES: dict[ToolCallFormat, tuple[ToolCallSyntax, ...]] = {
    ToolCallFormat.HERMES: (_HERMES,),
    ToolCallFormat.LLAMA: (
        ToolCallSyntax(head='{"name": "', middle='", "parameters": ', tail="}", between="; "),
    ),
    ToolCallFormat.MISTRAL: (
        ToolCallSyntax(
            before=f"{mistral.BEGIN}[",
            head='{"name": "',
            middle='", "arguments": ',
            tail="}",
            between=", ",
            after="]",
        ),
        ToolCallSyntax(head=mistral.BEGIN, middle=mistral.ARGS),
    ),
    ToolCallFormat.DEEPSEEK: (
        ToolCallSyntax(
            before=_DEEPSEEK.begins[0],
            head=f"{_DEEPSEEK.call}function{_DEEPSEEK.separator}",
            middle="\n```json\n",
            tail=f"\n```{_DEEPSEEK.call_end}",
            between="\n",
            after=_DEEPSEEK.end,
        ),
        ToolCallSyntax(
            before=_DEEPSEEK.begins[0],
            head=_DEEPSEEK.call,
            middle=_DEEPSEEK.separator,
            tail=_DEEPSEEK.call_end,
            after=_DEEPSEEK.end,
        ),
    ),
    ToolCallFormat.KIMI: (
        ToolCallSyntax(
            before=_KIMI.begins[0],
            head=f"{_KIMI.call}functions.",
            middle=f":{NUMBER}{_KIMI.separator}",
            tail=_KIMI.call_end,
            after=_KIMI.end,
        ),
    ),
    ToolCallFormat.COHERE: (
        ToolCallSyntax(
            before=f"{_COHERE.begin}[\n    ",
            head=f'{{"tool_call_id": "{NUMBER}", "tool_name": "',
            middle='", "parameters": ',
            tail="}",
            between=",\n    ",
            after=f"\n]{_COHERE.end}",
        ),
    ),
    ToolCallFormat.APERTUS: (
        ToolCallSyntax(
            before=f"{_APERTUS.begin}[",
            head='{"',
            middle='": ',
            tail="}",
            between=", ",
            after=f"]{_APERTUS.end}",
        ),
    ),
}
"""The syntaxes of the tool-call formats that are based on JSON."""
TRIGGERS: dict[ToolCallFormat, str] = {
    ToolCallFormat.HERMES: json_calls.BEGIN,
    ToolCallFormat.MISTRAL: mistral.BEGIN,
    ToolCallFormat.DEEPSEEK: _DEEPSEEK.begins[0],
    ToolCallFormat.KIMI: _KIMI.begins[0],
    ToolCallFormat.COHERE: _COHERE.begin,
    ToolCallFormat.APERTUS: _APERTUS.begin,
}
"""The marker that begins a call in free text; Llama's format has none."""
OTHER_TRIGGERS: dict[ToolCallFormat, tuple[str, ...]] = {
    ToolCallFormat.DEEPSEEK: (*_DEEPSEEK.begins[1:], _DEEPSEEK.call),
    ToolCallFormat.KIMI: (*_KIMI.begins[1:], _KIMI.call),
}
"""Other texts that the parser accepts as the beginning of a call."""


def enforced_tool_call_format(native: ToolCallFormat, *, beside_form: bool) -> ToolCallFormat:
    """Return the format in which calls are enforced for a model that writes them as `native`.

    Beside an output format, calls need a marker, because JSON output could be parsed as a call.
    """
    if native not in TOOL_CALL_SYNTAXES or (beside_form and native is ToolCallFormat.LLAMA):
        return ToolCallFormat.HERMES
    return native


_ANY_OBJECT = '{"type": "object"}'
_AS_TEXT = {kind.value: kind for kind in OutputFormatKind if kind is not OutputFormatKind.CHOICES}


def output_format(constraint: generation.Constraint) -> OutputFormat | None:
    """Convert the output format of a request, if set. Raises a `DomainError` if invalid."""
    kind = constraint.WhichOneof("form")
    if kind is None or (kind == "json_object" and not constraint.json_object):
        return None
    field = f"constraint.{kind}"
    if kind == "json_object":
        return OutputFormat(OutputFormatKind.JSON_SCHEMA, _ANY_OBJECT, field)
    if kind == "choices":
        return OutputFormat(
            OutputFormatKind.CHOICES, _choices(list(constraint.choices.values), field), field
        )
    return OutputFormat(_AS_TEXT[kind], getattr(constraint, kind), field)


def text_output_spec(constraint: generation.Constraint) -> OutputSpec | None:
    """The grammar spec of a raw continuation."""
    form = output_format(constraint)
    return None if form is None else OutputSpec(form, None, None)


def chat_output_spec(
    constraint: generation.Constraint, conversation: Conversation, prompt: RenderedPrompt
) -> OutputSpec | None:
    """The grammar spec of the next turn of a conversation.

    With an output format, the model may still call tools if the request offers any. Without one,
    calls are enforced if the tool choice is `required`; otherwise only the arguments of calls are
    constrained, if a tool is strict and the format has a marker for calls.
    """
    form = output_format(constraint)
    required = conversation.tool_choice.mode is ToolMode.REQUIRED
    if not conversation.offers_tools:
        return None if form is None else OutputSpec(form, None, _reasoning(conversation, prompt))
    if form is None and not required:
        return _free_turn(conversation, prompt)
    calls = _calls(conversation, prompt.turn_format.tool_calls, required=required)
    return OutputSpec(None if required else form, calls, _reasoning(conversation, prompt))


def constrained_format(turn_format: TurnFormat, request: OutputSpec) -> TurnFormat:
    """Return the format with which the output of a constrained turn is parsed."""
    if turn_format.is_harmony:
        turn_format = TurnFormat()
    if request.calls is not None:
        beside_form = not request.calls.required
        tool_calls = enforced_tool_call_format(turn_format.tool_calls, beside_form=beside_form)
        turn_format = turn_format._replace(tool_calls=tool_calls)
    return turn_format


def _choices(values: list[str], field: str) -> str:
    if not values:
        raise MissingField(field=field)
    check_count(field, values, MAX_CHOICES)
    if "" in values:
        raise InvalidField(field=field, problem="a choice is empty")
    return json.dumps(values)


def _calls(conversation: Conversation, native: ToolCallFormat, *, required: bool) -> ToolCallSpec:
    choice = conversation.tool_choice
    tools = tuple(
        CallableTool(tool.name, tool.parameters_json, tool.strict, f"tools[{i}].parameters_json")
        for i, tool in enumerate(conversation.tools)
        if not choice.allowed_names or tool.name in choice.allowed_names
    )
    is_named = required and len(choice.allowed_names) == 1
    several = choice.parallel and not is_named
    syntaxes = TOOL_CALL_SYNTAXES[enforced_tool_call_format(native, beside_form=not required)]
    return ToolCallSpec(syntaxes, tools, required=required, several=several)


def _free_turn(conversation: Conversation, prompt: RenderedPrompt) -> OutputSpec | None:
    """Constrain only the calls of a turn; reasoning stays free."""
    turn_format = prompt.turn_format
    trigger = "" if turn_format.is_harmony else TRIGGERS.get(turn_format.tool_calls, "")
    if not trigger:
        return None
    calls = _calls(conversation, turn_format.tool_calls, required=False)
    if not any(tool.strict for tool in calls.tools):
        return None
    barred = OTHER_TRIGGERS.get(turn_format.tool_calls, ())
    reasoning = None
    if turn_format.reasoning_markers is not None:
        is_open = prompt.opens_in_reasoning or turn_format.starts_in_reasoning
        reasoning = Reasoning(*turn_format.reasoning_markers, is_open=is_open)
    return OutputSpec(None, replace(calls, trigger=trigger, barred=barred), reasoning)


def _reasoning(conversation: Conversation, prompt: RenderedPrompt) -> Reasoning | None:
    """The reasoning part of the grammar: required if the template opens it, optional if the request
    enables thinking."""
    markers = prompt.turn_format.reasoning_markers
    if markers is None or prompt.turn_format.is_harmony:
        return None
    is_open = prompt.opens_in_reasoning or prompt.turn_format.starts_in_reasoning
    may_begin = conversation.thinks is True and not conversation.continues_final_message
    if not is_open and not may_begin:
        return None
    return Reasoning(markers.begin, markers.end, is_open=is_open)
