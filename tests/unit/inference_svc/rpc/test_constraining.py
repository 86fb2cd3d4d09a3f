"""Conversion of constraints, tools and reasoning to an output spec."""

from dataclasses import replace

import pytest
from corral.inference.v1 import generation_pb2 as pb

from inference_svc.chat.control_tokens import PromptSpan
from inference_svc.chat.conversation import (
    Conversation,
    TemplateOptions,
    ToolChoice,
    ToolMode,
    ToolSpec,
)
from inference_svc.chat.parsers.formats import (
    FAMILIES,
    ReasoningFormat,
    ToolCallFormat,
    TurnFormat,
)
from inference_svc.chat.reasoning_support import ThinkingMode, ThinkingSupport
from inference_svc.chat.templates import RenderedPrompt
from inference_svc.rpc.output_constraints import (
    chat_output_spec,
    constrained_format,
    text_output_spec,
)
from inference_svc.structured_output.spec import (
    OutputFormat,
    OutputFormatKind,
    OutputSpec,
    Reasoning,
    ToolCallSpec,
)
from svc_kit.errors import InvalidField
from tests.support.conversations import GET_WEATHER, assistant, conversation, user

TOOLS = (GET_WEATHER, ToolSpec("now", strict=True))
REGEX = pb.Constraint(regex="a+")
OUTPUT_FORMAT = OutputFormat(OutputFormatKind.REGEX, "a+", "constraint.regex")
THINKING = TurnFormat(ReasoningFormat.THINK, ToolCallFormat.LLAMA)


def make_prompt(
    turn_format: TurnFormat = THINKING, *, opens_in_reasoning: bool = False
) -> RenderedPrompt:
    return RenderedPrompt((PromptSpan("x", trusted=True),), opens_in_reasoning, turn_format)


def convert_turn(
    conversation: Conversation,
    constraint: pb.Constraint | None = None,
    prompt: RenderedPrompt | None = None,
) -> OutputSpec | None:
    return chat_output_spec(constraint or pb.Constraint(), conversation, prompt or make_prompt())


def make_conversation(mode: ToolMode, *names: str, parallel: bool = True) -> Conversation:
    """A question with two tools."""
    return conversation(user("q"), tools=TOOLS, choice=ToolChoice(mode, names, parallel))


def require_calls(spec: OutputSpec | None) -> ToolCallSpec:
    assert spec is not None
    assert spec.calls is not None
    return spec.calls


@pytest.mark.parametrize(
    ("constraint", "kind", "text"),
    [
        (pb.Constraint(json_schema="{}"), OutputFormatKind.JSON_SCHEMA, "{}"),
        (pb.Constraint(json_object=True), OutputFormatKind.JSON_SCHEMA, '{"type": "object"}'),
        (pb.Constraint(lark="start: A"), OutputFormatKind.LARK, "start: A"),
        (pb.Constraint(gbnf='root ::= "a"'), OutputFormatKind.GBNF, 'root ::= "a"'),
        (
            pb.Constraint(choices=pb.TextChoices(values=["a", "b"])),
            OutputFormatKind.CHOICES,
            '["a", "b"]',
        ),
    ],
)
def test_each_constraint_is_converted_to_an_output_format(
    constraint: pb.Constraint, kind: OutputFormatKind, text: str
) -> None:
    """The format has the name of its field, for errors."""
    field = f"constraint.{constraint.WhichOneof('form')}"

    assert text_output_spec(constraint) == OutputSpec(OutputFormat(kind, text, field), None, None)


@pytest.mark.parametrize(
    "constraint", [pb.Constraint(), pb.Constraint(json_object=False)], ids=["unset", "false"]
)
def test_free_text_has_no_output_spec(constraint: pb.Constraint) -> None:
    """Also with optional tools in a format without grammars."""
    prompt = make_prompt(TurnFormat(tool_calls=ToolCallFormat.MUSE))
    assert text_output_spec(constraint) is None
    assert convert_turn(make_conversation(ToolMode.AUTO), constraint, prompt) is None
    assert convert_turn(make_conversation(ToolMode.NONE), constraint) is None


