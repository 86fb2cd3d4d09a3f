"""Checkpoint files: settings and progress of a run, and its tensors in f32."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tools.demo_model.network import Shape, Weights


@dataclass(frozen=True)
class Checkpoint:
    """Weights of a model or an adapter; `optimizer` is None for a finished run."""

    shape: Shape
    settings: dict[str, Any]
    step: int
    weights: Weights
    optimizer: dict[str, Any] | None = None

    def save(self, path: Path) -> None:
        """Write the file atomically."""
        path.parent.mkdir(parents=True, exist_ok=True)
        content = {
            "shape": dataclasses.asdict(self.shape),
            "settings": self.settings,
            "step": self.step,
            "weights": {name: each.detach().float().cpu() for name, each in self.weights.items()},
            "optimizer": self.optimizer,
        }
        temporary = path.with_name(f"{path.name}.{os.getpid()}")
        torch.save(content, temporary)
        temporary.replace(path)


def load(path: Path) -> Checkpoint:
    """Read a checkpoint onto the CPU."""
    content = torch.load(path, map_location="cpu", weights_only=True)
    return Checkpoint(
        Shape(**content["shape"]),
        content["settings"],
        content["step"],
        content["weights"],
        content["optimizer"],
    )
