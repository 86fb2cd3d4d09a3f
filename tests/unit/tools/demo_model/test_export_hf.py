"""The demo model in Hugging Face's format, computed as transformers computes a Llama."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from inference_svc.models.sources import BUNDLED_PATH
from tests.support.plain_llama import PlainLlama
from tools.demo_model.export_hf import export

Floats = NDArray[np.float32]
PROMPT = [2040, 276, 198, 340, 278, 283, 419, 317, 220, 1845, 30, 2041, 198, 2040, 275, 198]
"""A turn of a user, and the beginning of the answer."""


@pytest.fixture(scope="module")
def llama() -> Iterator[PlainLlama]:
    llama = PlainLlama(BUNDLED_PATH)
    yield llama
    llama.close()


def read_safetensors(path: Path) -> dict[str, Floats]:
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header: dict[str, dict[str, Any]] = json.loads(data[8:start])
    header.pop("__metadata__")
    return {
        name: np.frombuffer(
            data, "<f4", np.prod(about["shape"]), start + about["data_offsets"][0]
        ).reshape(about["shape"])
        for name, about in header.items()
    }


def normalize(x: Floats, weight: Floats, epsilon: float) -> Floats:
    return np.asarray(x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * weight, np.float32)


def rotate(x: Floats, base: float) -> Floats:
    """Rotate element i with element i + size / 2 of each head: shape (tokens, heads, size)."""
    length, _, size = x.shape
    frequencies = base ** (-np.arange(0, size, 2) / size)
    angles = np.outer(np.arange(length), frequencies)[:, None]
    first, second = x[..., : size // 2], x[..., size // 2 :]
    cos, sin = np.cos(angles), np.sin(angles)
    turned = first * cos - second * sin, second * cos + first * sin
    return np.concatenate(turned, -1, dtype=np.float32)


def attend(q: Floats, k: Floats, v: Floats) -> Floats:
    """Causal attention: shapes (tokens, heads, size), with fewer heads in `k` and `v`."""
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
    scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(q.shape[-1])
    scores += np.triu(np.full(scores.shape[1:], -np.inf), 1)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    attended: Floats = np.einsum("hqk,khd->qhd", shares, v).reshape(len(q), -1)
    return attended


def logits_of(folder: Path, tokens: list[int]) -> Floats:
    """The logits after each token: shape (tokens, vocabulary)."""
    config = json.loads((folder / "config.json").read_text())
    weights = read_safetensors(folder / "model.safetensors")
    epsilon, base = config["rms_norm_eps"], config["rope_theta"]
    x = weights["model.embed_tokens.weight"][tokens]
    for layer in range(config["num_hidden_layers"]):
        w = {
            name.removeprefix(f"model.layers.{layer}.").removesuffix(".weight"): values
            for name, values in weights.items()
            if name.startswith(f"model.layers.{layer}.")
        }
        y = normalize(x, w["input_layernorm"], epsilon)
        q, k, v = (
            (y @ w[f"self_attn.{kind}_proj"].T).reshape(len(tokens), -1, config["head_dim"])
            for kind in "qkv"
        )
        x = x + attend(rotate(q, base), rotate(k, base), v) @ w["self_attn.o_proj"].T
        y = normalize(x, w["post_attention_layernorm"], epsilon)
        gate = y @ w["mlp.gate_proj"].T
        x = x + (gate / (1 + np.exp(-gate)) * (y @ w["mlp.up_proj"].T)) @ w["mlp.down_proj"].T
    return (
        normalize(x, weights["model.norm.weight"], epsilon) @ weights["model.embed_tokens.weight"].T
    )


def test_the_exported_weights_give_the_log_probabilities_of_llama_cpp(
    tmp_path: Path, llama: PlainLlama
) -> None:
    """Up to llama.cpp's rounding of activations to 8 bits; the most probable token is the same."""
    export(BUNDLED_PATH, tmp_path)
    logits = logits_of(tmp_path, PROMPT).astype(np.float64)
    logits -= logits.max(-1, keepdims=True)
    expected = llama.logprobs(PROMPT)
    logprobs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    likely = expected > np.log(0.001)

    assert logprobs.argmax(-1).tolist() == expected.argmax(-1).tolist()
    assert np.abs(logprobs - expected)[likely].max() < 0.2
