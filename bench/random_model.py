"""Generates a model with random weights and a real vocabulary.

It is as fast as a trained model of the same shape and needs no download; its output is noise. All
layers have the same weights, which makes large models in a minute, too. The vocabulary and
`llama-quantize` (Q4_0) come from the llama.cpp source that `bench/peers.sh` fetches.

    python -m bench.random_model [--shape tiny|small|half|seven] [--folder FOLDER] [--peers FOLDER]
"""

import argparse
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np

from bench import paths
from inference_svc.hf_tokenizer.piece_decoder import decode_byte_level

CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True)
class Shape:
    """Dimensions of a qwen2 model."""

    width: int
    layers: int
    heads: int
    kv_heads: int
    ffn_width: int

    @property
    def kv_width(self) -> int:
        """Width of the keys, and of the values, of one layer."""
        return self.width // self.heads * self.kv_heads


SHAPES = {
    "tiny": Shape(192, 4, 6, 2, 512),
    "small": Shape(512, 8, 8, 2, 1536),
    "half": Shape(896, 24, 14, 2, 4864),  # a model of 0.5 billion parameters
    "seven": Shape(3584, 28, 28, 4, 18944),  # 7.6 billion parameters, for GPUs
}


def ensure_model(shape: str, folder: Path, peers: Path) -> Path:
    """Return the Q4_0 model of that shape, after generating it if it does not exist."""
    target = folder / f"random-{shape}-text-q4_0.gguf"
    return _ensure(target, paths.vocabulary_file(peers), shape, "Q4_0", peers)


def ensure_bf16_model(shape: str, folder: Path, peers: Path) -> Path:
    """Return the same in BF16, with the small vocabulary of the bundled model."""
    target = folder / f"random-{shape}-demo-bf16.gguf"
    return _ensure(target, paths.BUNDLED_MODEL, shape, "BF16", peers)


def _ensure(target: Path, vocabulary: Path, shape: str, kind: str, peers: Path) -> Path:
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        full, partial = target.with_suffix(".f16"), target.with_suffix(".part")
        write_model(vocabulary, full, SHAPES[shape], f"random-{shape}")
        command = [str(peers / "llama-quantize"), str(full), str(partial), kind]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        partial.rename(target)
        full.unlink()
    return target


def write_model(vocabulary: Path, target: Path, shape: Shape, name: str) -> None:
    """Write a qwen2 GGUF file in F16 with random weights from a fixed seed."""
    writer = gguf.GGUFWriter(target, "qwen2")
    writer.add_name(name)
    writer.add_context_length(32768)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.ffn_width)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_chat_template(CHAT_TEMPLATE)
    tokens = _copy_vocabulary(gguf.GGUFReader(vocabulary), writer)
    _add_weights(writer, shape, [_is_text(token) for token in tokens])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _copy_vocabulary(source: gguf.GGUFReader, writer: gguf.GGUFWriter) -> list[str]:
    def value(key: str) -> object:
        return source.fields[f"tokenizer.ggml.{key}"].contents()

    def values(key: str) -> list[str]:
        value_list = value(key)
        assert isinstance(value_list, list), key
        return value_list

    tokens = values("tokens")
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model(str(value("model")))
    writer.add_tokenizer_pre(str(value("pre")))
    writer.add_token_list(tokens)
    writer.add_token_types([int(kind) for kind in values("token_type")])
    writer.add_token_merges(values("merges"))
    writer.add_eos_token_id(int(str(value("eos_token_id"))))
    return tokens


def _is_text(token: str) -> bool:
    """Whether the bytes of a token, as byte-level BPE writes them, are whole characters."""
    try:
        decode_byte_level(token).decode()
    except UnicodeDecodeError:
        return False
    return True


def _add_weights(writer: gguf.GGUFWriter, shape: Shape, are_text: Sequence[bool]) -> None:
    """Parts of characters are never chosen: their bytes would be lost in streams of text."""
    rng = np.random.default_rng(0)

    def weights(rows: int, columns: int) -> np.ndarray:
        drawn = rng.standard_normal((rows, columns), dtype=np.float32) * 0.02
        return drawn.astype(np.float16)

    def constant(size: int, value: float) -> np.ndarray:
        return np.full(size, value, dtype=np.float32)

    embeddings = weights(len(are_text), shape.width) * np.array(are_text, np.float16)[:, None]
    writer.add_tensor("token_embd.weight", embeddings)
    writer.add_tensor("output_norm.weight", constant(shape.width, 1))
    layer = {
        "attn_norm.weight": constant(shape.width, 1),
        "attn_output.weight": weights(shape.width, shape.width),
        "ffn_norm.weight": constant(shape.width, 1),
        "ffn_gate.weight": weights(shape.ffn_width, shape.width),
        "ffn_up.weight": weights(shape.ffn_width, shape.width),
        "ffn_down.weight": weights(shape.width, shape.ffn_width),
    }
    for name, rows in (("q", shape.width), ("k", shape.kv_width), ("v", shape.kv_width)):
        layer[f"attn_{name}.weight"] = weights(rows, shape.width)
        layer[f"attn_{name}.bias"] = constant(rows, 0)
    for number in range(shape.layers):
        for name, tensor in layer.items():
            writer.add_tensor(f"blk.{number}.{name}", tensor)


def main() -> None:
    """Generate one model and print its path."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="half")
    parser.add_argument("--folder", type=Path, default=paths.cache_folder())
    parser.add_argument("--peers", type=Path, help="folder printed by bench/peers.sh")
    arguments = parser.parse_args()
    peers = arguments.peers or paths.build_peers()
    print(ensure_model(arguments.shape, arguments.folder, peers))


if __name__ == "__main__":
    main()
