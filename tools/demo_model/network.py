"""Forward pass of the demo model, equal to llama.cpp's for the `llama` architecture.

Tensors have GGUF's names, and RoPE rotates interleaved pairs as in llama.cpp, so that the export
copies them unchanged. Each matrix is stacked over all layers, so that the optimizer processes it as
a batch, and one compiled layer is used for all.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

EPSILON = 1e-5
ROPE_BASE = 10000.0
LORA_RANK = 8
LORA_ALPHA = 16.0
NORMS = ("attn_norm", "ffn_norm")
MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
EMBEDDING = "token_embd"
OUTPUT_NORM = "output_norm"
QUERIES_PER_CHUNK = 256

Weights = dict[str, Tensor]
Layer = Callable[..., Tensor]


@dataclass(frozen=True)
class Shape:
    """Sizes of a llama model with tied embeddings."""

    d_model: int = 256
    num_layers: int = 6
    num_heads: int = 4
    num_kv_heads: int = 2
    head_size: int = 64
    d_ff: int = 512
    vocab_size: int = 2048
    context: int = 2048

    def matrix_sizes(self) -> dict[str, tuple[int, int]]:
        """Rows (outputs) and columns (inputs) of a layer's matrices."""
        queries, keys = self.num_heads * self.head_size, self.num_kv_heads * self.head_size
        return {
            "attn_q": (queries, self.d_model),
            "attn_k": (keys, self.d_model),
            "attn_v": (keys, self.d_model),
            "attn_output": (self.d_model, queries),
            "ffn_gate": (self.d_ff, self.d_model),
            "ffn_up": (self.d_ff, self.d_model),
            "ffn_down": (self.d_model, self.d_ff),
        }


def new_weights(shape: Shape, seed: int) -> Weights:
    """Initialize weights. Output projections start at zero, so that each layer is the identity."""
    generator = torch.Generator().manual_seed(seed)
    size = (shape.vocab_size, shape.d_model)
    weights = {EMBEDDING: torch.randn(size, generator=generator) * 0.02}
    for name, (rows, columns) in shape.matrix_sizes().items():
        deviation = 0.0 if name in {"attn_output", "ffn_down"} else 0.5 * columns**-0.5
        values = torch.randn((shape.num_layers, rows, columns), generator=generator)
        weights[name] = values * deviation
    for name in NORMS:
        weights[name] = torch.ones(shape.num_layers, shape.d_model)
    weights[OUTPUT_NORM] = torch.ones(shape.d_model)
    return weights


def new_adapter(shape: Shape, seed: int) -> Weights:
    """Initialize a LoRA without effect: `<matrix>.lora_a` is random, `<matrix>.lora_b` zero."""
    generator = torch.Generator().manual_seed(seed)
    adapter: Weights = {}
    for name, (rows, columns) in shape.matrix_sizes().items():
        values = torch.randn((shape.num_layers, LORA_RANK, columns), generator=generator)
        adapter[f"{name}.lora_a"] = values * columns**-0.5
        adapter[f"{name}.lora_b"] = torch.zeros(shape.num_layers, rows, LORA_RANK)
    return adapter


def merge_adapter(weights: Weights, adapter: Weights) -> Weights:
    """Merge a LoRA into the weights, so that both kinds of training use one forward pass."""
    scale = LORA_ALPHA / LORA_RANK
    return weights | {
        name: weights[name] + scale * (adapter[f"{name}.lora_b"] @ adapter[f"{name}.lora_a"])
        for name in MATRICES
    }


