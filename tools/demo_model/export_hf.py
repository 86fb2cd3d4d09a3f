"""Write the bundled model as a folder of Hugging Face files, for engines that read these (vLLM).

`python -m tools.demo_model.export_hf FOLDER`, with the Python of `.venv`. The weights are those of
the GGUF file, dequantized to f32 without loss, so that engines can be compared token by token. The
layers are named and their rotary rows ordered as transformers' LlamaForCausalLM has them. With
`--model` a LoRA adapter of it is written as PEFT does.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from inference_svc.models.sources import BUNDLED_PATH

_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OTHERS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
}


def export(source: Path, folder: Path) -> None:
    """Write a model of the architecture `llama`, with tied embeddings and a byte-level BPE
    tokenizer split as GPT-2's, into a folder that is made if needed."""
    export_tokenizer(source, folder)
    reader = gguf.GGUFReader(source)
    _write_safetensors(folder / "model.safetensors", _tensors(reader, _read(reader)))


def export_tokenizer(source: Path, folder: Path) -> None:
    """Write the files of `export` but the weights."""
    values = _read(gguf.GGUFReader(source))
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (
        ("config.json", _config(values)),
        ("generation_config.json", _generation_config(values)),
        ("tokenizer.json", _tokenizer(values)),
        ("tokenizer_config.json", _tokenizer_config(values)),
    ):
        text = json.dumps(content, ensure_ascii=False, indent=1)
        (folder / name).write_text(text + "\n", encoding="utf-8")


def export_adapter(source: Path, folder: Path) -> None:
    """Write a LoRA adapter of such a model into a folder that is made if needed."""
    reader = gguf.GGUFReader(source)
    values = _read(reader)
    heads = _heads(_read(gguf.GGUFReader(BUNDLED_PATH)))
    tensors = {}
    for tensor in reader.tensors:
        array = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype("<f4")
        name, matrix = tensor.name.removesuffix(".lora_a"), "lora_A"
        if name == tensor.name:
            name, matrix = tensor.name.removesuffix(".lora_b"), "lora_B"
        _, layer, kind, _ = name.split(".")
        if matrix == "lora_B" and kind in heads:
            array = _split_halves(array, heads[kind])
        name = f"base_model.model.model.layers.{layer}.{_LAYER[kind]}.{matrix}.weight"
        tensors[name] = np.ascontiguousarray(array)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": min(min(array.shape) for array in tensors.values()),
        "lora_alpha": values["adapter.lora.alpha"],
        "target_modules": sorted({name.split(".")[-3] for name in tensors}),
        "bias": "none",
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=1) + "\n")
    _write_safetensors(folder / "adapter_model.safetensors", tensors)


def _read(reader: gguf.GGUFReader) -> dict[str, Any]:
    return {name: field.contents() for name, field in reader.fields.items()}


def _config(values: dict[str, Any]) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": values["llama.embedding_length"],
        "intermediate_size": values["llama.feed_forward_length"],
        "num_hidden_layers": values["llama.block_count"],
        "num_attention_heads": values["llama.attention.head_count"],
        "num_key_value_heads": values["llama.attention.head_count_kv"],
        "head_dim": values["llama.rope.dimension_count"],
        "hidden_act": "silu",
        "max_position_embeddings": values["llama.context_length"],
        "rms_norm_eps": round(values["llama.attention.layer_norm_rms_epsilon"], 10),
        "rope_theta": values["llama.rope.freq_base"],
        "rope_scaling": None,
        "vocab_size": values["llama.vocab_size"],
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": values["tokenizer.ggml.bos_token_id"],
        "eos_token_id": values["tokenizer.ggml.eos_token_id"],
        "pad_token_id": values["tokenizer.ggml.padding_token_id"],
        "torch_dtype": "float32",
    }


