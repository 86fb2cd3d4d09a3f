"""Muon for the layers' matrices, AdamW for everything else.

Muon updates a matrix in the direction of the nearest orthogonal matrix, and needs about a third
fewer tokens than AdamW on this model. The orthogonalization takes 10 % of a step, so each process
computes it for its share of the layers, and the processes exchange the results.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from tools.demo_model.network import MATRICES, Weights

MOMENTUM = 0.95
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
NEWTON_SCHULZ_STEPS = 5
WARM_UP = 0.02


def schedule(step: int, steps: int) -> float:
    """Factor of the learning rate: a short warm-up, then linear decay to zero.

    For runs this short, linear decay to zero gives a lower loss than cosine decay to a minimum.
    """
    warm_up = max(1, round(WARM_UP * steps))
    return min((step + 1) / warm_up, (steps - step) / max(1, steps - warm_up))


class Optimizer:
    """Both optimizers over one set of trained tensors; the state is equal in every process."""

    def __init__(
        self, trained: Weights, muon_rate: float, adam_rate: float, decay: float = 0.0
    ) -> None:
        self.decay = decay
        self.matrices = {name: trained[name] for name in MATRICES if name in trained}
        self.others = {name: each for name, each in trained.items() if name not in self.matrices}
        self.momenta = {name: torch.zeros_like(each) for name, each in self.matrices.items()}
        self.muon_rate = muon_rate
        self.adam_rate = adam_rate
        self.adam = torch.optim.AdamW(
            list(self.others.values()), lr=adam_rate, betas=(0.9, 0.95), weight_decay=0.0
        )

    def step(self, gradients: Weights, factor: float) -> None:
        """Update all tensors, with the learning rates multiplied by the factor."""
        with torch.no_grad():
            for name in self.matrices:
                self.momenta[name].lerp_(gradients[name], 1 - MOMENTUM)
            for name, update in self._directions(gradients).items():
                matrix = self.matrices[name]
                scale = max(1.0, matrix.shape[-2] / matrix.shape[-1]) ** 0.5
                matrix.mul_(1 - self.decay * self.muon_rate * factor)
                matrix.sub_(update.float(), alpha=self.muon_rate * factor * scale)
        for name, other in self.others.items():
            other.grad = gradients[name]
        self.adam.param_groups[0]["lr"] = self.adam_rate * factor
        self.adam.step()

    def _directions(self, gradients: Weights) -> Weights:
        """Orthogonal updates of all matrix stacks, computed by all processes together."""
        rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        if not self.matrices:
            return {}
        if next(iter(self.matrices.values())).shape[0] % world:
            rank, world = 0, 1  # uneven shares: each process computes all layers
        own = {
            name: orthogonal(gradients[name][rank::world].lerp(momentum[rank::world], MOMENTUM))
            for name, momentum in self.momenta.items()
        }
        if world == 1:
            return own
        flat = torch.cat([each.flatten() for each in own.values()])
        parts = [torch.empty_like(flat) for _ in range(world)]
        dist.all_gather(parts, flat)
        split = [part.split([each.numel() for each in own.values()]) for part in parts]
        return {
            name: torch.stack([split[r][i].view_as(each) for r in range(world)], 1).flatten(0, 1)
            for i, (name, each) in enumerate(own.items())
        }

    def state(self) -> dict[str, Any]:
        """State for `restore`."""
        return {"momenta": self.momenta, "adam": self.adam.state_dict()}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore a state returned by `state`."""
        for name, momentum in state["momenta"].items():
            self.momenta[name].copy_(momentum)
        self.adam.load_state_dict(state["adam"])


def orthogonal(stack: Tensor) -> Tensor:
    """Approximate the nearest orthogonal matrices of a stack by Newton-Schulz in bf16."""
    tall = stack.shape[-2] > stack.shape[-1]
    x = stack.mT if tall else stack
    x = (x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)).bfloat16()
    a, b, c = NEWTON_SCHULZ
    for _ in range(NEWTON_SCHULZ_STEPS):
        square = x @ x.mT
        polynomial = torch.baddbmm(square, square, square, beta=b, alpha=c)
        x = torch.baddbmm(x, polynomial, x, beta=a)
    return x.mT if tall else x
