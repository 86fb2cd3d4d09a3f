"""The examination: held-out pictures of every kind, with every skill of that kind."""

from collections.abc import Iterator
from random import Random

from tools.demo_vision.pictures import Picture, draw
from tools.demo_vision.questions import SKILLS, Question, ask
from tools.demo_vision.scenes import Scene, scene

SEED = 20261125
Marks = dict[str, str]
"""For each skill, as `kind/skill`, a string of 1 (right) and 0 (wrong)."""


def items(count: int) -> Iterator[tuple[Scene, Picture, Question]]:
    """For each kind of scene and each of its skills, held-out pictures with one question each."""
    for kind, skills in SKILLS.items():
        for skill in dict.fromkeys(skills):
            rng = Random(f"{SEED} {kind} {skill}")
            for _ in range(count):
                shown = scene(rng, {kind: 1.0}, held_out=True)
                yield shown, draw(shown, rng), ask(shown, rng, skill)