class Network:
    """The forward pass; the caller passes the weights."""

    def __init__(self, shape: Shape, device: str, dtype: torch.dtype, *, compiled: bool) -> None:
        self.shape = shape
        self.dtype = dtype
        self.cos, self.sin = _rope_tables(shape, device)
        self.layer = _layer(shape, device, dtype)
        self.head = _head(dtype)
        if compiled:
            self.layer = torch.compile(self.layer, dynamic=False, fullgraph=True)
            self.head = torch.compile(self.head, dynamic=True, fullgraph=True)

    def hidden(self, weights: Weights, tokens: Tensor) -> Tensor:
        """The residual stream after the last layer, before the output norm: [rows, length, d]."""
        return self.hidden_of(weights, functional.embedding(tokens, weights[EMBEDDING]))

    def hidden_of(self, weights: Weights, x: Tensor) -> Tensor:
        """As `hidden`, for rows of vectors in place of embedded tokens: [rows, length, d]."""
        cos, sin = self.cos[: x.shape[1]], self.sin[: x.shape[1]]
        stacks = [weights[name].unbind(0) for name in (*NORMS, *MATRICES)]
        for layer in zip(*stacks, strict=True):
            x = self.layer(x, cos, sin, *layer)
        return x

    def logits(self, weights: Weights, tokens: Tensor) -> Tensor:
        """Logits of the next tokens: [rows, length, vocabulary]."""
        x = rms_norm(self.hidden(weights, tokens), weights[OUTPUT_NORM])
        return _linear(x, weights[EMBEDDING], self.dtype).float()

    def loss_sum(
        self, weights: Weights, tokens: Tensor, chosen: Tensor, targets: Tensor, share: Tensor
    ) -> Tensor:
        """Weighted sum of the losses at the chosen indices of the flattened rows."""
        x = self.hidden(weights, tokens).reshape(-1, self.shape.d_model)[chosen]
        loss: Tensor = self.head(x, weights[OUTPUT_NORM], weights[EMBEDDING], targets, share)
        return loss


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """RMSNorm in f32."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPSILON) * weight


def _linear(x: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
    return functional.linear(x.to(dtype), weight.to(dtype))


def _head(dtype: torch.dtype) -> Layer:
    def head(x: Tensor, norm: Tensor, embedding: Tensor, targets: Tensor, share: Tensor) -> Tensor:
        logits = _linear(rms_norm(x, norm), embedding, dtype).float()
        return (functional.cross_entropy(logits, targets, reduction="none") * share).sum()

    return head


def _layer(shape: Shape, device: str, dtype: torch.dtype) -> Layer:
    attention = _fused_attention if device.startswith("cuda") else _chunked_attention
    heads, kv_heads, size = shape.num_heads, shape.num_kv_heads, shape.head_size

    def layer(
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        attn_norm: Tensor,
        ffn_norm: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        output: Tensor,
        gate: Tensor,
        up: Tensor,
        down: Tensor,
    ) -> Tensor:
        rows, length, _ = x.shape
        y = rms_norm(x, attn_norm).to(dtype)
        queries = _linear(y, q, dtype).view(rows, length, heads, size)
        keys = _linear(y, k, dtype).view(rows, length, kv_heads, size)
        values = _linear(y, v, dtype).view(rows, length, kv_heads, size)
        queries = (_apply_rope(queries, cos, sin) * size**-0.5).to(dtype)
        keys = _apply_rope(keys, cos, sin).to(dtype)
        attended = attention(queries, keys, values).reshape(rows, length, heads * size)
        x = x + _linear(attended, output, dtype).float()
        y = rms_norm(x, ffn_norm).to(dtype)
        inner = functional.silu(_linear(y, gate, dtype).float()) * _linear(y, up, dtype).float()
        return x + _linear(inner, down, dtype).float()

    return layer


def _rope_tables(shape: Shape, device: str) -> tuple[Tensor, Tensor]:
    half = torch.arange(0, shape.head_size, 2, dtype=torch.float64) / shape.head_size
    frequencies = torch.exp(half * -math.log(ROPE_BASE))
    angles = torch.outer(torch.arange(shape.context, dtype=torch.float64), frequencies)[:, None]
    return angles.cos().float().to(device), angles.sin().float().to(device)


def _apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE over the pairs (0, 1), (2, 3), ...

    The result has all first elements before all second ones. Queries and keys have the same order,
    so their products do not change.
    """
    first, second = x[..., 0::2].float(), x[..., 1::2].float()
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)


def _chunked_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention in chunks of queries, without the keys after the chunk.

    Takes a quarter of the time of PyTorch's CPU kernel, which took half of a training step.
    The query heads that share a key head are folded into the query dimension.
    """
    rows, length, heads, size = q.shape
    kv_heads = k.shape[2]
    group = heads // kv_heads
    grouped = q.view(rows, length, kv_heads, group, size).permute(0, 2, 3, 1, 4)
    keys = k.permute(0, 2, 3, 1).reshape(rows * kv_heads, size, length)
    values = v.permute(0, 2, 1, 3).reshape(rows * kv_heads, length, size)
    positions = torch.arange(length, device=q.device)
    chunks = []
    for start in range(0, length, QUERIES_PER_CHUNK):
        end = min(start + QUERIES_PER_CHUNK, length)
        chunk = grouped[:, :, :, start:end].reshape(rows * kv_heads, -1, size)
        scores = torch.bmm(chunk, keys[:, :, :end]).view(rows * kv_heads, group, -1, end).float()
        hidden = positions[:end] > positions[start:end, None]
        shares = scores.masked_fill(hidden, -math.inf).softmax(-1).to(v.dtype)
        attended = torch.bmm(shares.view(rows * kv_heads, -1, end), values[:, :end])
        chunks.append(attended.view(rows, kv_heads, group, end - start, size))
    return torch.cat(chunks, dim=3).permute(0, 3, 1, 2, 4)


def _fused_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (each.transpose(1, 2) for each in (q, k, v))
    attended = functional.scaled_dot_product_attention(
        q, k, v, is_causal=True, scale=1.0, enable_gqa=True
    )
    return attended.transpose(1, 2)