def test_an_empty_choice_is_rejected() -> None:
    """The error names the list."""
    with pytest.raises(InvalidField) as error:
        text_output_spec(pb.Constraint(choices=pb.TextChoices(values=["a", ""])))

    assert error.value.field == "constraint.choices"


def test_required_tool_calls_replace_the_output_format() -> None:
    """Errors name a tool by its index in the request."""
    spec = convert_turn(make_conversation(ToolMode.REQUIRED), REGEX)
    calls = require_calls(spec)

    assert spec == OutputSpec(None, calls, None)
    assert calls.syntaxes == FAMILIES[ToolCallFormat.LLAMA].syntaxes
    assert (calls.required, calls.several) == (True, True)
    assert [(tool.name, tool.strict, tool.field) for tool in calls.tools] == [
        ("get_weather", False, "tools[0].parameters_json"),
        ("now", True, "tools[1].parameters_json"),
    ]


def test_allowed_names_and_disabled_parallel_calls_limit_the_calls() -> None:
    """A single required tool is called once; without parallel calls, so is any other."""
    named = require_calls(convert_turn(make_conversation(ToolMode.REQUIRED, "now")))
    single = require_calls(convert_turn(make_conversation(ToolMode.REQUIRED, parallel=False)))

    assert [tool.field for tool in named.tools] == ["tools[1].parameters_json"]
    assert not named.several
    assert len(single.tools) == 2
    assert not single.several


def test_an_output_format_and_optional_tools_are_both_allowed() -> None:
    """With tool choice `none`, only the output format is."""
    spec = convert_turn(make_conversation(ToolMode.AUTO), REGEX)

    assert spec is not None
    assert spec.form == OUTPUT_FORMAT
    assert not require_calls(spec).required
    assert convert_turn(make_conversation(ToolMode.NONE), REGEX) == OutputSpec(
        OUTPUT_FORMAT, None, None
    )


@pytest.mark.parametrize("notation", list(ToolCallFormat))
def test_tools_constrain_calls_in_free_text(notation: ToolCallFormat) -> None:
    """In formats whose calls can be told from text, after the reasoning."""
    prompt = make_prompt(TurnFormat(ReasoningFormat.THINK, notation), opens_in_reasoning=True)
    spec = convert_turn(make_conversation(ToolMode.AUTO), prompt=prompt)
    family = prompt.turn_format.family
    triggers = family.triggers

    assert (spec is None) is (not triggers and not family.begin)
    if spec is not None:
        calls = require_calls(spec)
        excludes = (*prompt.turn_format.interrupts, *prompt.turn_format.calls_in_thoughts)
        markers = prompt.turn_format.reasoning_markers
        assert markers is not None
        reasoning = Reasoning(*markers, is_open=True, excludes=excludes)
        assert spec == OutputSpec(None, calls, reasoning)
        assert (calls.triggers, calls.required, calls.several) == (triggers, False, True)
        assert (calls.begin, calls.headers) == (family.begin, family.headers)
        assert calls.excludes == family.excludes
        beginnings = [syntax.begin for syntax in calls.syntaxes]
        if notation not in (ToolCallFormat.LLAMA, ToolCallFormat.HARMONY):
            assert all(text.startswith(triggers) for text in beginnings)
        assert constrained_format(prompt.turn_format, spec) == prompt.turn_format
        unopened = replace(prompt, opens_in_reasoning=False)
        optional = convert_turn(make_conversation(ToolMode.AUTO), prompt=unopened)
        assert optional == replace(spec, thought=replace(reasoning, is_open=False))


@pytest.mark.parametrize("mode", [ToolMode.AUTO, ToolMode.REQUIRED])
def test_one_call_is_allowed_where_a_template_takes_back_one(mode: ToolMode) -> None:
    """As with `parallel_tool_calls: false`."""
    prompt = make_prompt(TurnFormat(ReasoningFormat.OFF, ToolCallFormat.LLAMA))
    allowed = make_conversation(mode)

    assert require_calls(convert_turn(allowed, prompt=prompt)).several
    single = convert_turn(allowed.with_single_calls(), prompt=prompt)
    assert not require_calls(single).several


REASONING = Reasoning("<think>", "</think>", is_open=True)
IMPLICIT = THINKING._replace(starts_in_reasoning=True)
HARMONY = TurnFormat(ReasoningFormat.HARMONY, ToolCallFormat.HARMONY)


