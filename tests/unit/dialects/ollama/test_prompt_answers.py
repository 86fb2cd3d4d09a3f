"""Answers of /api/generate."""

from array import array
from functools import partial

from dialects.ollama.events import PromptAnswer
from tests.support.memory import peak_bytes

NUM_TOKENS = 500_000


def test_the_tokens_of_a_long_prompt_take_their_own_bytes() -> None:
    """They are kept until the answer ends, also of a prompt that is refused as too long."""
    tokens = array("i", range(NUM_TOKENS))

    assert peak_bytes(partial(PromptAnswer, "m", tokens)) < 6 * NUM_TOKENS
