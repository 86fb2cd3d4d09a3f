"""Questions about a scene, in the wordings of the training, with their answers."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from tools.demo_vision.scenes import NUMBERS, SIDES, Scene


@dataclass(frozen=True, slots=True)
class Question:
    """A question about a picture; the answer is right only if it is equal."""

    skill: str
    text: str
    answer: str


WORDINGS = {
    "color": (
        "What color is it?",
        "What is the color?",
        "Which color is it?",
        "What color is the {s}?",
    ),
    "background": ("What color is the background?", "What is the color of the background?"),
    "shape": ("What shape is it?", "What is the shape?", "Which shape is it?"),
    "side": ("Is it on the left or on the right?", "Which side is it on?", "On which side is it?"),
    "count": ("How many are there?", "How many {s}s are there?", "How many {s}s do you see?"),
    "digit": (
        "What digit is it?",
        "Which digit is it?",
        "What is the digit?",
        "What digit is this?",
    ),
    "side_shape": ("Which shape is on the {side}?", "What shape is on the {side}?"),
    "side_color": ("What color is on the {side}?", "Which color is on the {side}?"),
    "look": (
        "What is in this picture?",
        "What is in this image?",
        "What do you see?",
        "Describe the picture.",
    ),
}
"""Wordings of each skill; `{s}` is the shape of the first thing."""
SKILLS = {
    "one": ("color", "shape", "side", "background", "look"),
    "several": ("count", "count", "count", "color", "shape", "background", "look"),
    "digit": ("digit", "digit", "digit", "color", "background", "look"),
    "two": ("side_shape", "side_shape", "side_color", "side_color", "background", "look"),
}
"""Skills that each kind of scene asks for, as often as they stand here."""


def ask(scene: Scene, rng: Random, skill: str | None = None) -> Question:
    """Draw a question about the scene."""
    skill = skill or rng.choice(SKILLS[scene.kind])
    side = rng.randrange(2) if scene.kind == "two" else 0
    shape = "digit" if scene.kind == "digit" else scene.things[0].shape
    text = rng.choice(WORDINGS[skill]).format(s=shape, side=SIDES[side])
    return Question(skill, text, _answer(scene, skill, side))


def _answer(scene: Scene, skill: str, side: int) -> str:
    thing = scene.things[side]
    match skill:
        case "color" | "side_color":
            return thing.color
        case "background":
            return scene.background
        case "shape" | "side_shape" | "digit":
            return thing.shape
        case "side":
            return thing.side
        case "count":
            return str(len(scene.things))
    return look(scene)


def look(scene: Scene) -> str:
    """What the picture shows, in one sentence."""
    first, last = scene.things[0], scene.things[-1]
    match scene.kind:
        case "several":
            return f"I see {NUMBERS[len(scene.things)]} {first.color} {first.shape}s."
        case "digit":
            return f"I see the digit {first.shape} in {first.color}."
        case "two":
            return f"I see a {first.color} {first.shape} and a {last.color} {last.shape}."
    return f"I see a {first.color} {first.shape}."


def facts(scene: Scene) -> list[tuple[str, str]]:
    """What the picture shows, as names and values."""
    first, last = scene.things[0], scene.things[-1]
    background = ("background", scene.background)
    match scene.kind:
        case "two":
            return [
                background,
                ("left color", first.color),
                ("left shape", first.shape),
                ("right color", last.color),
                ("right shape", last.shape),
            ]
        case "digit":
            return [background, ("color", first.color), ("digit", first.shape)]
        case "several":
            number = str(len(scene.things))
            return [background, ("color", first.color), ("shape", first.shape), ("number", number)]
    return [background, ("color", first.color), ("shape", first.shape), ("side", first.side)]


def caption(scene: Scene) -> str:
    """The facts as the text that the tower first learns to imitate, in at most 52 tokens."""
    return " ".join(f"The {name} is {value}." for name, value in facts(scene))
