"""The demo model with a long context, for prompts as long as those of coding agents.

Its weights, vocabulary and chat template, so that the text it writes behind such a prompt is noise;
with fewer of its blocks a prompt costs less: 30,000 tokens through one take seconds of a processor.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import gguf
import numpy as np

from inference_svc.models.sources import BUNDLED_PATH

CONTEXT_TOKENS: Final = 128 * 1024
_BLOCKS: Final = "llama.block_count"


def write_long_model(path: Path, num_blocks: int = 1) -> Path:
    """Write the model with its first `num_blocks` blocks, of 6, and a long context, as GGUF."""
    return write_blocks(path, range(num_blocks), CONTEXT_TOKENS)


def write_blocks(
    path: Path, blocks: Sequence[int], context_tokens: int, num_unused: int = 0
) -> Path:
    """Write the model with some of its blocks, and with unused tokens behind its own, as GGUF."""
    demo, writer = gguf.GGUFReader(BUNDLED_PATH), gguf.GGUFWriter(path, "llama")
    changed = {_BLOCKS: len(blocks), "llama.context_length": context_tokens}
    for name, added in {
        "llama.vocab_size": num_unused,
        "tokenizer.ggml.tokens": [f"[PAD{i}]" for i in range(num_unused)],
        "tokenizer.ggml.token_type": [int(gguf.TokenType.UNUSED)] * num_unused,
    }.items():
        changed[name] = demo.fields[name].contents() + added
    for name, field in demo.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        kind, *inner = field.types
        value = changed.get(name, field.contents())
        writer.add_key_value(name, value, kind, inner[0] if inner else None)
    for tensor in demo.tensors:
        group, _, rest = tensor.name.partition(".")
        number, _, weight = rest.partition(".")
        if tensor.name == "token_embd.weight":
            rows = np.pad(tensor.data, ((0, num_unused), (0, 0)))
            writer.add_tensor(tensor.name, rows, raw_dtype=tensor.tensor_type)
        elif group != "blk":
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        elif int(number) in blocks:
            name = f"blk.{blocks.index(int(number))}.{weight}"
            writer.add_tensor(name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
