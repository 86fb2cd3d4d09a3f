"""Enforced calls in each family's notation: the reader understands what the grammar admits."""

from collections.abc import Iterator
from dataclasses import asdict

import pytest

from inference_svc.chat.parsers import ToolCallFormat, TurnFormat
from inference_svc.rpc.output_constraints import TOOL_CALL_SYNTAXES, enforced_tool_call_format
from inference_svc.structured_output.compile_job import byte_tokenizer
from inference_svc.structured_output.grammar import whole_grammar
from inference_svc.structured_output.matcher import build_matcher
from inference_svc.structured_output.spec import (
    NUMBER,
    CallableTool,
    OutputSpec,
    ToolCallSpec,
    ToolCallSyntax,
)
from tests.support.turns import Golden, Parsed

PARIS = '{"city": "Paris"}'
WEATHER = CallableTool("get_weather", '{"properties": {"city": {"type": "string"}}}', True, "t")
TIME = CallableTool("get_time", "", True, "t")
BOTH = (("get_weather", PARIS), ("get_time", "{}"))
CONTROL = {
    "[TOOL_CALLS]": 300,
    "[ARGS]": 301,
    "<｜tool▁calls▁begin｜>": 302,
    "<|tool_call_begin|>": 303,
    "<|tool_call_argument_begin|>": 304,
    "<|START_ACTION|>": 305,
    "<|tools_suffix|>": 306,
}
END = 310
WAYS = [
    pytest.param(notation, way, id=f"{notation}-{number}")
    for notation, ways in TOOL_CALL_SYNTAXES.items()
    for number, way in enumerate(ways)
]


def written(way: ToolCallSyntax, calls: tuple[tuple[str, str], ...]) -> str:
    """Calls as a model writes them."""
    each = (
        f"{way.head}{name}{way.middle}{arguments}{way.tail}".replace(NUMBER, str(number))
        for number, (name, arguments) in enumerate(calls)
    )
    return way.before + way.between.join(each) + way.after


def token_ids(text: str, control: dict[str, int]) -> Iterator[int]:
    """A token for each byte and for each control token."""
    while text:
        marker = next((name for name in control if text.startswith(name)), "")
        if marker:
            yield control[marker]
        else:
            yield from text[0].encode()
        text = text[len(marker) or 1 :]


def is_admitted(asked: OutputSpec, text: str, control: dict[str, int]) -> bool:
    """Whether the grammar lets a model write just this."""
    tokenizer = byte_tokenizer(400, control, [END])
    matcher = build_matcher(tokenizer, whole_grammar(asked, control))
    tokens = list(token_ids(text, control))
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


@pytest.mark.parametrize("control", [{}, CONTROL], ids=["plain markers", "control tokens"])
@pytest.mark.parametrize(("notation", "way"), WAYS)
def test_calls_are_enforced_and_read_in_every_way(
    notation: ToolCallFormat, way: ToolCallSyntax, control: dict[str, int]
) -> None:
    """One call, or several where that is allowed, and nothing else."""
    asked = OutputSpec(
        None, ToolCallSpec(TOOL_CALL_SYNTAXES[notation], (WEATHER, TIME), True, several=True), None
    )
    alone = OutputSpec(
        None, ToolCallSpec(TOOL_CALL_SYNTAXES[notation], (WEATHER, TIME), True, several=False), None
    )
    one, two = written(way, BOTH[:1]), written(way, BOTH)

    assert is_admitted(asked, one, control)
    assert is_admitted(asked, two, control)
    assert is_admitted(alone, one, control)
    assert not is_admitted(alone, two, control)
    assert not is_admitted(asked, f"x{one}", control)
    assert not is_admitted(asked, one.replace("Paris", 'Pa"ris'), control)
    assert not is_admitted(asked, one.replace("get_weather", "get_whether"), control)
    read = Golden("", TurnFormat(tool_calls=notation), two, Parsed(calls=BOTH))
    assert read.parse([two]) == read.expected


def test_a_family_without_json_writes_as_hermes_does() -> None:
    """So does one whose calls have no marker where they stand beside another form."""
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
    for notation in set(ToolCallFormat) - set(TOOL_CALL_SYNTAXES):
        assert enforced_tool_call_format(notation, beside_form=False) is ToolCallFormat.HERMES


def test_numbers_are_the_models_own() -> None:
    """It counts through the conversation; nothing else stands in their place."""
    (way,) = TOOL_CALL_SYNTAXES[ToolCallFormat.KIMI]
    asked = OutputSpec(None, ToolCallSpec((way,), (TIME,), True, several=False), None)
    call = written(way, (("get_time", "{}"),))

    assert is_admitted(asked, call.replace(":0<", ":27<"), CONTROL)
    assert not is_admitted(asked, call.replace(":0<", ":x<"), CONTROL)
    assert not is_admitted(asked, call.replace(":0<", ":<"), CONTROL)


def test_every_way_says_where_a_call_begins_and_ends() -> None:
    """A way without a text before the name would force nothing."""
    for ways in TOOL_CALL_SYNTAXES.values():
        assert all(asdict(way)["head"] and way.middle for way in ways)
