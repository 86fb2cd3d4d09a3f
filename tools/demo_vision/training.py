"""Trains the projector in front of the frozen demo model, in the stages of `STAGES`.

1. The tower alone: each patch's state halfway through it must name what the patch shows, and the
   vectors must imitate the embedded tokens of a caption.
2. The text model answers questions about the picture, and the gradient passes through it to the
   vectors. Its own weights stay as they are.
3. All losses together, those of the tower with more weight again.
4. The same with more questions, while the learning rate falls to zero.
5. Again, mostly with counts.

A run depends only on its settings, and an interrupted run continues from its last checkpoint.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tools.demo_model.network import OUTPUT_NORM, Network, Shape, Weights, rms_norm
from tools.demo_model.optimizer import Optimizer
from tools.demo_vision import text_model
from tools.demo_vision.batches import (
    NUM_COLORS,
    NUM_KINDS,
    PROMPT_TOKENS,
    Batch,
    batch,
    caption_tokens,
)
from tools.demo_vision.network import Tower, TowerShape, new_weights
from tools.demo_vision.scenes import KINDS

SECONDS_PER_LINE = 10.0
SECONDS_PER_CHECKPOINT = 120.0
CAPTION_SHARPNESS = 2.0
"""Factor of the products of vectors and embeddings, which are the caption's logits."""
WARM_UP_STEPS = 50
PATCHES = {"kinds": 1.0, "colors": 1.0, "centers": 1.0}
"""Weights of the losses of patches."""
LAST = PATCHES | {"answers": 2.0, "values": 1.0, "caption": 0.1, "distance": 0.03}
COUNTS = {"one": 0.15, "several": 0.5, "digit": 0.15, "two": 0.2}
"""Kinds of scenes of the last stage: counts take longest to learn."""
BOTH = PATCHES | {"answers": 0.5, "values": 1.0, "caption": 0.3, "distance": 0.1}
"""Weights of the losses of patches, captions and answers."""
LABELS = {"kinds": NUM_KINDS + 1, "colors": NUM_COLORS, "centers": 2}
"""Number of classes of each label of a patch."""


@dataclass(frozen=True)
class Stage:
    """A part of the run; `weights` are those of its losses.

    A step draws `pictures`, and the text model is asked about the first `asked` of them.
    """

    steps: int
    pictures: int
    asked: int
    weights: dict[str, float]
    kinds: dict[str, float] = dataclasses.field(default_factory=lambda: KINDS)
    """Probability of each kind of scene."""
    rate: float = 1.0
    """Factor of the learning rates."""
    decays: bool = False
    """Whether the learning rates fall linearly to zero."""

    def factor(self, begun: int) -> float:
        """Factor of the learning rates after `begun` steps of the stage."""
        left = (self.steps - begun) / self.steps if self.decays else 1.0
        return self.rate * min((begun + 1) / WARM_UP_STEPS, left)


STAGES = (
    Stage(1500, 64, 0, PATCHES | {"caption": 1.0, "distance": 0.1}),
    Stage(
        844,
        32,
        32,
        {"answers": 1.0, "values": 0.2, "caption": 0.1, "distance": 0.01}
        | {name: 0.1 for name in PATCHES},
    ),
    Stage(687, 64, 16, BOTH),
    Stage(1000, 64, 32, LAST, decays=True),
    Stage(900, 64, 32, LAST, COUNTS, rate=0.5, decays=True),
)


@dataclass(frozen=True)
class Settings:
    """Hyperparameters and paths of a run."""

    model: Path
    out: Path
    log: Path
    shape: TowerShape = dataclasses.field(default_factory=TowerShape)
    stages: tuple[Stage, ...] = STAGES
    muon_rate: float = 0.01
    adam_rate: float = 0.002
    decay: float = 0.1
    seed: int = 1
    compiled: bool = True

    def identity(self) -> dict[str, Any]:
        """Values that a checkpoint must match for this run to continue from it."""
        values = dataclasses.asdict(self)
        for name in ("model", "out", "log", "compiled"):
            del values[name]
        return values | {"text": hashlib.sha256(self.model.read_bytes()).hexdigest()}


