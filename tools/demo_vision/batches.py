"""Batches of pictures with what a step needs to know of them: captions, labels, conversations.

Every batch depends only on the seed and its number, so that an interrupted run continues equally.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tools.demo_vision.pictures import SIZE, draw
from tools.demo_vision.questions import ask, caption, facts
from tools.demo_vision.scenes import COLORS, DIGITS, KINDS, SHAPES, Scene, scene
from tools.demo_vision.text_model import TextModel

PROMPT_TOKENS = 12
"""First vectors of a picture, which imitate nothing: they tell the model how to answer."""
ROW_LENGTH = 128
"""Tokens of a conversation, those of the picture included."""
FORMS = {"{i}\n{q}": 0.35, "{i}{q}": 0.25, "{q}\n{i}": 0.2, "{q}{i}": 0.2}
"""Where the picture is in the first message, with probabilities."""
SYSTEM = ("You are a helpful assistant.", "You are the Corral demo assistant.", "Answer briefly.")
SHARE_WITH_SYSTEM = 0.2
SHARE_WITH_SECOND_TURN = 0.5
_KINDS = (*SHAPES, *DIGITS)
NUM_KINDS = len(_KINDS)
NUM_COLORS = len(COLORS)
_IMAGE = "<|endoftext|>"


@dataclass(frozen=True)
class Batch:
    """Pictures and what the losses compare; -100 stands for no label.

    `pixels` [pictures, SIZE, SIZE, 3]; `captions` token ids [pictures, patches], and
    `values`, whether they belong to a value, not to the words around it; `kinds`, `colors`
    and `centers` per patch: which thing covers it, its colour, whether its centre is there;
    `tokens` [pictures, ROW_LENGTH] with the picture's vectors from `starts` on, and `targets`:
    the answers' token ids where they stand, -100 elsewhere.
    """

    pixels: Tensor
    captions: Tensor
    values: Tensor
    kinds: Tensor
    colors: Tensor
    centers: Tensor
    tokens: Tensor
    targets: Tensor
    starts: Tensor


def batch(
    model: TextModel,
    size: int,
    patch: int,
    seed: tuple[int, int],
    mix: Mapping[str, float] = KINDS,
) -> Batch:
    """Draw a batch of a mix of kinds; `patch` is the width of a patch in pixels."""
    rng = Random(f"{seed[0]} {seed[1]}")
    scenes = [scene(rng, mix) for _ in range(size)]
    pixels = np.stack([draw(each, rng) for each in scenes])
    written = [_caption(model, each, (SIZE // patch) ** 2) for each in scenes]
    labels = [_labels(each, SIZE // patch) for each in scenes]
    rows = [_conversation(model, each, (SIZE // patch) ** 2, rng) for each in scenes]
    captions, values = zip(*written, strict=True)
    kinds, colors, centers = (np.stack(each) for each in zip(*labels, strict=True))
    tokens, targets, starts = zip(*rows, strict=True)
    return Batch(
        pixels=torch.from_numpy(pixels),
        captions=torch.tensor(captions),
        values=torch.tensor(values),
        kinds=torch.from_numpy(kinds),
        colors=torch.from_numpy(colors),
        centers=torch.from_numpy(centers),
        tokens=torch.tensor(tokens),
        targets=torch.tensor(targets),
        starts=torch.tensor(starts),
    )


def caption_tokens(model: TextModel) -> list[int]:
    """All tokens that captions consist of, in ascending order."""
    rng = Random("captions")
    texts = ["\n", *(caption(scene(rng)) for _ in range(4000))]
    return sorted({token for text in texts for token in model.encode(text)})


def _caption(model: TextModel, shown: Scene, patches: int) -> tuple[list[int], list[bool]]:
    """The caption's tokens after the free ones, filled up with line feeds; which are values."""
    ids, values = [-100] * PROMPT_TOKENS, [False] * PROMPT_TOKENS
    for index, (name, value) in enumerate(facts(shown)):
        space = " " if index else ""
        for text, is_value in ((f"{space}The {name} is", False), (f" {value}", True), (".", False)):
            new = model.encode(text)
            ids += new
            values += [is_value] * len(new)
    (filling,) = model.encode("\n")
    left = patches - len(ids)
    return ids + [filling] * left, values + [False] * left


def _labels(shown: Scene, side: int) -> tuple[NDArray[np.int64], ...]:
    """Labels of the patches, row by row."""
    kinds = np.full((side, side), NUM_KINDS)
    colors = np.full((side, side), -100)
    centers = np.zeros((side, side), np.int64)
    middles = (np.arange(side) + 0.5) / side
    for thing in shown.things:
        distance = np.hypot(middles[None, :] - thing.x, middles[:, None] - thing.y)
        column, row = (min(side - 1, int(each * side)) for each in (thing.x, thing.y))
        covered = distance < thing.radius
        covered[row, column] = True
        kinds[covered] = _KINDS.index(thing.shape)
        colors[covered] = list(COLORS).index(thing.color)
        centers[row, column] = 1
    return kinds.ravel(), colors.ravel(), centers.ravel()


def _conversation(
    model: TextModel, shown: Scene, patches: int, rng: Random
) -> tuple[list[int], list[int], int]:
    """Token ids of a conversation about the picture, its targets, and where the picture is."""
    first = ask(shown, rng)
    head = f"<|im_start|>system\n{rng.choice(SYSTEM)}<|im_end|>\n"
    form = rng.choices(list(FORMS), list(FORMS.values()))[0]
    before, after = form.replace("{q}", first.text).split("{i}")
    head = head if rng.random() < SHARE_WITH_SYSTEM else ""
    tokens = model.encode(f"{head}<|im_start|>user\n{before}")
    start = len(tokens)
    tokens += model.encode(_IMAGE) * patches
    targets = [-100] * len(tokens)
    turns = [(after, first.answer)]
    if rng.random() < SHARE_WITH_SECOND_TURN:
        second = ask(shown, rng)
        turns.append((f"\n<|im_start|>user\n{second.text}", second.answer))
    for asked, answer in turns:
        new = model.encode(f"{asked}<|im_end|>\n<|im_start|>assistant\n")
        said = model.encode(f"{answer}<|im_end|>")
        if len(tokens) + len(new) + len(said) > ROW_LENGTH:
            break
        tokens += new + said
        targets += [-100] * len(new) + said
    padding = ROW_LENGTH - len(tokens)
    return tokens + model.encode(_IMAGE) * padding, targets + [-100] * padding, start
