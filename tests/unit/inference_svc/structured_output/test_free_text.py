"""Grammars of turns with free text before, between and after tool calls."""

import pytest
from llguidance import LLMatcher, LLTokenizer

from inference_svc.chat.parsers.formats import FAMILIES, ToolCallFormat
from inference_svc.structured_output.compile_job import byte_tokenizer
from inference_svc.structured_output.grammar import whole_grammar
from inference_svc.structured_output.spec import (
    ID,
    NUMBER,
    CallableTool,
    OutputSpec,
    Reasoning,
    ToolCallSpec,
    ToolCallSyntax,
)

VOCABULARY_SIZE, END = 512, 511
ARGUMENTS = '{"a": 1}'
TOOL = CallableTool(
    "f", '{"properties": {"a": {"type": "integer"}}, "required": ["a"]}', True, "tools[0]"
)
OTHER = CallableTool("g", "", True, "tools[1]")
TRIGGERS = {
    name: family.triggers[0]
    for name, family in FAMILIES.items()
    if family.triggers and not any(way.arguments or way.ends_turn for way in family.syntaxes)
}
EXCLUDES = {name: FAMILIES[name].excludes for name in TRIGGERS if FAMILIES[name].excludes}
every_format = pytest.mark.parametrize("call_format", TRIGGERS, ids=lambda each: each.value)
every_trigger = pytest.mark.parametrize("is_control_token", [False, True])
"""Whether the vocabulary has the trigger as a control token or only as text."""


def write_call(syntax: ToolCallSyntax, arguments: str = ARGUMENTS, name: str = "f") -> str:
    call = f"{syntax.before}{syntax.head}{name}{syntax.middle}{arguments}{syntax.tail}"
    return f"{call}{syntax.after}".replace(NUMBER, "0").replace(ID, "a1")


class Turn:
    """A vocabulary of bytes and control tokens, and the grammar of a turn."""

    def __init__(
        self,
        call_format: ToolCallFormat,
        is_control_token: bool,
        *,
        several: bool = True,
        reasoning: Reasoning | None = None,
        control_texts: tuple[str, ...] = ("<think>",),
    ) -> None:
        trigger = TRIGGERS[call_format]
        texts = (*control_texts, trigger) if is_control_token else control_texts
        self._control = {"<end>": END, **{text: 300 + i for i, text in enumerate(texts)}}
        self._tokenizer: LLTokenizer = byte_tokenizer(VOCABULARY_SIZE, self._control, [END])
        calls = ToolCallSpec(
            FAMILIES[call_format].syntaxes,
            (TOOL, OTHER),
            False,
            several,
            triggers=FAMILIES[call_format].triggers,
            excludes=FAMILIES[call_format].excludes,
        )
        self._grammar = whole_grammar(OutputSpec(None, calls, reasoning), self._control)

    def matches(self, text: str) -> bool:
        matcher = LLMatcher(self._tokenizer, self._grammar)
        assert not matcher.is_error(), matcher.get_error()
        tokens = self._tokenize(text)
        return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()

    def _tokenize(self, text: str) -> list[int]:
        for marker, token in self._control.items():
            before, separator, after = text.partition(marker)
            if separator:
                return [*self._tokenize(before), token, *self._tokenize(after)]
        return list(self._tokenizer.tokenize_bytes(text.encode()))


@every_trigger
@every_format
def test_text_is_free_and_calls_match_their_schemas(
    call_format: ToolCallFormat, is_control_token: bool
) -> None:
    """Text around calls may have reasoning and incomplete markers."""
    turn, trigger = Turn(call_format, is_control_token), TRIGGERS[call_format]
    for syntax in FAMILIES[call_format].syntaxes:
        valid = write_call(syntax)
        assert turn.matches(valid)
        assert turn.matches(f"<think>Hm.{valid}")
        assert turn.matches(f"Let me see. {valid}\nDone.")
        assert turn.matches(f"{valid} and {write_call(syntax, '{}', 'g')}")
        for invalid in (
            write_call(syntax, '{"a": "x"}'),
            write_call(syntax, "{}"),
            write_call(syntax, "{}", "h"),
            f"{valid}{trigger}x",
        ):
            assert not turn.matches(f"So: {invalid}")
    for text in ("", "Hello.", "{}", "<t" if is_control_token else f"a < b, [c] {trigger[:-1]}"):
        assert turn.matches(text)


