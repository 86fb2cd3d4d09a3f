"""From protos and conversations to what shapes an output."""

from dataclasses import replace

import pytest
from corral.inference.v1 import generation_pb2 as pb

from inference_svc.chat.control_tokens import PromptSpan
from inference_svc.chat.conversation import Conversation, ToolChoice, ToolMode, ToolSpec
from inference_svc.chat.parsers import ReasoningFormat, ToolCallFormat, TurnFormat
from inference_svc.chat.templates import RenderedPrompt
from inference_svc.rpc.output_constraints import (
    TOOL_CALL_SYNTAXES,
    TRIGGERS,
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
from svc_kit.errors import DomainError, InvalidField, MissingField, TooLong
from tests.support.conversations import GET_WEATHER, assistant, conversation, user

TOOLS = (GET_WEATHER, ToolSpec("now", strict=True))
REGEX = pb.Constraint(regex="a+")
FORM = OutputFormat(OutputFormatKind.REGEX, "a+", "constraint.regex")
THINKING = TurnFormat(ReasoningFormat.THINK, ToolCallFormat.LLAMA)


def a_prompt(
    turn_format: TurnFormat = THINKING, *, opens_in_reasoning: bool = False
) -> RenderedPrompt:
    """A prompt whose text does not matter."""
    return RenderedPrompt((PromptSpan("x", trusted=True),), opens_in_reasoning, turn_format)


def turn(
    asked: Conversation,
    constraint: pb.Constraint | None = None,
    prompt: RenderedPrompt | None = None,
) -> OutputSpec | None:
    """What shapes the next turn."""
    return chat_output_spec(constraint or pb.Constraint(), asked, prompt or a_prompt())


def with_tools(mode: ToolMode, *names: str, parallel: bool = True) -> Conversation:
    """A question beside two tools."""
    return conversation(user("q"), tools=TOOLS, choice=ToolChoice(mode, names, parallel))


def calls_of(asked: OutputSpec | None) -> ToolCallSpec:
    assert asked is not None
    assert asked.calls is not None
    return asked.calls


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
def test_every_constraint_becomes_a_form(
    constraint: pb.Constraint, kind: OutputFormatKind, text: str
) -> None:
    """With the name of its field for errors."""
    field = f"constraint.{constraint.WhichOneof('form')}"

    assert text_output_spec(constraint) == OutputSpec(OutputFormat(kind, text, field), None, None)


@pytest.mark.parametrize(
    "constraint", [pb.Constraint(), pb.Constraint(json_object=False)], ids=["unset", "false"]
)
def test_nothing_asked_is_no_constraint(constraint: pb.Constraint) -> None:
    """Free text, also with optional tools in Llama's format, whose calls have no marker."""
    assert text_output_spec(constraint) is None
    assert turn(with_tools(ToolMode.AUTO), constraint) is None
    assert turn(with_tools(ToolMode.NONE), constraint) is None


@pytest.mark.parametrize(
    ("values", "kind"), [([], MissingField), (["a", ""], InvalidField), (["a"] * 1025, TooLong)]
)
def test_a_bad_list_of_choices_is_refused(values: list[str], kind: type[DomainError]) -> None:
    """Empty, with an empty text, or too long."""
    with pytest.raises(kind) as caught:
        text_output_spec(pb.Constraint(choices=pb.TextChoices(values=values)))

    assert caught.value.field == "constraint.choices"


def test_a_required_choice_asks_for_calls_alone() -> None:
    """A form beside it has nothing to hold; tools keep their place for errors."""
    asked = turn(with_tools(ToolMode.REQUIRED), REGEX)
    calls = calls_of(asked)

    assert asked == OutputSpec(None, calls, None)
    assert calls.ways == TOOL_CALL_SYNTAXES[ToolCallFormat.LLAMA]
    assert (calls.required, calls.several) == (True, True)
    assert [(tool.name, tool.strict, tool.field) for tool in calls.tools] == [
        ("get_weather", False, "tools[0].parameters_json"),
        ("now", True, "tools[1].parameters_json"),
    ]


def test_allowed_names_and_parallel_calls_limit_what_is_asked() -> None:
    """A named tool is called once; without parallel calls so is any."""
    named = calls_of(turn(with_tools(ToolMode.REQUIRED, "now")))
    alone = calls_of(turn(with_tools(ToolMode.REQUIRED, parallel=False)))

    assert [tool.field for tool in named.tools] == ["tools[1].parameters_json"]
    assert not named.several
    assert len(alone.tools) == 2
    assert not alone.several


def test_a_form_beside_tools_leaves_both_open() -> None:
    """Unless the model may not call any."""
    asked = turn(with_tools(ToolMode.AUTO), REGEX)

    assert asked is not None
    assert asked.form == FORM
    assert not calls_of(asked).required
    assert turn(with_tools(ToolMode.NONE), REGEX) == OutputSpec(FORM, None, None)


@pytest.mark.parametrize("notation", list(ToolCallFormat))
def test_strict_tools_constrain_calls_in_free_text(notation: ToolCallFormat) -> None:
    """In formats whose calls begin with a marker, outside of reasoning. Without strict tools
    nothing is constrained."""
    prompt = a_prompt(TurnFormat(ReasoningFormat.THINK, notation), opens_in_reasoning=True)
    asked = turn(with_tools(ToolMode.AUTO), prompt=prompt)
    trigger = TRIGGERS.get(notation, "")

    assert (asked is None) is (not trigger)
    if asked is not None:
        calls = calls_of(asked)
        assert asked == OutputSpec(None, calls, THOUGHT)
        assert (calls.trigger, calls.required, calls.several) == (trigger, False, True)
        assert all((way.before or way.head).startswith(trigger) for way in calls.ways)
        assert constrained_format(prompt.turn_format, asked) == prompt.turn_format
        free = replace(prompt, opens_in_reasoning=False)
        may_begin = turn(with_tools(ToolMode.AUTO), prompt=free)
        assert may_begin == replace(asked, thought=replace(THOUGHT, is_open=False))
    assert turn(with_tools(ToolMode.AUTO, "get_weather"), prompt=prompt) is None


THOUGHT = Reasoning("<think>", "</think>", is_open=True)
STARTS = THINKING._replace(starts_in_reasoning=True)
HARMONY = TurnFormat(ReasoningFormat.HARMONY, ToolCallFormat.HARMONY)


@pytest.mark.parametrize(
    ("prompt", "enable", "thought"),
    [
        (a_prompt(opens_in_reasoning=True), None, THOUGHT),
        (a_prompt(STARTS), None, THOUGHT),
        (a_prompt(), True, replace(THOUGHT, is_open=False)),
        (a_prompt(), None, None),
        (a_prompt(), False, None),
        (a_prompt(TurnFormat()), True, None),
        (a_prompt(HARMONY), True, None),
    ],
)
def test_the_form_waits_for_a_thought_that_is_there(
    prompt: RenderedPrompt, enable: bool | None, thought: Reasoning | None
) -> None:
    """Begun by the template, or asked for; a model that knows no thought gets none."""
    asked = turn(conversation(user("q"), enable_thinking=enable), REGEX, prompt)

    assert asked == OutputSpec(FORM, None, thought)


def test_a_continued_message_begins_no_thought() -> None:
    """It has begun already."""
    asked = turn(conversation(user("q"), assistant("so"), enable_thinking=True), REGEX)

    assert asked == OutputSpec(FORM, None, None)


def test_a_constrained_turn_is_parsed_in_the_format_of_its_grammar() -> None:
    """Forced calls have the syntax of the family, or of Hermes; Harmony's channels are unused."""
    calls = turn(with_tools(ToolMode.REQUIRED))
    both = turn(with_tools(ToolMode.AUTO), REGEX)
    form = text_output_spec(REGEX)
    assert calls is not None
    assert both is not None
    assert form is not None

    assert constrained_format(THINKING, calls) == THINKING
    assert constrained_format(THINKING, both) == THINKING._replace(tool_calls=ToolCallFormat.HERMES)
    assert calls_of(both).ways == TOOL_CALL_SYNTAXES[ToolCallFormat.HERMES]
    assert constrained_format(THINKING, form) == THINKING
    assert constrained_format(HARMONY, calls) == TurnFormat(tool_calls=ToolCallFormat.HERMES)
    assert constrained_format(HARMONY, form) == TurnFormat()
