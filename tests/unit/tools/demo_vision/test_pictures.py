"""Synthetic pictures and the questions about them."""

from random import Random

import numpy as np
import pytest

from tools.demo_model.split import is_held_out
from tools.demo_vision.examination import items
from tools.demo_vision.pictures import SIZE, draw
from tools.demo_vision.questions import SKILLS, ask, caption, look
from tools.demo_vision.scenes import COLORS, SIDES, Scene, Thing, scene

STAR = Thing("star", "red", 0.25, 0.5, 0.2)
RING = Thing("ring", "green", 0.75, 0.5, 0.2)
SEVEN = Thing("7", "black", 0.5, 0.5, 0.3)


def test_a_seed_gives_the_same_scenes_and_pixels() -> None:
    """The training and the examination depend on their seeds alone."""
    first, second = (
        [draw(scene(rng), rng) for _ in range(8)] for rng in (Random("same"), Random("same"))
    )

    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
    assert first[0].shape == (SIZE, SIZE, 3)


@pytest.mark.parametrize("kind", SKILLS)
def test_no_training_scene_is_held_out(kind: str) -> None:
    """The examination asks only for combinations that the training leaves out."""
    rng = Random(kind)

    trained = {scene(rng, {kind: 1.0}).key for _ in range(200)}
    examined = {scene(rng, {kind: 1.0}, held_out=True).key for _ in range(30)}

    assert not any(map(is_held_out, trained))
    assert all(map(is_held_out, examined))


@pytest.mark.parametrize("color", COLORS)
def test_things_and_backgrounds_have_their_colors(color: str) -> None:
    """The nearest colour of the middle and of a corner is the one that is asked for."""
    other = "white" if color == "black" else "black"
    thing = Thing("circle", color, 0.5, 0.5, 0.3)

    pixels = draw(Scene("one", other, (thing,)), Random(1)).astype(int)

    def nearest(pixel: np.ndarray) -> str:
        return min(COLORS, key=lambda name: float(np.abs(pixel - COLORS[name]).sum()))

    assert nearest(pixels[SIZE // 2, SIZE // 2]) == color
    assert nearest(pixels[0, 0]) == other


@pytest.mark.parametrize(
    ("shown", "skill", "answers"),
    [
        (Scene("one", "blue", (STAR,)), "color", {"red"}),
        (Scene("one", "blue", (STAR,)), "shape", {"star"}),
        (Scene("one", "blue", (STAR,)), "side", {"left"}),
        (Scene("one", "blue", (RING,)), "side", {"right"}),
        (Scene("one", "blue", (STAR,)), "background", {"blue"}),
        (Scene("several", "blue", (STAR, STAR, STAR)), "count", {"3"}),
        (Scene("digit", "blue", (SEVEN,)), "digit", {"7"}),
        (Scene("two", "blue", (STAR, RING)), "side_shape", {"left star", "right ring"}),
        (Scene("two", "blue", (STAR, RING)), "side_color", {"left red", "right green"}),
    ],
)
def test_answers_say_what_is_shown(shown: Scene, skill: str, answers: set[str]) -> None:
    """Whatever the wording; where a side is asked for, the answer is that of the side."""
    rng = Random(skill)
    given = set()
    for _ in range(30):
        question = ask(shown, rng, skill)
        sides = [side for side in SIDES if f"on the {side}?" in question.text and skill != "side"]
        given.add(" ".join([*sides, question.answer]))

    assert given == answers


@pytest.mark.parametrize(
    ("shown", "sentence"),
    [
        (Scene("one", "blue", (STAR,)), "I see a red star."),
        (Scene("several", "blue", (STAR, STAR)), "I see two red stars."),
        (Scene("digit", "blue", (SEVEN,)), "I see the digit 7 in black."),
        (Scene("two", "blue", (STAR, RING)), "I see a red star and a green ring."),
    ],
)
def test_a_look_names_everything(shown: Scene, sentence: str) -> None:
    """One sentence; the caption that the tower imitates has the background besides."""
    assert look(shown) == sentence
    assert "The background is blue." in caption(shown)


def test_the_examination_asks_for_every_skill() -> None:
    """Each kind of scene and each of its skills, as many pictures of each, all held out."""
    given = list(items(2))
    asked = [(shown.kind, question.skill) for shown, _, question in given]

    assert all(is_held_out(shown.key) for shown, _, _ in given)

    assert asked == [
        (kind, skill)
        for kind, skills in SKILLS.items()
        for skill in dict.fromkeys(skills)
        for _ in "ab"
    ]
