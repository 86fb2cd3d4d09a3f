"""The shipped projector and text model in llama.cpp."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from tools.demo_model.records import score
from tools.demo_vision.card import PASSED
from tools.demo_vision.evaluate import Seer
from tools.demo_vision.examination import items
from tools.demo_vision.pictures import draw_plain
from tools.demo_vision.records import PROJECTOR, TEXT_MODEL, marks
from tools.demo_vision.sample import SCENE

NUM_ITEMS = 8


@pytest.fixture(scope="module")
def seer() -> Iterator[Seer]:
    """Opened once for all questions."""
    with closing(Seer(TEXT_MODEL, PROJECTOR)) as opened:
        yield opened


def test_held_out_pictures_are_recognized(seer: Seer) -> None:
    """At least 85 % of the first pictures of the skills that the card names."""
    skills = {name for name, given in marks().items() if score(given) >= PASSED}
    asked = [
        (picture, question)
        for shown, picture, question in items(NUM_ITEMS)
        if f"{shown.kind}/{question.skill}" in skills
    ]

    right = [seer.answer(picture, question.text) == question.answer for picture, question in asked]

    assert sum(right) >= 0.85 * len(asked)


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("What color is the background?", "white"),
        ("Which shape is on the left?", "heart"),
        ("Which shape is on the right?", "ring"),
        ("What color is on the left?", "blue"),
        ("What color is on the right?", "green"),
    ],
)
@pytest.mark.parametrize("size", [64, 256])
def test_the_sample_picture_is_recognized(
    seer: Seer, question: str, answer: str, size: int
) -> None:
    """At its own size and larger, where llama.cpp scales it down."""
    assert seer.answer(draw_plain(SCENE, size), question) == answer
