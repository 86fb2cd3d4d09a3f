"""Write checkpoints as GGUF files. The same checkpoint always gives the same bytes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from numpy.typing import NDArray

from tools.demo_model import checkpoint
from tools.demo_model.conversation import CONTROL_TOKENS, END, END_OF_TEXT
from tools.demo_model.network import (
    EMBEDDING,
    EPSILON,
    LORA_ALPHA,
    MATRICES,
    NORMS,
    OUTPUT_NORM,
    ROPE_BASE,
    Shape,
    Weights,
    new_adapter,
)

ARCHITECTURE = "llama"
FOREIGN = Shape(d_model=192, num_layers=4, num_heads=3, num_kv_heads=1, d_ff=384)


@dataclass(frozen=True)
class About:
    """General metadata of a GGUF file."""

    name: str
    description: str
    author: str
    licence: str


def export_model(
    model: Path, tokenizer: Path, template: str, out: Path, file_type: str, about: About
) -> None:
    """Write a model with its tokenizer and chat template; the file type is `F16` or `Q8_0`."""
    saved = checkpoint.load(model)
    vocabulary = Vocabulary.read(tokenizer, saved.shape.vocab_size)
    writer = _writer(out, "model", about)
    _write_shape(writer, saved.shape)
    _write_tokenizer(writer, vocabulary)
    writer.add_chat_template(template)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{file_type}"])
    kind = gguf.GGMLQuantizationType[file_type]
    for name, values in _model_tensors(saved.weights):
        if values.ndim == 1:  # llama.cpp supports norms in f32 only
            writer.add_tensor(name, values)
        else:
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    _finish(writer)


def export_adapter(adapter: Path, out: Path, about: About) -> None:
    """Write a trained LoRA in F16."""
    saved = checkpoint.load(adapter)
    _write_adapter(saved.weights, out, about)


def export_foreign_adapter(out: Path, about: About, seed: int = 1) -> None:
    """Write a valid LoRA for a different base model, for tests that reject it."""
    adapter = new_adapter(FOREIGN, seed)
    generator = torch.Generator().manual_seed(seed)
    for name in (name for name in adapter if name.endswith(".lora_b")):
        adapter[name] = torch.randn(adapter[name].shape, generator=generator) * 0.01
    _write_adapter(adapter, out, about)


@dataclass(frozen=True)
class Vocabulary:
    """A byte-level BPE tokenizer as GGUF stores it."""

    tokens: list[str]
    types: list[int]
    merges: list[str]

    @classmethod
    def read(cls, tokenizer: Path, size: int) -> Vocabulary:
        """Read the tokenizer.json in a folder. Raises ValueError if its size differs from `size`.

        Special tokens are CONTROL and are not part of the generated text. Other added tokens are
        USER_DEFINED, because the text must contain the markers of tool calls and reasoning.
        """
        content: dict[str, Any] = json.loads((tokenizer / "tokenizer.json").read_text())
        ids: dict[str, int] = dict(content["model"]["vocab"])
        kinds = dict.fromkeys(ids, gguf.TokenType.NORMAL)
        for added in content["added_tokens"]:
            ids[added["content"]] = added["id"]
            special = added["content"] in CONTROL_TOKENS
            kinds[added["content"]] = (
                gguf.TokenType.CONTROL if special else gguf.TokenType.USER_DEFINED
            )
        tokens = sorted(ids, key=ids.__getitem__)
        if [ids[token] for token in tokens] != list(range(size)):
            raise ValueError(f"{tokenizer} has {len(tokens)} tokens, the model has {size}")
        merges = [
            merge if isinstance(merge, str) else " ".join(merge)
            for merge in content["model"]["merges"]
        ]
        return cls(tokens, [int(kinds[token]) for token in tokens], merges)


def _writer(out: Path, kind: str, about: About) -> gguf.GGUFWriter:
    out.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(out, ARCHITECTURE)
    writer.add_type(kind)
    writer.add_name(about.name)
    writer.add_author(about.author)
    writer.add_description(about.description)
    writer.add_license(about.licence)
    return writer


def _write_shape(writer: gguf.GGUFWriter, shape: Shape) -> None:
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.d_model)
    writer.add_block_count(shape.num_layers)
    writer.add_feed_forward_length(shape.d_ff)
    writer.add_head_count(shape.num_heads)
    writer.add_head_count_kv(shape.num_kv_heads)
    writer.add_rope_dimension_count(shape.head_size)
    writer.add_rope_freq_base(ROPE_BASE)
    writer.add_layer_norm_rms_eps(EPSILON)
    writer.add_vocab_size(shape.vocab_size)


def _write_tokenizer(writer: gguf.GGUFWriter, vocabulary: Vocabulary) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types(vocabulary.types)
    writer.add_token_merges(vocabulary.merges)
    writer.add_bos_token_id(vocabulary.tokens.index(END_OF_TEXT))
    writer.add_eos_token_id(vocabulary.tokens.index(END))
    writer.add_eot_token_id(vocabulary.tokens.index(END))
    writer.add_pad_token_id(vocabulary.tokens.index(END_OF_TEXT))
    writer.add_add_bos_token(False)


def _model_tensors(weights: Weights) -> list[tuple[str, NDArray[np.float32]]]:
    tensors = [(f"{name}.weight", weights[name].numpy()) for name in (EMBEDDING, OUTPUT_NORM)]
    for index in range(len(weights[NORMS[0]])):
        for name in (*NORMS, *MATRICES):
            tensors.append((f"blk.{index}.{name}.weight", weights[name][index].numpy()))
    return tensors


def _write_adapter(adapter: Weights, out: Path, about: About) -> None:
    writer = _writer(out, gguf.GGUFType.ADAPTER, about)
    writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
    writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, LORA_ALPHA)
    for index in range(len(next(iter(adapter.values())))):
        for name in MATRICES:
            for half in ("lora_a", "lora_b"):
                values = adapter[f"{name}.{half}"][index].numpy().astype(np.float16)
                writer.add_tensor(f"blk.{index}.{name}.weight.{half}", values)
    _finish(writer)


def _finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
