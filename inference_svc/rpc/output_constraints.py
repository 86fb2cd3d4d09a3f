"""Converts the output format, forced tool calls and reasoning of a request to a grammar spec.

A forced call is written in the syntax of the model's family, where that has one for grammars.
"""

import json
from dataclasses import replace

from corral.inference.v1 import generation_pb2 as generation

from inference_svc.chat.conversation import Conversation, ToolMode
from inference_svc.chat.parsers.formats import FAMILIES, ToolCallFormat, TurnFormat
from inference_svc.chat.reasoning_support import ThinkingMode
from inference_svc.chat.templates import RenderedPrompt
from inference_svc.structured_output.spec import (
    ANY_OBJECT,
    CallableTool,
    OutputFormat,
    OutputFormatKind,
    OutputSpec,
    Reasoning,
    ToolCallSpec,
)
from svc_kit.errors import InvalidField


def enforced_tool_call_format(native: ToolCallFormat, *, beside_form: bool) -> ToolCallFormat:
    """Return the format in which calls are enforced for a model that writes them as `native`.

    Beside an output format, calls need a marker, because JSON output could be parsed as a call.
    """
    family = FAMILIES.get(native)
    if family is None or not family.syntaxes or (beside_form and not family.triggers):
        return ToolCallFormat.HERMES
    return native


_AS_TEXT = {kind.value: kind for kind in OutputFormatKind if kind is not OutputFormatKind.CHOICES}


def output_format(constraint: generation.Constraint) -> OutputFormat | None:
    """Convert the output format of a request, if set. Raises a `DomainError` if invalid."""
    kind = constraint.WhichOneof("form")
    if kind is None or (kind == "json_object" and not constraint.json_object):
        return None
    field = f"constraint.{kind}"
    if kind == "json_object":
        return OutputFormat(OutputFormatKind.JSON_SCHEMA, ANY_OBJECT, field)
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
    calls are enforced if the tool choice is `required`; otherwise the turn is free until a call
    begins, if the format has a marker for calls.
    """
    form = output_format(constraint)
    required = conversation.tool_choice.mode is ToolMode.REQUIRED
    family = prompt.turn_format.family
    in_message = conversation.continues_final_message and not prompt.opens_in_reasoning
    opening = "" if in_message else family.opening
    if not conversation.offers_tools:
        if form is None:
            return None
        return OutputSpec(form, None, _reasoning(conversation, prompt), opening)
    if form is None and not required:
        return _free_turn(conversation, prompt)
    calls = _calls(conversation, prompt, required=required, beside_form=not required)
    if in_message:
        syntaxes = (
            replace(syntax, before=family.after_message + syntax.before)
            for syntax in calls.syntaxes
        )
        calls = replace(calls, syntaxes=tuple(syntaxes))
    thought = _reasoning(conversation, prompt, before_calls=required)
    if required:
        return OutputSpec(None, calls, thought)
    return OutputSpec(form, calls, thought, opening)


def constrained_format(turn_format: TurnFormat, request: OutputSpec) -> TurnFormat:
    if request.calls is not None and not turn_format.is_harmony:
        beside_form = request.form is not None
        tool_calls = enforced_tool_call_format(turn_format.tool_calls, beside_form=beside_form)
        turn_format = turn_format._replace(tool_calls=tool_calls)
    return turn_format


def _choices(values: list[str], field: str) -> str:
    if "" in values:
        raise InvalidField(field=field, problem="a choice is empty")
    return json.dumps(values)


def _calls(
    conversation: Conversation, prompt: RenderedPrompt, *, required: bool, beside_form: bool
) -> ToolCallSpec:
    choice = conversation.tool_choice
    tools = tuple(
        CallableTool(tool.name, tool.parameters_json, tool.strict, f"tools[{i}].parameters_json")
        for i, tool in enumerate(conversation.tools)
        if not choice.allowed_names or tool.name in choice.allowed_names
    )
    is_named = required and len(choice.allowed_names) == 1
    several = choice.parallel and not is_named
    turn_format = prompt.turn_format
    native = ToolCallFormat.HARMONY if turn_format.is_harmony else turn_format.tool_calls
    family = FAMILIES[enforced_tool_call_format(native, beside_form=beside_form)]
    return ToolCallSpec(family.syntaxes, tools, required=required, several=several)


def _free_turn(conversation: Conversation, prompt: RenderedPrompt) -> OutputSpec | None:
    """Constrain only the calls of a turn; reasoning stays free."""
    turn_format = prompt.turn_format
    family = turn_format.family
    if not family.triggers and not family.begin:
        return None
    calls = _calls(conversation, prompt, required=False, beside_form=False)
    reasoning = None
    if turn_format.reasoning_markers is not None:
        is_open = prompt.opens_in_reasoning or turn_format.starts_in_reasoning
        excludes = turn_format.interrupts + turn_format.calls_in_thoughts
        reasoning = Reasoning(*turn_format.reasoning_markers, is_open, excludes)
    return OutputSpec(
        None,
        replace(
            calls,
            triggers=family.triggers,
            headers=family.headers,
            begin=family.begin,
            excludes=family.excludes,
        ),
        reasoning,
    )


def _reasoning(
    conversation: Conversation, prompt: RenderedPrompt, *, before_calls: bool = False
) -> Reasoning | None:
    """The reasoning part of the grammar: required if the template opens it, optional if the request
    enables thinking, or before required calls if the template cannot switch it off. A call inside
    it would escape the constraints, and so cannot begin."""
    turn_format = prompt.turn_format
    markers = turn_format.reasoning_markers
    if markers is None:
        return None
    is_open = prompt.opens_in_reasoning or turn_format.starts_in_reasoning
    thinks = conversation.thinks
    if thinks is None and before_calls:
        thinks = prompt.thinking.mode is ThinkingMode.ALWAYS
    may_begin = bool(thinks) and not conversation.continues_final_message
    if not is_open and not may_begin:
        return None
    calls = turn_format.calls_in_thoughts if conversation.offers_tools else ()
    excludes = turn_format.interrupts + calls
    return Reasoning(*markers, is_open, excludes, turn_format.family.after_reasoning)
