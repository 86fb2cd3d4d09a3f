"""Enforced calls in each tool-call format: the parser reads all calls that the grammar accepts."""

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
from corral.inference.v1 import generation_pb2 as pb

from inference_svc.chat.control_tokens import PromptSpan
from inference_svc.chat.conversation import ToolChoice, ToolMode, ToolSpec
from inference_svc.chat.parsers.formats import (
    FAMILIES,
    ReasoningFormat,
    ToolCallFormat,
    TurnFormat,
)
from inference_svc.chat.templates import RenderedPrompt
from inference_svc.rpc.output_constraints import chat_output_spec, enforced_tool_call_format
from inference_svc.structured_output.compile_job import byte_tokenizer
from inference_svc.structured_output.grammar import whole_grammar
from inference_svc.structured_output.matcher import build_matcher
from inference_svc.structured_output.spec import (
    ID,
    NUMBER,
    SPACE,
    CallableTool,
    OutputSpec,
    ToolCallSpec,
    ToolCallSyntax,
)
from tests.support.conversations import conversation, user
from tests.support.golden_turns import GOLDEN
from tests.support.turns import Golden, Parsed

ARGUMENTS = '{"city": "Paris"}'
WEATHER = CallableTool("get_weather", '{"properties": {"city": {"type": "string"}}}', True, "t")
TIME = CallableTool("get_time", "", True, "t")
CALLS = (("get_weather", ARGUMENTS), ("get_time", "{}"))
CONTROL_TOKENS = {
    "[TOOL_CALLS]": 300,
    "[ARGS]": 301,
    "<｜tool▁calls▁begin｜>": 302,
    "<|tool_call_begin|>": 303,
    "<|tool_call_argument_begin|>": 304,
    "<|START_ACTION|>": 305,
    "<|tools_suffix|>": 306,
}
END_TOKEN = 310
SYNTAXES = [
    pytest.param(notation, syntax, id=f"{notation}-{number}")
    for notation, family in FAMILIES.items()
    for number, syntax in enumerate(family.syntaxes)
    if not syntax.arguments and not syntax.ends_turn and notation is not ToolCallFormat.PYTHONIC
]


def format_calls(syntax: ToolCallSyntax, calls: tuple[tuple[str, str], ...]) -> str:
    texts = (
        f"{syntax.head}{name}{syntax.middle}{arguments}{syntax.tail}".replace(NUMBER, str(number))
        for number, (name, arguments) in enumerate(calls)
    )
    text = syntax.before + syntax.between.join(texts) + syntax.after
    return text.replace(SPACE, "\n").replace(ID, "abcdef123")


def tokenize(text: str, control: dict[str, int]) -> Iterator[int]:
    """Yield a token id for each byte and for each control token."""
    while text:
        marker = next((token for token in control if text.startswith(token)), "")
        if marker:
            yield control[marker]
        else:
            yield from text[0].encode()
        text = text[len(marker) or 1 :]


def is_accepted(spec: OutputSpec, text: str, control: dict[str, int]) -> bool:
    tokenizer = byte_tokenizer(400, control, [END_TOKEN])
    matcher = build_matcher(tokenizer, whole_grammar(spec, control))
    tokens = list(tokenize(text, control))
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


@pytest.mark.parametrize("control", [{}, CONTROL_TOKENS], ids=["plain markers", "control tokens"])
@pytest.mark.parametrize(("notation", "syntax"), SYNTAXES)
def test_calls_are_enforced_and_parsed_in_every_syntax(
    notation: ToolCallFormat, syntax: ToolCallSyntax, control: dict[str, int]
) -> None:
    """One call, or several if that is allowed, and no other text."""
    spec = OutputSpec(
        None, ToolCallSpec(FAMILIES[notation].syntaxes, (WEATHER, TIME), True, several=True), None
    )
    single_call_spec = OutputSpec(
        None, ToolCallSpec(FAMILIES[notation].syntaxes, (WEATHER, TIME), True, several=False), None
    )
    one, two = format_calls(syntax, CALLS[:1]), format_calls(syntax, CALLS)

    assert is_accepted(spec, one, control)
    assert is_accepted(spec, two, control)
    assert is_accepted(single_call_spec, one, control)
    assert not is_accepted(single_call_spec, two, control)
    assert not is_accepted(spec, f"x{one}", control)
    assert not is_accepted(spec, one.replace("Paris", 'Pa"ris'), control)
    assert not is_accepted(spec, one.replace("get_weather", "get_whether"), control)
    golden = Golden("", TurnFormat(tool_calls=notation), two, Parsed(calls=CALLS))
    assert golden.parse([two]) == golden.expected


