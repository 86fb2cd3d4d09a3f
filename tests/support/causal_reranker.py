"""A tiny causal reranker: a decoder with a chat template and a head of "yes" and "no"."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np

from inference_svc.models.sources import BUNDLED_PATH

TEMPLATE = "<|im_start|>user\nQuery: {query}\nDocument: {document}<|im_end|>\n"
_WIDTH, _FFN, _LAYERS, _HEADS = 32, 64, 2, 4


def write_causal_reranker(path: Path) -> Path:
    """Write the model as GGUF, with random weights and the vocabulary of the demo model."""
    writer = gguf.GGUFWriter(path, "qwen3")
    writer.add_context_length(512)
    writer.add_embedding_length(_WIDTH)
    writer.add_block_count(_LAYERS)
    writer.add_feed_forward_length(_FFN)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(_HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_pooling_type(gguf.PoolingType.RANK)
    writer.add_classifier_output_labels(["yes", "no"])
    writer.add_string("tokenizer.chat_template.rerank", TEMPLATE)
    num_tokens = _copy_vocabulary(writer)
    _add_weights(writer, num_tokens)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _copy_vocabulary(writer: gguf.GGUFWriter) -> int:
    fields = gguf.GGUFReader(BUNDLED_PATH).fields

    def value(key: str) -> Any:
        return fields[f"tokenizer.ggml.{key}"].contents()

    tokens = value("tokens")
    if not isinstance(tokens, list):
        raise TypeError("the demo model has no list of tokens")
    writer.add_tokenizer_model(value("model"))
    writer.add_tokenizer_pre(value("pre"))
    writer.add_token_list(tokens)
    writer.add_token_types(value("token_type"))
    writer.add_token_merges(value("merges"))
    writer.add_eos_token_id(value("eos_token_id"))
    return len(tokens)


def _add_weights(writer: gguf.GGUFWriter, num_tokens: int) -> None:
    rng = np.random.default_rng(5)

    def add_random(name: str, rows: int, columns: int) -> None:
        values = rng.standard_normal((rows, columns), dtype=np.float32) * 0.3
        writer.add_tensor(f"{name}.weight", values)

    def add_ones(name: str, size: int) -> None:
        writer.add_tensor(f"{name}.weight", np.ones(size, np.float32))

    add_random("token_embd", num_tokens, _WIDTH)
    add_random("cls.output", 2, _WIDTH)
    add_ones("output_norm", _WIDTH)
    for layer in range(_LAYERS):
        block = f"blk.{layer}."
        add_ones(f"{block}attn_norm", _WIDTH)
        add_ones(f"{block}ffn_norm", _WIDTH)
        add_ones(f"{block}attn_q_norm", _WIDTH // _HEADS)
        add_ones(f"{block}attn_k_norm", _WIDTH // _HEADS)
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add_random(f"{block}{name}", _WIDTH, _WIDTH)
        add_random(f"{block}ffn_gate", _FFN, _WIDTH)
        add_random(f"{block}ffn_up", _FFN, _WIDTH)
        add_random(f"{block}ffn_down", _WIDTH, _FFN)
