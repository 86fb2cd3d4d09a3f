"""Grammars of turns that are free until the model begins a call."""

import pytest
from llguidance import LLMatcher, LLTokenizer

from inference_svc.api.call_writings import TRIGGERS, WRITINGS
from inference_svc.chat.parsers import CallNotation
from inference_svc.constraints.asked import Asked, CallableTool, Calls, CallWriting
from inference_svc.constraints.compile_job import byte_tokenizer
from inference_svc.constraints.grammars import whole_grammar

SIZE, END = 512, 511
TOOL = CallableTool(
    "f", '{"properties": {"a": {"type": "integer"}}, "required": ["a"]}', True, "tools[0]"
)
OTHER = CallableTool("g", "", True, "tools[1]")
NOTATIONS = [pytest.param(notation, id=notation.value) for notation in TRIGGERS]


def written(way: CallWriting, arguments: str, name: str = "f") -> str:
    """One call and what stands around it."""
    return f"{way.before}{way.head}{name}{way.middle}{arguments}{way.tail}{way.after}"


class Turn:
    """A model of bytes and control tokens, and the grammar of its turn."""

    def __init__(
        self, notation: CallNotation, *, with_control: bool = False, several: bool = True
    ) -> None:
        control = {"<think>": 300, "<end>": END}
        if with_control:
            control[TRIGGERS[notation]] = 301
        self._control = control
        self._tokenizer: LLTokenizer = byte_tokenizer(SIZE, control, [END])
        calls = Calls(WRITINGS[notation], (TOOL, OTHER), False, several, trigger=TRIGGERS[notation])
        self._grammar = whole_grammar(Asked(None, calls, None), control)

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
def test_text_is_free_and_calls_are_held(notation: CallNotation, with_control: bool) -> None:
    """Text around calls, thoughts, markers that are only begun; arguments by their schemas."""
    turn, trigger = Turn(notation, with_control=with_control), TRIGGERS[notation]
    for way in WRITINGS[notation]:
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
def test_one_call_is_one(notation: CallNotation, with_control: bool) -> None:
    """Where several are not wanted, the text behind the first begins no other."""
    turn = Turn(notation, with_control=with_control, several=False)
    for way in WRITINGS[notation]:
        good = written(way, '{"a": 1}')
        assert turn.takes(f"One. {good} Done.")
        assert not turn.takes(f"{good}{good}")