def test_calls_are_enforced_in_hermes_format_if_the_model_format_is_unsuitable() -> None:
    """Formats without a grammar, and beside an output format those without a marker."""
    assert (
        enforced_tool_call_format(ToolCallFormat.MISTRAL, beside_form=True)
        is ToolCallFormat.MISTRAL
    )
    assert (
        enforced_tool_call_format(ToolCallFormat.LLAMA, beside_form=False) is ToolCallFormat.LLAMA
    )
    assert (
        enforced_tool_call_format(ToolCallFormat.LLAMA, beside_form=True) is ToolCallFormat.HERMES
    )
    for notation in (ToolCallFormat.OFF, ToolCallFormat.MUSE):
        assert enforced_tool_call_format(notation, beside_form=False) is ToolCallFormat.HERMES


@pytest.mark.parametrize("is_strict", [True, False])
def test_names_that_are_no_keywords_of_python_are_called_in_json(is_strict: bool) -> None:
    """Calls of the other tools may be in Python; where all names are such, none may begin so."""
    schema = '{"properties": {"$filter": {"const": "x"}}, "required": ["$filter"]}'
    odd = CallableTool("find", schema, is_strict, "tools[0]")
    family = FAMILIES[ToolCallFormat.PYTHONIC]
    begin, end = family.triggers[0], "<|tool_call_end|>"
    in_json = '<tool_call>\n{"name": "find", "arguments": {"$filter": "x"}}\n</tool_call>'
    for tools, may_begin in (((odd, TIME), True), ((odd,), False)):
        required = ToolCallSpec(family.syntaxes, tools, True, several=False)
        free = replace(required, required=False, triggers=family.triggers)

        for calls in (required, free):
            spec = OutputSpec(None, calls, None)
            assert is_accepted(spec, in_json, {})
            assert is_accepted(spec, f"{begin}[get_time()]{end}", {}) is may_begin
            assert not is_accepted(spec, f'{begin}[find($filter="x")]{end}', {})


def test_the_model_chooses_the_numbers_of_calls() -> None:
    """Any number is accepted, but no other text and no empty one."""
    (syntax,) = FAMILIES[ToolCallFormat.KIMI].syntaxes
    spec = OutputSpec(None, ToolCallSpec((syntax,), (TIME,), True, several=False), None)
    call = format_calls(syntax, (("get_time", "{}"),))

    assert is_accepted(spec, call.replace(":0<", ":27<"), CONTROL_TOKENS)
    assert not is_accepted(spec, call.replace(":0<", ":x<"), CONTROL_TOKENS)
    assert not is_accepted(spec, call.replace(":0<", ":<"), CONTROL_TOKENS)


THINKING = {
    family: TurnFormat(turns[0].turn_format.reasoning, family, starts_in_reasoning=True)
    for family, turns in ((ToolCallFormat(name), turns) for name, turns in GOLDEN.items())
    if FAMILIES[family].interrupts
}
"""Formats in which a call or an answer may end a thought."""
CITY = {"type": "object", "properties": {"city": {"enum": ["Paris"]}}, "required": ["city"]}


@pytest.mark.parametrize("has_control", [False, True], ids=["plain markers", "control tokens"])
@pytest.mark.parametrize("constraint", [pb.Constraint(), pb.Constraint(regex="a")], ids=str)
@pytest.mark.parametrize("family", THINKING)
def test_a_call_in_a_thought_does_not_escape_what_is_enforced(
    family: ToolCallFormat, constraint: pb.Constraint, has_control: bool
) -> None:
    """Where the parser accepts one there, the grammar does not, in any syntax of the model."""
    turn_format = THINKING[family]
    if turn_format.reasoning_markers is None:
        turn_format = turn_format._replace(reasoning=ReasoningFormat.THINK)
    mode = ToolMode.AUTO if constraint.regex else ToolMode.REQUIRED
    tool = ToolSpec("get_weather", parameters_json=json.dumps(CITY), strict=True)
    asked = conversation(user("q"), tools=(tool,), choice=ToolChoice(mode))
    prompt = RenderedPrompt((PromptSpan("x", trusted=True),), False, turn_format)
    spec = chat_output_spec(constraint, asked, prompt)
    assert spec is not None
    texts = dict.fromkeys((*turn_format.family.markers, *turn_format.reasoning_ends))
    control = {text: 300 + number for number, text in enumerate(texts if has_control else ())}

    end = turn_format.reasoning_ends[0]
    goldens = [each.text for each in GOLDEN[family.value] if "Paris" in each.text]
    for begin in turn_format.calls_in_thoughts:
        call = next((text[text.index(begin) :] for text in goldens if begin in text), "")
        evil = call.replace("Paris", "EVIL")
        for thought in (f"hm {evil} so", f"hm {begin} so"):
            assert not is_accepted(spec, f"{thought}{end}{call}", control)
    for begin in turn_format.interrupts:
        assert not is_accepted(spec, f"hm {begin} so{end}a", control)
    if constraint.regex:
        assert is_accepted(spec, f"hm < so{end}a", control)