class Run:
    """A training run."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.identity = settings, settings.identity()
        self.text = text_model.load(settings.model)
        self.tower = Tower(settings.shape, torch.bfloat16, compiled=settings.compiled)
        self.network = Network(Shape(), "cpu", torch.bfloat16, compiled=settings.compiled)
        self.words = torch.tensor(caption_tokens(self.text))
        self.trained = new_weights(settings.shape, settings.seed) | _new_heads(settings)
        self.optimizer = self._new_optimizer()
        self.progress = Progress(settings.log)

    def run(self) -> None:
        """Train from the last checkpoint, or from the start, and write the result.

        Returns at once if the result exists.
        """
        settings = self.settings
        if self._load(settings.out) is not None:
            return
        steps = sum(stage.steps for stage in settings.stages)
        done = self._resume()
        count = sum(each.numel() for each in self.trained.values())
        self.progress.log_line(f"{count:,} parameters, {steps} steps, from step {done}")
        saved = time.monotonic()
        for number in range(done, steps):
            stage, begun = self._stage(number)
            if begun == 0:
                self.optimizer = self._new_optimizer()
            losses = self._step(number, stage, begun)
            self.progress.step(number + 1, steps, losses)
            if time.monotonic() - saved > SECONDS_PER_CHECKPOINT:
                self._save(self._partial, number + 1)
                saved = time.monotonic()
        self._save(settings.out, steps)
        self._partial.unlink(missing_ok=True)
        self.progress.log_line(f"wrote {settings.out.name}")

    def _stage(self, number: int) -> tuple[Stage, int]:
        """The stage of a step, and the number of steps of that stage before it."""
        for stage in self.settings.stages:
            if number < stage.steps:
                return stage, number
            number -= stage.steps
        raise ValueError("no stage has this step")

    def _step(self, number: int, stage: Stage, begun: int) -> dict[str, float]:
        settings = self.settings
        seed = (settings.seed, number)
        drawn = batch(self.text, stage.pictures, settings.shape.patch, seed, stage.kinds)
        for each in self.trained.values():
            each.requires_grad_()
        vectors, halfway = self.tower.vectors(_tower_weights(self.trained), drawn.pixels)
        losses = self._tower_losses(vectors, halfway, drawn)
        if stage.asked:
            losses["answers"] = self._answer_loss(vectors, drawn, stage.asked)
        total = sum(weight * losses[name] for name, weight in stage.weights.items())
        parts = torch.autograd.grad(total, list(self.trained.values()))
        gradients = dict(zip(self.trained, parts, strict=True))
        self.optimizer.step(_clipped(gradients), stage.factor(begun))
        return {name: float(loss.detach()) for name, loss in losses.items()}

    def _tower_losses(self, vectors: Tensor, halfway: Tensor, drawn: Batch) -> dict[str, Tensor]:
        losses = {}
        for name in LABELS:
            logits = halfway @ self.trained[f"head.{name}"]
            labels = getattr(drawn, name)
            losses[name] = functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        written = vectors[:, PROMPT_TOKENS:].flatten(0, 1)
        wanted = drawn.captions[:, PROMPT_TOKENS:].flatten()
        choice = self.text.embedding[self.words].bfloat16()
        logits = CAPTION_SHARPNESS * (written.bfloat16() @ choice.T).float()
        right = torch.searchsorted(self.words, wanted)
        each = functional.cross_entropy(logits, right, reduction="none")
        losses["caption"] = each.mean()
        losses["values"] = each[drawn.values[:, PROMPT_TOKENS:].flatten()].mean()
        distance = (written - self.text.embedding[wanted]).square().sum(-1).mean()
        losses["distance"] = distance
        return losses

    def _answer_loss(self, vectors: Tensor, drawn: Batch, asked: int) -> Tensor:
        """Loss of the answers about the first pictures, in front of the text model."""
        weights = self.text.weights
        vectors, tokens = vectors[:asked], drawn.tokens[:asked]
        length = tokens.shape[1]
        places = drawn.starts[:asked, None] + torch.arange(vectors.shape[1])
        x = functional.embedding(tokens, self.text.embedding)
        x = x.scatter(1, places[..., None].expand_as(vectors), vectors)
        hidden = self.network.hidden_of(weights, x)[:, : length - 1]
        targets = drawn.targets[:asked, 1:]
        chosen = targets >= 0
        out = rms_norm(hidden[chosen], weights[OUTPUT_NORM])
        logits = (out.bfloat16() @ self.text.embedding.bfloat16().T).float()
        return functional.cross_entropy(logits, targets[chosen])

    def _new_optimizer(self) -> Optimizer:
        settings = self.settings
        return Optimizer(self.trained, settings.muon_rate, settings.adam_rate, settings.decay)

    @property
    def _partial(self) -> Path:
        return self.settings.out.with_name(f"{self.settings.out.name}.partial")

    def _resume(self) -> int:
        """Restore the checkpoint of an interrupted run. Returns the number of completed steps."""
        saved = self._load(self._partial)
        if saved is None:
            return 0
        with torch.no_grad():
            for name, each in self.trained.items():
                each.copy_(saved["weights"][name])
        self.optimizer.restore(saved["optimizer"])
        return int(saved["step"])

    def _load(self, path: Path) -> dict[str, Any] | None:
        """A checkpoint of this run; None if there is none, or one with other settings or of another
        text model."""
        if not path.exists():
            return None
        saved: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        if saved["settings"] != self.identity:
            self.progress.log_line(f"{path.name} is from another run; starting anew")
            return None
        return saved

    def _save(self, path: Path, step: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        content = {
            "settings": self.identity,
            "step": step,
            "weights": {name: each.detach() for name, each in self.trained.items()},
            "optimizer": self.optimizer.state(),
        }
        temporary = path.with_name(f"{path.name}.{os.getpid()}")
        torch.save(content, temporary)
        temporary.replace(path)


def _new_heads(settings: Settings) -> Weights:
    """Linear classifiers of patches; the exported file has none of them."""
    width = settings.shape.width
    return {f"head.{name}": torch.zeros(width, classes) for name, classes in LABELS.items()}


def _tower_weights(trained: Weights) -> Weights:
    return {name: each for name, each in trained.items() if not name.startswith("head.")}


def _clipped(gradients: Weights) -> Weights:
    """Gradients with a common norm of at most 1."""
    norm = torch.stack([each.norm() for each in gradients.values()]).norm()
    factor = 1 / norm.clamp(min=1)
    return {name: factor * each for name, each in gradients.items()}


class Progress:
    """Report mean losses every 10 s on stdout and in the log."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.started = self.last = time.monotonic()
        self.first = True
        self.losses: list[dict[str, float]] = []

    def step(self, number: int, total: int, losses: dict[str, float]) -> None:
        """Count a step; log a line every 10 s and after the first and the last step."""
        self.losses.append(losses)
        now = time.monotonic()
        first = self.first
        self.first = False
        if not first and now - self.last < SECONDS_PER_LINE and number < total:
            return
        last = self.losses[-1]
        recent = [each for each in self.losses if each.keys() == last.keys()]
        shown = "  ".join(
            f"{name} {sum(each[name] for each in recent) / len(recent):.4f}" for name in last
        )
        pace = (now - self.last) / len(self.losses)
        self.log_line(
            f"step {number}/{total}  {shown}  {pace:.2f} s/step  elapsed {now - self.started:.0f} s"
        )
        self.last, self.losses = now, []

    def log_line(self, text: str) -> None:
        """Write one line to stdout and to the log."""
        print(text, flush=True)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("a") as log:
            log.write(text + "\n")