@every_trigger
@every_format
def test_a_second_call_is_refused_unless_several_are_allowed(
    call_format: ToolCallFormat, is_control_token: bool
) -> None:
    """Free text may follow the first call."""
    turn = Turn(call_format, is_control_token, several=False)
    for syntax in FAMILIES[call_format].syntaxes:
        valid = write_call(syntax)
        assert turn.matches(f"One. {valid} Done.")
        assert not turn.matches(f"{valid}{valid}")


@every_trigger
@pytest.mark.parametrize("call_format", EXCLUDES)
def test_a_call_cannot_begin_with_another_trigger(
    call_format: ToolCallFormat, is_control_token: bool
) -> None:
    """Parsers accept other triggers, as text or control tokens, but no schema would apply."""
    others, syntax = EXCLUDES[call_format], FAMILIES[call_format].syntaxes[0]
    for control_texts in ((), others):
        turn = Turn(call_format, is_control_token, control_texts=control_texts)
        for other in others:
            assert not turn.matches(f"So: {other}")
            assert not turn.matches(f"{other}{write_call(syntax, '{}')}")
        assert turn.matches(f"So: {write_call(syntax)}")


def test_every_text_that_begins_a_call_is_a_trigger() -> None:
    """Also the variants that parsers accept."""
    for call_format, begins in (
        (
            ToolCallFormat.DEEPSEEK,
            "<｜tool▁calls▁begin｜> <｜tool_calls_begin｜> <｜tool▁call▁begin｜> <tool_call>",
        ),
        (
            ToolCallFormat.KIMI,
            "<|tool_calls_section_begin|> <|tool_call_section_begin|> <|tool_call_begin|>",
        ),
        (ToolCallFormat.QWEN_CODER, "<tool_call> <seed:tool_call> <function="),
    ):
        triggers = {*FAMILIES[call_format].triggers, *FAMILIES[call_format].excludes}
        assert triggers >= {*begins.split()}


@pytest.mark.parametrize("control_texts", [(), ("</think>",), ("<think>", "</think>")])
@every_trigger
@every_format
def test_reasoning_may_have_triggers(
    call_format: ToolCallFormat, is_control_token: bool, control_texts: tuple[str, ...]
) -> None:
    """Calls are only parsed, and only constrained, after the reasoning."""
    trigger, syntax = TRIGGERS[call_format], FAMILIES[call_format].syntaxes[0]
    valid, invalid = write_call(syntax), write_call(syntax, '{"a": "x"}')
    for is_open in (True, False):
        turn = Turn(
            call_format,
            is_control_token,
            several=False,
            reasoning=Reasoning("<think>", "</think>", is_open=is_open),
            control_texts=control_texts,
        )
        begin = "" if is_open else "\n<think>"
        for reasoning in ("", "Hm.", f"With {trigger} I could. {trigger}", f"{invalid} is wrong"):
            assert turn.matches(f"{begin}{reasoning}")
            assert turn.matches(f"{begin}{reasoning}</think>Yes. {valid} Done.")
            assert not turn.matches(f"{begin}{reasoning}</think>{invalid}")
            assert not turn.matches(f"{begin}{reasoning}</think>{valid}{valid}")
        for text in ("", "Hello.", " \n<th", "a < b, [c]", valid):
            assert turn.matches(text)
        assert turn.matches(invalid) is is_open


@every_trigger
@every_format
def test_reasoning_that_a_call_would_end_has_no_triggers(
    call_format: ToolCallFormat, is_control_token: bool
) -> None:
    """So that no call escapes its schema."""
    trigger = TRIGGERS[call_format]
    reasoning = Reasoning("<think>", "</think>", is_open=True, excludes=(trigger,))
    turn = Turn(call_format, is_control_token, several=False, reasoning=reasoning)

    assert turn.matches("Hm.</think>Yes.")
    assert not turn.matches(f"Hm. {trigger}")
