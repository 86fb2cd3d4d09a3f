"""Grammars of turns that are free until the model begins a call."""

import pytest
from llguidance import LLMatcher, LLTokenizer

from inference_svc.chat.parsers import ToolCallFormat, delimited
from inference_svc.rpc.output_constraints import OTHER_TRIGGERS, TOOL_CALL_SYNTAXES, TRIGGERS
from inference_svc.structured_output.compile_job import byte_tokenizer
from inference_svc.structured_output.grammar import whole_grammar
from inference_svc.structured_output.spec import (
    NUMBER,
    CallableTool,
    OutputSpec,
    Reasoning,
    ToolCallSpec,
    ToolCallSyntax,
)

SIZE, END = 512, 511
TOOL = CallableTool(
    "f", '{"properties": {"a": {"type": "integer"}}, "required": ["a"]}', True, "tools[0]"
)
OTHER = CallableTool("g", "", True, "tools[1]")
NOTATIONS = [pytest.param(notation, id=notation.value) for notation in TRIGGERS]


def written(way: ToolCallSyntax, arguments: str, name: str = "f") -> str:
    """One call and what stands around it."""
    call = f"{way.before}{way.head}{name}{way.middle}{arguments}{way.tail}{way.after}"
    return call.replace(NUMBER, "0")


class Turn:
    """A model of bytes and control tokens, and the grammar of its turn."""

    def __init__(
        self,
        notation: ToolCallFormat,
        *,
        with_control: bool = False,
        several: bool = True,
        thought: Reasoning | None = None,
        control_texts: tuple[str, ...] = ("<think>",),
    ) -> None:
        texts = (*control_texts, *((TRIGGERS[notation],) if with_control else ()))
        control = {"<end>": END, **{text: 300 + i for i, text in enumerate(texts)}}
        self._control = control
        self._tokenizer: LLTokenizer = byte_tokenizer(SIZE, control, [END])
        calls = ToolCallSpec(
            TOOL_CALL_SYNTAXES[notation],
            (TOOL, OTHER),
            False,
            several,
            trigger=TRIGGERS[notation],
            barred=OTHER_TRIGGERS.get(notation, ()),
        )
        self._grammar = whole_grammar(OutputSpec(None, calls, thought), control)

    def takes(self, text: str) -> bool:
        """Whether the turn may be this text, and may end behind it."""
        matcher = LLMatcher(self._tokenizer, self._grammar)
        assert not matcher.is_error(), matcher.get_error()
        tokens = self._tokens(text)
        return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()

    def _tokens(self, text: str) -> list[int]:
        for marker, token in self._control.items():
            before, found, behind = text.partition(marker)
            if found:
                return [*self._tokens(before), token, *self._tokens(behind)]
        return list(self._tokenizer.tokenize_bytes(text.encode()))


@pytest.mark.parametrize("with_control", [False, True])
@pytest.mark.parametrize("notation", NOTATIONS)
def test_text_is_free_and_calls_are_held(notation: ToolCallFormat, with_control: bool) -> None:
    """Text around calls, thoughts, markers that are only begun; arguments by their schemas."""
    turn, trigger = Turn(notation, with_control=with_control), TRIGGERS[notation]
    for way in TOOL_CALL_SYNTAXES[notation]:
        good = written(way, '{"a": 1}')
        assert turn.takes(good)
        assert turn.takes(f"<think>Hm.{good}")
        assert turn.takes(f"Let me see. {good}\nDone.")
        assert turn.takes(f"{good} and {written(way, '{}', 'g')}")
        for bad in (
            written(way, '{"a": "x"}'),
            written(way, "{}"),
            written(way, "{}", "h"),
            f"{good}{trigger}x",
        ):
            assert not turn.takes(f"So: {bad}")
    for text in ("", "Hello.", "{}", f"a < b, [c] {trigger[:-1]}" if not with_control else "<t"):
        assert turn.takes(text)


@pytest.mark.parametrize("with_control", [False, True])
@pytest.mark.parametrize("notation", NOTATIONS)
def test_one_call_is_one(notation: ToolCallFormat, with_control: bool) -> None:
    """Where several are not wanted, the text behind the first begins no other."""
    turn = Turn(notation, with_control=with_control, several=False)
    for way in TOOL_CALL_SYNTAXES[notation]:
        good = written(way, '{"a": 1}')
        assert turn.takes(f"One. {good} Done.")
        assert not turn.takes(f"{good}{good}")


@pytest.mark.parametrize("with_control", [False, True])
@pytest.mark.parametrize("notation", list(OTHER_TRIGGERS))
def test_no_call_begins_otherwise(notation: ToolCallFormat, with_control: bool) -> None:
    """What readers put up with is not written, be it text or a control token: it would hold no
    schema."""
    others, way = OTHER_TRIGGERS[notation], TOOL_CALL_SYNTAXES[notation][0]
    for in_control in (False, True):
        turn = Turn(notation, with_control=with_control, control_texts=others if in_control else ())
        for other in others:
            assert not turn.takes(f"So: {other}")
            assert not turn.takes(f"{other}{written(way, '{}')}")
        assert turn.takes("So: " + written(way, '{"a": 1}'))


def test_all_that_begins_a_call_is_held_or_barred() -> None:
    """Of every family that writes JSON behind a marker."""
    assert set(TRIGGERS) == set(TOOL_CALL_SYNTAXES) - {ToolCallFormat.LLAMA}
    for notation, marks in (
        (ToolCallFormat.DEEPSEEK, delimited.DEEPSEEK),
        (ToolCallFormat.KIMI, delimited.KIMI),
    ):
        held = {TRIGGERS[notation], *OTHER_TRIGGERS[notation]}
        assert held == {*marks.begins, marks.call}


@pytest.mark.parametrize("in_control", [(), ("</think>",), ("<think>", "</think>")])
@pytest.mark.parametrize("with_control", [False, True])
@pytest.mark.parametrize("notation", NOTATIONS)
def test_a_thought_may_speak_of_calls(
    notation: ToolCallFormat, with_control: bool, in_control: tuple[str, ...]
) -> None:
    """It is never read for calls, so its markers begin none; behind it they do."""
    trigger = TRIGGERS[notation]
    good, bad = (
        written(TOOL_CALL_SYNTAXES[notation][0], each) for each in ('{"a": 1}', '{"a": "x"}')
    )
    for is_open in (True, False):
        turn = Turn(
            notation,
            with_control=with_control,
            several=False,
            thought=Reasoning("<think>", "</think>", is_open=is_open),
            control_texts=in_control,
        )
        begun = "" if is_open else "\n<think>"
        for musing in ("", "Hm.", f"With {trigger} I could. {trigger}", f"{bad} would not do"):
            assert turn.takes(f"{begun}{musing}")
            assert turn.takes(f"{begun}{musing}</think>Yes. {good} Done.")
            assert not turn.takes(f"{begun}{musing}</think>{bad}")
            assert not turn.takes(f"{begun}{musing}</think>{good}{good}")
        for text in ("", "Hello.", " \n<th", "a < b, [c]", good):
            assert turn.takes(text)
        assert turn.takes(bad) is is_open
