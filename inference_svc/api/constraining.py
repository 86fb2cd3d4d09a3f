"""What shapes an output: a request's constraint, an enforced tool choice, and the thought before
them.

A form has no room for channels (gpt-oss), so a constrained turn is read without them.
"""

import json
from dataclasses import replace

from corral.inference.v1 import generation_pb2 as generation

from inference_svc.api.call_writings import (
    OTHER_TRIGGERS,
    TRIGGERS,
    WRITINGS,
    enforced_notation,
)
from inference_svc.chat.conversation import Conversation, ToolMode
from inference_svc.chat.parsers import CallNotation, TurnFormat
from inference_svc.chat.templates import RenderedPrompt
from inference_svc.constraints.asked import (
    MAX_CHOICES,
    Asked,
    CallableTool,
    Calls,
    Form,
    FormKind,
    Thought,
)
from svc_kit.errors import InvalidField, MissingField, TooLong

_ANY_OBJECT = '{"type": "object"}'
_AS_TEXT = {kind.value: kind for kind in FormKind if kind is not FormKind.CHOICES}


def form_of(constraint: generation.Constraint) -> Form | None:
    """The form that a request names, if it does. Raises the `DomainError` of a bad list."""
    kind = constraint.WhichOneof("form")
    if kind is None or (kind == "json_object" and not constraint.json_object):
        return None
    field = f"constraint.{kind}"
    if kind == "json_object":
        return Form(FormKind.JSON_SCHEMA, _ANY_OBJECT, field)
    if kind == "choices":
        return Form(FormKind.CHOICES, _choices(list(constraint.choices.values), field), field)
    return Form(_AS_TEXT[kind], getattr(constraint, kind), field)


def asked_of_text(constraint: generation.Constraint) -> Asked | None:
    """What shapes a raw continuation."""
    form = form_of(constraint)
    return None if form is None else Asked(form, None, None)


def asked_of_turn(
    constraint: generation.Constraint, conversation: Conversation, prompt: RenderedPrompt
) -> Asked | None:
    """What shapes the next turn of a conversation.

    A form leaves the model free to call tools instead, where it may. Tools alone are enforced where
    the choice is required; where the model is free, its calls are held to their schemas, if a tool
    is strict and a marker tells calls from text.
    """
    form = form_of(constraint)
    required = conversation.tool_choice.mode is ToolMode.REQUIRED
    if not conversation.offers_tools:
        return None if form is None else Asked(form, None, _thought(conversation, prompt))
    if form is None and not required:
        return _free_turn(conversation, prompt)
    calls = _calls(conversation, prompt.turn_format.tool_calls, required=required)
    return Asked(None if required else form, calls, _thought(conversation, prompt))


def constrained_format(turn_format: TurnFormat, asked: Asked) -> TurnFormat:
    """How a constrained turn is to be read."""
    if turn_format.is_harmony:
        turn_format = TurnFormat()
    if asked.calls is not None:
        beside_form = not asked.calls.required
        notation = enforced_notation(turn_format.tool_calls, beside_form=beside_form)
        turn_format = turn_format._replace(tool_calls=notation)
    return turn_format


def _choices(values: list[str], field: str) -> str:
    if not values:
        raise MissingField(field=field)
    if len(values) > MAX_CHOICES:
        raise TooLong(field=field, length=len(values), limit=MAX_CHOICES)
    if "" in values:
        raise InvalidField(field=field, problem="a choice is empty")
    return json.dumps(values)


def _calls(conversation: Conversation, told: CallNotation, *, required: bool) -> Calls:
    choice = conversation.tool_choice
    tools = tuple(
        CallableTool(tool.name, tool.parameters_json, tool.strict, f"tools[{i}].parameters_json")
        for i, tool in enumerate(conversation.tools)
        if not choice.allowed_names or tool.name in choice.allowed_names
    )
    is_named = required and len(choice.allowed_names) == 1
    several = choice.parallel and not is_named
    ways = WRITINGS[enforced_notation(told, beside_form=not required)]
    return Calls(ways, tools, required=required, several=several)


def _free_turn(conversation: Conversation, prompt: RenderedPrompt) -> Asked | None:
    """A turn whose calls alone are held to something; what its thoughts say of calls is none."""
    told = prompt.turn_format
    trigger = "" if told.is_harmony else TRIGGERS.get(told.tool_calls, "")
    if not trigger:
        return None
    calls = _calls(conversation, told.tool_calls, required=False)
    if not any(tool.strict for tool in calls.tools):
        return None
    barred = OTHER_TRIGGERS.get(told.tool_calls, ())
    thought = None
    if told.reasoning_markers is not None:
        is_open = prompt.opens_in_reasoning or told.starts_in_reasoning
        thought = Thought(*told.reasoning_markers, is_open=is_open)
    return Asked(None, replace(calls, trigger=trigger, barred=barred), thought)


def _thought(conversation: Conversation, prompt: RenderedPrompt) -> Thought | None:
    """Where the template has begun a thought it must end first; where thinking was asked for, the
    model may begin one."""
    markers = prompt.turn_format.reasoning_markers
    if markers is None or prompt.turn_format.is_harmony:
        return None
    is_open = prompt.opens_in_reasoning or prompt.turn_format.starts_in_reasoning
    asked = conversation.template_variables().get("enable_thinking") is True
    may_begin = asked and not conversation.continues_final_message
    if not is_open and not may_begin:
        return None
    return Thought(markers.begin, markers.end, is_open=is_open)
