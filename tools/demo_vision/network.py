"""Forward pass of the tower, equal to llama.cpp's for a `clip` file with a `janus_pro` projector.

Tensors of the layers are stacked, as in the demo model, whose optimizer finds the matrices by the
same names.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from tools.demo_model.network import Weights
from tools.demo_vision.pictures import SIZE

EPSILON = 1e-6
MEAN, DEVIATION = 0.5, 0.5
"""Of the pixels' values between 0 and 1."""


@dataclass(frozen=True)
class TowerShape:
    """Sizes of the tower; a picture becomes `num_tokens` vectors of width `out`."""

    width: int = 128
    num_layers: int = 6
    num_heads: int = 4
    d_ff: int = 256
    patch: int = 8
    out: int = 256
    out_hidden: int = 256

    @property
    def num_tokens(self) -> int:
        """Number of patches of a picture, one vector each."""
        return (SIZE // self.patch) ** 2

    @property
    def patch_values(self) -> int:
        """Number of colour values in a patch."""
        return 3 * self.patch**2

    def matrix_sizes(self) -> dict[str, tuple[int, int]]:
        """Rows (outputs) and columns (inputs) of a layer's matrices."""
        square = (self.width, self.width)
        return {
            "attn_q": square,
            "attn_k": square,
            "attn_v": square,
            "attn_output": square,
            "ffn_up": (self.d_ff, self.width),
            "ffn_down": (self.width, self.d_ff),
        }


def new_weights(shape: TowerShape, seed: int) -> Weights:
    """Initialize weights. Output projections start at zero, so that each layer is the identity."""
    generator = torch.Generator().manual_seed(seed)

    def random(*size: int, deviation: float) -> Tensor:
        return torch.randn(size, generator=generator) * deviation

    weights: Weights = {}
    for name, (rows, columns) in shape.matrix_sizes().items():
        deviation = 0.0 if name in {"attn_output", "ffn_down"} else 0.5 * columns**-0.5
        weights[name] = random(shape.num_layers, rows, columns, deviation=deviation)
        weights[f"{name}.bias"] = torch.zeros(shape.num_layers, rows)
    for name in ("ln1", "ln2"):
        weights[name] = torch.ones(shape.num_layers, shape.width)
        weights[f"{name}.bias"] = torch.zeros(shape.num_layers, shape.width)
    weights["post_ln"] = torch.ones(shape.width)
    weights["post_ln.bias"] = torch.zeros(shape.width)
    columns = shape.patch_values
    weights["patch"] = random(shape.width, columns, deviation=columns**-0.5)
    weights["patch.bias"] = torch.zeros(shape.width)
    weights["position"] = random(shape.num_tokens, shape.width, deviation=0.5)
    for name, rows, columns in (
        ("mm.0", shape.out_hidden, shape.width),
        ("mm.1", shape.out, shape.out_hidden),
    ):
        weights[name] = random(rows, columns, deviation=columns**-0.5)
        weights[f"{name}.bias"] = torch.zeros(rows)
    return weights


class Tower:
    """The forward pass; the caller passes the weights."""

    def __init__(self, shape: TowerShape, dtype: torch.dtype, *, compiled: bool) -> None:
        self.shape, self.dtype = shape, dtype
        self.layer = torch.compile(self._layer, dynamic=False) if compiled else self._layer

    def vectors(self, weights: Weights, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Vectors of pictures for the text model, and the inner states halfway through the tower.

        `pixels` are [pictures, SIZE, SIZE, 3] in uint8; results [pictures, num_tokens, width].
        """
        shape = self.shape
        x = self._linear(self._patches(pixels), weights, "patch") + weights["position"]
        stacked = {
            name: each.unbind(0)
            for name, each in weights.items()
            if name.startswith(("attn", "ffn", "ln"))
        }
        halfway = x
        for index in range(shape.num_layers):
            x = self.layer(x, {name: each[index] for name, each in stacked.items()})
            if index + 1 == shape.num_layers // 2:
                halfway = x
        y = self._linear(self._norm(x, weights, "post_ln"), weights, "mm.0")
        return self._linear(functional.gelu(y, approximate="tanh"), weights, "mm.1"), halfway

    def _layer(self, x: Tensor, layer: Weights) -> Tensor:
        x = x + self._attention(self._norm(x, layer, "ln1"), layer)
        y = self._linear(self._norm(x, layer, "ln2"), layer, "ffn_up")
        return x + self._linear(functional.gelu(y, approximate="tanh"), layer, "ffn_down")

    def _patches(self, pixels: Tensor) -> Tensor:
        size, side = self.shape.patch, SIZE // self.shape.patch
        x = (pixels.float() / 255 - MEAN) / DEVIATION
        x = x.view(-1, side, size, side, size, 3).permute(0, 1, 3, 5, 2, 4)
        return x.reshape(len(pixels), side * side, self.shape.patch_values)

    def _attention(self, x: Tensor, layer: Weights) -> Tensor:
        pictures, tokens, width = x.shape
        heads = self.shape.num_heads
        q, k, v = (
            self._linear(x, layer, name)
            .to(self.dtype)
            .view(pictures, tokens, heads, width // heads)
            .transpose(1, 2)
            for name in ("attn_q", "attn_k", "attn_v")
        )
        scores = (q @ k.transpose(2, 3)).float() * (width // heads) ** -0.5
        attended = scores.softmax(-1).to(self.dtype) @ v
        return self._linear(attended.transpose(1, 2).reshape(x.shape), layer, "attn_output")

    def _linear(self, x: Tensor, weights: Weights, name: str) -> Tensor:
        y = functional.linear(x.to(self.dtype), weights[name].to(self.dtype)).float()
        return y + weights[f"{name}.bias"]

    def _norm(self, x: Tensor, weights: Weights, name: str) -> Tensor:
        return functional.layer_norm(
            x, x.shape[-1:], weights[name], weights[f"{name}.bias"], EPSILON
        )
