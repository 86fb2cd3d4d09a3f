"""Turns in channels that end at any place."""

import pytest

from inference_svc.chat.parsers.offered_tools import OfferedTools
from inference_svc.chat.parsers.parser import TurnParser
from tests.support import turns
from tests.support.golden_turns import GOLDEN

FORMAT = GOLDEN["harmony"][0].turn_format
THOUGHT = "<|channel|>analysis<|message|>Hm.<|end|>"
ANSWER = f"{THOUGHT}<|start|>assistant<|channel|>final<|message|>Yes."
CALL = f"{THOUGHT}<|start|>assistant to=functions.get_time<|channel|>commentary json<|message|>{{}}"


@pytest.mark.parametrize("tools", [turns.TOOLS, turns.NO_TOOLS], ids=["tools", "no tools"])
@pytest.mark.parametrize("text", [ANSWER, CALL], ids=["answer", "call"])
def test_the_head_of_a_message_is_no_content_at_the_limit(text: str, tools: OfferedTools) -> None:
    """Wherever the limit is, and whether or not there are tools."""
    whole = turns.Golden("", FORMAT, text, turns.Parsed(), tools).parse([text])
    for size in range(len(text)):
        parser = TurnParser(FORMAT, tools=tools)
        parser.feed(text[:size])
        parser.finish("")
        delta = turns.pop_joined(parser)

        assert whole.content.startswith(delta.content), text[:size]
        assert whole.reasoning.startswith(delta.reasoning), text[:size]


@pytest.mark.parametrize("text", [f"{ANSWER}<|end|>", f"{ANSWER}<|return|>", f"{CALL}<|call|>"])
def test_a_turn_that_ends_behind_a_message_is_whole(text: str) -> None:
    """The marker that ended the message begins no call."""
    parser = TurnParser(FORMAT, tools=turns.TOOLS)
    parser.feed(text)
    parser.finish()

    assert not parser.ends_in_call
