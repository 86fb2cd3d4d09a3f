"""Grammars of turns in channels (gpt-oss): calls begin in the head of a message."""

import re
from dataclasses import replace

import pytest

from inference_svc.chat.parsers.formats import FAMILIES, REASONING_MARKERS, ReasoningFormat
from inference_svc.chat.parsers.formats import ToolCallFormat as Format
from inference_svc.structured_output.compile_job import byte_tokenizer
from inference_svc.structured_output.grammar import whole_grammar
from inference_svc.structured_output.matcher import build_matcher
from inference_svc.structured_output.spec import (
    CallableTool,
    OutputFormat,
    OutputFormatKind,
    OutputSpec,
    Reasoning,
    ToolCallSpec,
)

FAMILY = FAMILIES[Format.HARMONY]
CONTROL = {text: number for number, text in enumerate(FAMILY.markers, 300)}
TOOL = CallableTool("f", '{"properties": {"a": {"type": "integer"}}}', True, "tools[0]")
REQUIRED = ToolCallSpec(FAMILY.syntaxes, (TOOL,), required=True, several=True)
AUTO = replace(REQUIRED, required=False, triggers=FAMILY.triggers, headers=FAMILY.headers)
THOUGHT = Reasoning(
    *REASONING_MARKERS[ReasoningFormat.HARMONY], is_open=False, after=FAMILY.after_reasoning
)
DIGITS = OutputFormat(OutputFormatKind.REGEX, "[0-9]+", "constraint.regex")
ANALYSIS = "<|channel|>analysis<|message|>I call to=functions.g.<|end|><|start|>assistant"
CALL = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}'
CALL_FIRST = ' to=functions.f<|channel|>commentary json<|message|>{"a": 1}'
FINAL = "<|channel|>final<|message|>"


def matches(spec: OutputSpec, text: str) -> bool:
    matcher = build_matcher(byte_tokenizer(400, CONTROL, [399]), whole_grammar(spec, CONTROL))
    pieces = re.split(f"({'|'.join(map(re.escape, CONTROL))})", text)
    tokens = [
        token
        for piece in pieces
        for token in ([CONTROL[piece]] if piece in CONTROL else piece.encode())
    ]
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


@pytest.mark.parametrize("call", [CALL, CALL_FIRST])
def test_a_required_call_is_one_message_to_a_tool(call: str) -> None:
    """After an analysis, if that is allowed; in either order of recipient and channel."""
    spec = OutputSpec(None, REQUIRED, THOUGHT)

    assert matches(spec, call)
    assert matches(spec, f"{ANALYSIS}{call}")
    assert not matches(OutputSpec(None, REQUIRED, None), f"{ANALYSIS}{call}")
    assert not matches(spec, call.replace("1", "true"))
    assert not matches(spec, call.replace("functions.f", "functions.g"))
    assert not matches(spec, f"{FINAL}No.")
    assert not matches(spec, f"{call}{call}")


@pytest.mark.parametrize("before", ["", f"{ANALYSIS}", f"{FINAL}Hm.<|end|><|start|>assistant"])
@pytest.mark.parametrize("call", [CALL, CALL_FIRST])
def test_messages_to_tools_match_their_schemas_in_free_turns(before: str, call: str) -> None:
    """Other messages are free; they may mention tools."""
    spec = OutputSpec(None, AUTO, None)

    assert matches(spec, f"{before}{call}")
    assert matches(spec, f"{before}{FINAL}Write to=functions.g{{}}!")
    assert not matches(spec, f"{before}{call.replace('1', 'true')}")
    assert not matches(spec, f"{before}{call.replace('functions.f', 'functions.g')}")


def test_an_output_format_is_the_final_message() -> None:
    """After an analysis; or the turn is a call."""
    spec = OutputSpec(DIGITS, replace(REQUIRED, required=False), THOUGHT, FAMILY.opening)

    assert matches(spec, f"{FINAL}12")
    assert matches(spec, f"{ANALYSIS}{FINAL}12")
    assert matches(spec, f"{ANALYSIS}{CALL}")
    assert not matches(spec, f"{FINAL}x")
    assert not matches(spec, "12")
