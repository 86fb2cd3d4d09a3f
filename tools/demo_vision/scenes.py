"""What the synthetic pictures show: scenes of four kinds, drawn from a seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from tools.demo_model.split import is_held_out

COLORS = {
    "red": (215, 40, 40),
    "green": (40, 160, 60),
    "blue": (50, 80, 220),
    "yellow": (240, 215, 50),
    "orange": (245, 140, 30),
    "purple": (140, 60, 180),
    "black": (25, 25, 25),
    "white": (250, 250, 250),
}
"""Colours of things, in RGB; pictures vary them by up to `pictures.COLOR_NOISE`."""
SHAPES = ("circle", "square", "triangle", "star", "heart", "ring")
DIGITS = "0123456789"
SIDES = ("left", "right")
NUMBERS = ("no", "one", "two", "three", "four", "five", "six")
MAX_COUNT = 6
KINDS = {"one": 0.28, "several": 0.26, "digit": 0.2, "two": 0.26}
"""Probability of each kind of scene."""


@dataclass(frozen=True, slots=True)
class Thing:
    """A shape or a digit; centre and radius are fractions of the picture's width."""

    shape: str
    color: str
    x: float
    y: float
    radius: float

    @property
    def side(self) -> str:
        """The half of the picture that its centre is in."""
        return SIDES[self.x > 0.5]


@dataclass(frozen=True, slots=True)
class Scene:
    """Things on a plain background.

    `one` shows a shape on one side, `several` 2 to 6 equal shapes, `digit` a digit near the middle,
    `two` a shape on the left and another of another colour on the right.
    """

    kind: str
    background: str
    things: tuple[Thing, ...]

    @property
    def key(self) -> str:
        """What is shown, without exact places; it decides whether the scene is held out."""
        shown = [f"{thing.color} {thing.shape}" for thing in self.things]
        side = self.things[0].side if self.kind == "one" else ""
        return "|".join((self.kind, self.background, side, *shown))


def scene(rng: Random, kinds: Mapping[str, float] = KINDS, *, held_out: bool = False) -> Scene:
    """Draw a scene of one of the kinds, held out from training or not."""
    while True:
        drawn = _MAKERS[rng.choices(list(kinds), list(kinds.values()))[0]](rng)
        if is_held_out(drawn.key) == held_out:
            return drawn


def _one(rng: Random) -> Scene:
    background, color = rng.sample(list(COLORS), 2)
    side = rng.randrange(2)
    radius = rng.uniform(0.12, 0.24)
    x = rng.uniform(radius + 0.01, 0.44) if side == 0 else rng.uniform(0.56, 0.99 - radius)
    y = rng.uniform(radius + 0.01, 0.99 - radius)
    return Scene("one", background, (Thing(rng.choice(SHAPES), color, x, y, radius),))


def _two(rng: Random) -> Scene:
    background, *colors = rng.sample(list(COLORS), 3)
    things = []
    for middle, color, shape in zip((0.25, 0.75), colors, rng.sample(SHAPES, 2), strict=True):
        radius = rng.uniform(0.13, 0.22)
        x = middle + rng.uniform(-0.24 + radius, 0.24 - radius)
        things.append(Thing(shape, color, x, rng.uniform(radius + 0.01, 0.99 - radius), radius))
    return Scene("two", background, tuple(things))


def _digit(rng: Random) -> Scene:
    background, color = rng.sample(list(COLORS), 2)
    radius = rng.uniform(0.22, 0.36)
    x, y = (rng.uniform(0.38, 0.62) for _ in range(2))
    return Scene("digit", background, (Thing(rng.choice(DIGITS), color, x, y, radius),))


def _several(rng: Random) -> Scene:
    background, color = rng.sample(list(COLORS), 2)
    shape, count = rng.choice(SHAPES), rng.randint(2, MAX_COUNT)
    things: list[Thing] = []
    while len(things) < count:
        radius = rng.uniform(0.09, 0.13)
        x, y = (rng.uniform(radius + 0.01, 0.99 - radius) for _ in range(2))
        gap = [(x - t.x) ** 2 + (y - t.y) ** 2 > (radius + t.radius + 0.03) ** 2 for t in things]
        if all(gap):
            things.append(Thing(shape, color, x, y, radius))
    return Scene("several", background, tuple(things))


_MAKERS = {"one": _one, "several": _several, "digit": _digit, "two": _two}
