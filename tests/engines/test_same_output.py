"""Greedy output of the same weights is the same by all engines, up to near ties."""

import math
from itertools import zip_longest
from typing import Any

import openai
import pytest

from tests.engines.conftest import ENGINE, LOCAL
from tools.demo_model.examination import EXAMINATION, items

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

NEAR_TIE = 0.1
"""Log probabilities this close may be ordered in either way: the weights are quantized in one
engine and exact in another, and sums are rounded in another order."""
MAX_CHARACTERS = 1500
"""Of the messages, for which the engines have room."""
ENDED = ("", math.inf)
"""Instead of a token, where the other answer is longer."""
ITEMS = 2
"""Questions of each skill."""


def _answer(client: openai.OpenAI, model: str, messages: Any) -> list[tuple[str, float]]:
    """The tokens of the answer, each with how much more probable it was than the next best one."""
    found = client.chat.completions.create(
        model=model,
        messages=messages,
        temperature=0,
        max_tokens=40,
        logprobs=True,
        top_logprobs=2,
    )
    logprobs = found.choices[0].logprobs
    content = (logprobs.content if logprobs is not None else None) or []
    return [
        (each.token, each.top_logprobs[0].logprob - each.top_logprobs[1].logprob)
        for each in content
    ]


def test_greedy_output_differs_only_at_near_ties(client: openai.OpenAI) -> None:
    asked = [
        item
        for skill in EXAMINATION
        for item in items(skill, ITEMS)
        if not item.tools and len(str(item.messages)) < MAX_CHARACTERS
    ]
    differing = []
    for item in asked:
        engine, local = (_answer(client, model, item.messages) for model in (ENGINE, LOCAL))
        pairs = zip_longest(engine, local, fillvalue=ENDED)
        other = next((pair for pair in pairs if pair[0][0] != pair[1][0]), None)
        if other is not None and min(other[0][1], other[1][1]) > NEAR_TIE:
            differing.append((item.messages, other))

    assert len(asked) > 10
    assert differing == []
