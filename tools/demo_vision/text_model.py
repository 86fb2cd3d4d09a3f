"""The shipped demo model as the training sees it: weights and tokenizer from its GGUF file.

Nothing of it is trained here. Its Q8_0 matrices are dequantized, so that the gradient passes
through the same numbers that llama.cpp uses.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from tools.demo_model.network import EMBEDDING, MATRICES, NORMS, OUTPUT_NORM, Shape, Weights


@dataclass(frozen=True)
class TextModel:
    """Frozen weights with the demo model's default `Shape`, and the tokenizer."""

    weights: Weights
    tokenizer: Tokenizer

    def encode(self, text: str) -> list[int]:
        """Token ids of a text; control tokens in it are parsed."""
        ids: list[int] = self.tokenizer.encode(text).ids
        return ids

    @property
    def embedding(self) -> Tensor:
        """Vectors of all tokens: [vocabulary, d]."""
        return self.weights[EMBEDDING]


def load(path: Path) -> TextModel:
    """Read a `llama` GGUF file whose sizes are those of the demo model."""
    reader = gguf.GGUFReader(path)
    stored = {
        each.name: torch.from_numpy(gguf.quants.dequantize(each.data, each.tensor_type).copy())
        for each in reader.tensors
    }
    weights = {name: stored[f"{name}.weight"] for name in (EMBEDDING, OUTPUT_NORM)}
    for name in (*NORMS, *MATRICES):
        layers = [stored[f"blk.{index}.{name}.weight"] for index in range(Shape().num_layers)]
        weights[name] = torch.stack(layers)
    return TextModel(weights, _tokenizer(reader))


def _tokenizer(reader: gguf.GGUFReader) -> Tokenizer:
    tokens, kinds, merges = (_field(reader, name) for name in ("tokens", "token_type", "merges"))
    added = [
        token
        for token, kind in zip(tokens, kinds, strict=True)
        if kind in {gguf.TokenType.CONTROL, gguf.TokenType.USER_DEFINED}
    ]
    ids = {token: index for index, token in enumerate(tokens)}
    pairs = [tuple(merge.split(" ")) for merge in merges]
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(token, normalized=False, special=True) for token in added]
    )
    return tokenizer


def _field(reader: gguf.GGUFReader, name: str) -> Any:
    field = reader.get_field(f"tokenizer.ggml.{name}")
    if field is None:
        raise ValueError(f"the text model has no tokenizer.ggml.{name}")
    return field.contents()