def _generation_config(values: dict[str, Any]) -> dict[str, Any]:
    """The end tokens are those of llama.cpp, which adds the end of a text to that of a turn."""
    return {
        "bos_token_id": values["tokenizer.ggml.bos_token_id"],
        "eos_token_id": [
            values["tokenizer.ggml.eos_token_id"],
            values["tokenizer.ggml.bos_token_id"],
        ],
        "pad_token_id": values["tokenizer.ggml.padding_token_id"],
    }


def _added_tokens(values: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """Only control tokens are special: decoders omit special tokens from the text, which must have
    the markers of tool calls and reasoning."""
    kinds = values["tokenizer.ggml.token_type"]
    return {
        token: {
            "content": text,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kinds[token] == gguf.TokenType.CONTROL,
        }
        for token, text in enumerate(values["tokenizer.ggml.tokens"])
        if kinds[token] != gguf.TokenType.NORMAL
    }


def _tokenizer(values: dict[str, Any]) -> dict[str, Any]:
    added = _added_tokens(values)
    tokens = values["tokenizer.ggml.tokens"]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": token, **each} for token, each in added.items()],
        "normalizer": None,
        "pre_tokenizer": {**byte_level, "use_regex": True},
        "post_processor": None,
        "decoder": {**byte_level, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {text: token for token, text in enumerate(tokens) if token not in added},
            "merges": [merge.split(" ") for merge in values["tokenizer.ggml.merges"]],
        },
    }


def _tokenizer_config(values: dict[str, Any]) -> dict[str, Any]:
    tokens = values["tokenizer.ggml.tokens"]
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "added_tokens_decoder": {str(t): each for t, each in _added_tokens(values).items()},
        "bos_token": tokens[values["tokenizer.ggml.bos_token_id"]],
        "eos_token": tokens[values["tokenizer.ggml.eos_token_id"]],
        "pad_token": tokens[values["tokenizer.ggml.padding_token_id"]],
        "clean_up_tokenization_spaces": False,
        "model_max_length": values["llama.context_length"],
        "chat_template": values["tokenizer.chat_template"],
    }


def _tensors(reader: gguf.GGUFReader, values: dict[str, Any]) -> dict[str, NDArray[np.float32]]:
    heads = _heads(values)
    tensors = {}
    for tensor in reader.tensors:
        array = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype("<f4")
        name = _OTHERS.get(tensor.name)
        if name is None:
            _, layer, kind, _ = tensor.name.split(".")
            name = f"model.layers.{layer}.{_LAYER[kind]}.weight"
            if kind in heads:
                array = _split_halves(array, heads[kind])
        tensors[name] = np.ascontiguousarray(array)
    return tensors


def _heads(values: dict[str, Any]) -> dict[str, int]:
    """The heads in the rows of what is rotated."""
    return {
        "attn_q": values["llama.attention.head_count"],
        "attn_k": values["llama.attention.head_count_kv"],
    }


def _split_halves(rows: NDArray[np.float32], num_heads: int) -> NDArray[np.float32]:
    """Order the rows of each head for transformers, which rotates row i with row i + size / 2 of a
    head, where llama.cpp rotates row 2 i with row 2 i + 1."""
    pairs = rows.reshape(num_heads, -1, 2, rows.shape[-1])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def _write_safetensors(path: Path, tensors: dict[str, NDArray[np.float32]]) -> None:
    """Write a safetensors file: the length of a JSON header, the header, the values."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, array in tensors.items():
        start, end = end, end + array.nbytes
        header[name] = {"dtype": "F32", "shape": array.shape, "data_offsets": [start, end]}
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    with path.open("wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for array in tensors.values():
            file.write(array.tobytes())


def main() -> int:
    """Parse the command line and write the folder. Returns the exit code."""
    parser = argparse.ArgumentParser(description="Write the bundled model for Hugging Face.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", type=Path, default=BUNDLED_PATH, help="another GGUF file")
    options = parser.parse_args()
    is_adapter = "adapter.type" in gguf.GGUFReader(options.model).fields
    (export_adapter if is_adapter else export)(options.model, options.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
