"""BERT encoders for tests: written as GGUF for llama.cpp, and computed with numpy to compare."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]

MEAN, CLS, LAST, RANK = 1, 2, 3, 4
"""llama.cpp's numbers of pooling types."""

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS = (
    *("a", "the", "fox", "dog", "cat", "jumps", "sleeps", "over", "lazy", "quick", "brown"),
    *("where", "is", "who", "##s", "##ing", "paris", "france", ".", "?", "!"),
)
TEXTS = ("the quick brown fox", "a lazy dog sleeps over the cat.", "where is paris?", "who jumps!")


@dataclass(frozen=True)
class Bert:
    """Weights by GGUF tensor name, and a WordPiece vocabulary ("##ing" is a continuation)."""

    weights: Mapping[str, Array]
    words: Sequence[str]
    num_heads: int
    num_layers: int
    context_tokens: int
    epsilon: float = 1e-12

    @property
    def width(self) -> int:
        return int(self.weights["token_embd.weight"].shape[1])

    def token(self, word: str) -> int:
        return self.words.index(word)

    def write(self, path: Path, *, pooling: int | None = MEAN, labels: Sequence[str] = ()) -> Path:
        writer = gguf.GGUFWriter(path, "bert")
        writer.add_name("test encoder")
        writer.add_context_length(self.context_tokens)
        writer.add_embedding_length(self.width)
        writer.add_block_count(self.num_layers)
        writer.add_feed_forward_length(self.weights["blk.0.ffn_up.weight"].shape[0])
        writer.add_head_count(self.num_heads)
        writer.add_layer_norm_eps(self.epsilon)
        writer.add_causal_attention(False)
        writer.add_file_type(gguf.LlamaFileType.ALL_F32)
        if pooling is not None:
            writer.add_pooling_type(gguf.PoolingType(pooling))
        if labels:
            writer.add_classifier_output_labels(labels)
        self._add_vocabulary(writer)
        for name, values in self.weights.items():
            writer.add_tensor(name, np.ascontiguousarray(values, np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    def _add_vocabulary(self, writer: gguf.GGUFWriter) -> None:
        control = frozenset(SPECIAL)
        kinds = [
            gguf.TokenType.CONTROL if w in control else gguf.TokenType.NORMAL for w in self.words
        ]
        writer.add_token_type_count(2)
        writer.add_tokenizer_model("bert")
        writer.add_tokenizer_pre("jina-v2-en")
        writer.add_token_list([_piece(word) for word in self.words])
        writer.add_token_types(kinds)
        for name, add in (
            ("[UNK]", writer.add_unk_token_id),
            ("[SEP]", writer.add_sep_token_id),
            ("[PAD]", writer.add_pad_token_id),
            ("[CLS]", writer.add_bos_token_id),
            ("[SEP]", writer.add_eos_token_id),
            ("[MASK]", writer.add_mask_token_id),
        ):
            add(self.token(name))

    # --- reference implementation -----------------------------------------------------------------

    def token_vectors(self, tokens: Sequence[int]) -> Array:
        """The output of the last layer for each token, computed with 64-bit floats."""
        w = {name: values.astype(np.float64) for name, values in self.weights.items()}
        x = w["token_embd.weight"][list(tokens)] + w["position_embd.weight"][: len(tokens)]
        x = self._norm(x + w["token_types.weight"][0], w, "token_embd_norm")
        for layer in range(self.num_layers):
            block = f"blk.{layer}."
            attended = self._attend(x, w, block)
            x = self._norm(x + attended, w, f"{block}attn_output_norm")
            hidden = _gelu(_linear(x, w, f"{block}ffn_up"))
            x = self._norm(
                x + _linear(hidden, w, f"{block}ffn_down"), w, f"{block}layer_output_norm"
            )
        return np.asarray(x, np.float32)

    def embedding(self, tokens: Sequence[int], pooling: int = MEAN) -> Array:
        """The pooled and normalized vector."""
        x = self.token_vectors(tokens)
        pooled = {MEAN: x.mean(axis=0), CLS: x[0], LAST: x[-1]}[pooling]
        return np.asarray(pooled / np.linalg.norm(pooled), np.float32)

    def score(self, tokens: Sequence[int]) -> float:
        """The first output of the rank head."""
        first = self.token_vectors(tokens)[:1].astype(np.float64)
        w = {name: values.astype(np.float64) for name, values in self.weights.items()}
        return float(_linear(np.tanh(_linear(first, w, "cls")), w, "cls.output")[0, 0])

    def _attend(self, x: Any, w: Mapping[str, Any], block: str) -> Any:
        def heads(name: str) -> Any:
            projected = _linear(x, w, f"{block}attn_{name}")
            return projected.reshape(len(x), self.num_heads, -1).transpose(1, 0, 2)

        q, k, v = heads("q"), heads("k"), heads("v")
        weights = q @ k.transpose(0, 2, 1) / sqrt(q.shape[-1])
        weights = np.exp(weights - weights.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        mixed = (weights @ v).transpose(1, 0, 2).reshape(len(x), -1)
        return _linear(mixed, w, f"{block}attn_output")

    def _norm(self, x: Any, w: Mapping[str, Any], name: str) -> Any:
        centred = x - x.mean(axis=-1, keepdims=True)
        scale = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + self.epsilon)
        return centred / scale * w[f"{name}.weight"] + w[f"{name}.bias"]


def random_bert(*, seed: int = 0, context_tokens: int = 64, ranks: bool = False) -> Bert:
    """A tiny encoder with random weights; `ranks` adds a rank head."""
    rng = np.random.default_rng(seed)
    words = (*SPECIAL, *WORDS)
    width, ffn, layers = 32, 64, 2

    def random_values(*shape: int) -> Array:
        return (rng.standard_normal(shape) * 0.3).astype(np.float32)

    weights = {
        "token_embd.weight": random_values(len(words), width),
        "position_embd.weight": random_values(context_tokens, width),
        "token_types.weight": random_values(2, width),
    }

    def norm(name: str) -> None:
        weights[f"{name}.weight"] = 1 + random_values(width)
        weights[f"{name}.bias"] = random_values(width)

    def linear(name: str, inputs: int, outputs: int) -> None:
        weights[f"{name}.weight"] = random_values(outputs, inputs)
        weights[f"{name}.bias"] = random_values(outputs)

    norm("token_embd_norm")
    for layer in range(layers):
        block = f"blk.{layer}."
        for name in ("q", "k", "v", "output"):
            linear(f"{block}attn_{name}", width, width)
        linear(f"{block}ffn_up", width, ffn)
        linear(f"{block}ffn_down", ffn, width)
        norm(f"{block}attn_output_norm")
        norm(f"{block}layer_output_norm")
    if ranks:
        linear("cls", width, width)
        linear("cls.output", width, 1)
    return Bert(weights, words, num_heads=4, num_layers=layers, context_tokens=context_tokens)


def _piece(word: str) -> str:
    """The GGUF form of a WordPiece token: word beginnings are marked, not continuations."""
    if word in SPECIAL:
        return word
    return word[2:] if word.startswith("##") else "\u2581" + word


def _linear(x: Any, w: Mapping[str, Any], name: str) -> Any:
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def _gelu(x: Any) -> Any:
    """The tanh approximation, as in llama.cpp."""
    return 0.5 * x * (1 + np.tanh(sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