@pytest.mark.parametrize(
    ("prompt", "enable", "reasoning"),
    [
        (make_prompt(opens_in_reasoning=True), None, REASONING),
        (make_prompt(IMPLICIT), None, REASONING),
        (make_prompt(), True, replace(REASONING, is_open=False)),
        (make_prompt(), None, None),
        (make_prompt(), False, None),
        (make_prompt(TurnFormat()), True, None),
    ],
)
def test_an_output_format_applies_after_the_reasoning(
    prompt: RenderedPrompt, enable: bool | None, reasoning: Reasoning | None
) -> None:
    """Opened by the template or enabled by the request, if the format has reasoning markers."""
    spec = convert_turn(conversation(user("q"), enable_thinking=enable), REGEX, prompt)

    assert spec == OutputSpec(OUTPUT_FORMAT, None, reasoning)


@pytest.mark.parametrize(
    ("mode", "enable", "thinks"),
    [
        (ThinkingMode.SWITCHABLE, None, False),
        (ThinkingMode.SWITCHABLE, True, True),
        (ThinkingMode.ALWAYS, None, True),
        (ThinkingMode.SWITCHABLE, False, False),
        (ThinkingMode.NONE, None, False),
        (ThinkingMode.NONE, True, True),
    ],
)
def test_a_model_that_thinks_may_do_so_before_a_required_call(
    mode: ThinkingMode, enable: bool | None, thinks: bool
) -> None:
    """If the request enables it or its template cannot switch it off; others are forced to call."""
    asked = replace(
        make_conversation(ToolMode.REQUIRED), options=TemplateOptions(enable_thinking=enable)
    )
    spec = convert_turn(asked, prompt=replace(make_prompt(), thinking=ThinkingSupport(mode)))

    assert spec is not None
    assert (spec.thought is not None) is thinks


def test_a_continued_message_has_no_reasoning() -> None:
    """Although the request enables thinking."""
    spec = convert_turn(conversation(user("q"), assistant("so"), enable_thinking=True), REGEX)

    assert spec == OutputSpec(OUTPUT_FORMAT, None, None)


def test_a_constrained_turn_is_parsed_in_the_format_of_its_grammar() -> None:
    """The model's own format, or Hermes for calls."""
    calls_spec = convert_turn(make_conversation(ToolMode.REQUIRED))
    both_spec = convert_turn(make_conversation(ToolMode.AUTO), REGEX)
    text_spec = text_output_spec(REGEX)
    assert calls_spec is not None
    assert both_spec is not None
    assert text_spec is not None

    assert constrained_format(THINKING, calls_spec) == THINKING
    assert constrained_format(THINKING, both_spec) == THINKING._replace(
        tool_calls=ToolCallFormat.HERMES
    )
    assert require_calls(both_spec).syntaxes == FAMILIES[ToolCallFormat.HERMES].syntaxes
    assert constrained_format(THINKING, text_spec) == THINKING
    assert constrained_format(HARMONY, calls_spec) == HARMONY
    assert constrained_format(HARMONY, text_spec) == HARMONY


def test_an_output_format_in_channels_begins_the_final_one() -> None:
    """After an analysis, if the request enables it."""
    family = HARMONY.family
    asked = conversation(user("q"), enable_thinking=True)
    spec = convert_turn(asked, REGEX, make_prompt(HARMONY))

    assert spec is not None
    assert spec.opening == family.opening != ""
    assert spec.thought is not None
    assert spec.thought.after == family.after_reasoning != ""


@pytest.mark.parametrize("mode", [ToolMode.NONE, ToolMode.AUTO, ToolMode.REQUIRED])
def test_a_continued_answer_in_channels_begins_none(mode: ToolMode) -> None:
    """A call is the next message."""
    asked = conversation(user("q"), assistant("so"), tools=TOOLS, choice=ToolChoice(mode))
    spec = convert_turn(asked, REGEX, make_prompt(HARMONY))

    assert spec is not None
    assert (spec.opening, spec.thought) == ("", None)
    for syntax in spec.calls.syntaxes if spec.calls is not None else ():
        assert syntax.begin.startswith("<|end|><|start|>assistant")
