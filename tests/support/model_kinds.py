"""Tiny models with random weights, one of each memory type.

Their output is random but repeatable, and depends on the whole context, so that a wrong state
changes it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.support.gguf_files import ALIGNMENT, F32Tensor, Signed, gguf_bytes

WIDTH = 32
LAYERS = 4
FFN = 64
HEADS = 2
HEAD = WIDTH // HEADS
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
TOKENS = ["<unk>", "<s>", "</s>", *_BYTES]
WINDOW = 16
BUCKETS = 32
INFILL_TOKENS = {"pre": 4, "suf": 5, "mid": 6}
"""Bytes that no text of a test has."""
_PAD = 0
_STATE, _INNER, _RANK, _CONV = 8, 2 * WIDTH, 4, 4

Shapes = Mapping[str, tuple[int, ...]]


def write_model_of_kind(
    kind: str, path: Path, weights: Mapping[str, npt.NDArray[np.float32]] | None = None
) -> Path:
    """Write a model with a sliding "window", a "recurrent" state, both attention and a state
    ("hybrid"), an encoder beside the decoder ("t5"), or tokens for text between two others
    ("infill"); with these weights instead of random ones,
    and without the tensors of a kind that are not among them."""
    kinds = {
        "window": _window,
        "recurrent": _recurrent,
        "hybrid": _hybrid,
        "t5": _t5,
        "infill": _infill,
    }
    metadata, shapes = kinds[kind]()
    if weights is None:
        rng = np.random.default_rng(7)
        weights = {name: _random_weights(name, shape, rng) for name, shape in shapes.items()}
    # GGUF has the innermost dimension first.
    tensors = [F32Tensor(name, values.shape[::-1]) for name, values in weights.items()]
    if not {(tensor.name, tensor.shape) for tensor in tensors} <= shapes.items():
        raise ValueError(f"the weights are not those of the kind '{kind}'")
    blank = gguf_bytes({**byte_vocabulary(), **metadata}, tensors)
    parts = [weights[tensor.name].astype("<f4").tobytes() for tensor in tensors]
    padded = [part + bytes(-len(part) % ALIGNMENT) for part in parts]
    path.write_bytes(blank[: len(blank) - sum(map(len, padded))] + b"".join(padded))
    return path


def _random_weights(
    name: str, shape: tuple[int, ...], rng: np.random.Generator
) -> npt.NDArray[np.float32]:
    if "norm" in name:
        return np.full(shape[::-1], _norm(name), np.float32)
    values = (rng.standard_normal(shape[::-1]) * 0.3).astype(np.float32)
    if name.endswith("ssm_a"):
        return -np.abs(values)  # a state that decays
    return values


def _norm(name: str) -> float:
    """Values that make attention sharp and layers outweigh the embedding of the last token, so that
    the output depends on the whole context."""
    if "q_norm" in name or "k_norm" in name:
        return 4.0
    return 4.0 if "post" in name else 1.0


def byte_vocabulary() -> dict[str, Any]:
    """The metadata of a vocabulary with a token for each byte and three control tokens."""
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.scores": [0.0] * len(TOKENS),
        "tokenizer.ggml.token_type": [Signed(kind) for kind in (2, 3, 3, *(6 for _ in _BYTES))],
        "tokenizer.ggml.eos_token_id": 2,
    }


def common_fields(architecture: str, **more: Any) -> dict[str, Any]:
    """The metadata of an architecture; further fields write "." as "__"."""
    fields = {
        "block_count": LAYERS,
        "context_length": 1024,
        "embedding_length": WIDTH,
        "feed_forward_length": FFN,
        "attention.head_count": HEADS,
        "attention.head_count_kv": HEADS,
        "attention.layer_norm_rms_epsilon": 1e-6,
        **{name.replace("__", "."): item for name, item in more.items()},
    }
    head = {"general.architecture": architecture, "general.name": architecture}
    return {**head, **{f"{architecture}.{name}": item for name, item in fields.items()}}


def _window() -> tuple[dict[str, Any], Shapes]:
    metadata = common_fields(
        "gemma3",
        attention__sliding_window=WINDOW,
        attention__key_length=HEAD,
        attention__value_length=HEAD,
    )
    tensors = _embedding("output_norm")
    for i in range(LAYERS):
        tensors |= _layer(i, _attention() | _feed_forward())
        tensors |= _layer(i, {"post_attention_norm": (WIDTH,), "post_ffw_norm": (WIDTH,)})
    return metadata, tensors


def _infill() -> tuple[dict[str, Any], Shapes]:
    metadata, tensors = _window()
    for name, token in INFILL_TOKENS.items():
        metadata[f"tokenizer.ggml.fim_{name}_token_id"] = token
    return metadata, tensors


def _recurrent() -> tuple[dict[str, Any], Shapes]:
    metadata = common_fields(
        "mamba",
        ssm__conv_kernel=_CONV,
        ssm__inner_size=_INNER,
        ssm__state_size=_STATE,
        ssm__time_step_rank=_RANK,
    )
    metadata["mamba.attention.head_count"] = metadata["mamba.attention.head_count_kv"] = 0
    tensors = _embedding("output_norm")
    for i in range(LAYERS):
        tensors |= _layer(
            i,
            {
                "attn_norm": (WIDTH,),
                "ssm_in": (WIDTH, 2 * _INNER),
                "ssm_conv1d": (_CONV, _INNER),
                "ssm_x": (_INNER, _RANK + 2 * _STATE),
                "ssm_dt": (_RANK, _INNER),
                "ssm_out": (_INNER, WIDTH),
            },
        )
        tensors |= {
            f"blk.{i}.ssm_conv1d.bias": (_INNER,),
            f"blk.{i}.ssm_dt.bias": (_INNER,),
            f"blk.{i}.ssm_a": (_STATE, _INNER),
            f"blk.{i}.ssm_d": (_INNER,),
        }
    return metadata, tensors


def _hybrid() -> tuple[dict[str, Any], Shapes]:
    metadata = common_fields("lfm2", shortconv__l_cache=3, vocab_size=len(TOKENS))
    kinds = [i % 2 for i in range(LAYERS)]  # alternating convolution and attention
    metadata["lfm2.attention.head_count_kv"] = [HEADS * kind for kind in kinds]
    tensors = _embedding("token_embd_norm")
    convolution: dict[str, tuple[int, ...]] = {
        "attn_norm": (WIDTH,),
        "shortconv.conv": (3, WIDTH),
        "shortconv.in_proj": (WIDTH, 3 * WIDTH),
        "shortconv.out_proj": (WIDTH, WIDTH),
    }
    for i, kind in enumerate(kinds):
        tensors |= _layer(i, (_attention() if kind else convolution) | _feed_forward())
    return metadata, tensors


def _t5() -> tuple[dict[str, Any], Shapes]:
    metadata = common_fields(
        "t5",
        decoder_block_count=LAYERS,
        decoder_start_token_id=_PAD,
        attention__key_length=HEAD,
        attention__value_length=HEAD,
        attention__layer_norm_epsilon=1e-6,
        attention__relative_buckets_count=BUCKETS,
    )
    metadata["tokenizer.ggml.add_bos_token"] = False
    metadata["tokenizer.ggml.add_eos_token"] = True
    names = ("q", "k", "v", "o")
    embedding = (WIDTH, len(TOKENS))
    tensors: dict[str, tuple[int, ...]] = {
        "token_embd.weight": embedding,
        "output.weight": embedding,
    }
    for part in ("enc", "dec"):
        tensors |= {f"{part}.output_norm.weight": (WIDTH,)}
        for i in range(LAYERS):
            shapes: dict[str, tuple[int, ...]] = {"attn_norm": (WIDTH,), **_feed_forward()}
            shapes |= {f"attn_{name}": (WIDTH, WIDTH) for name in names}
            if part == "dec":
                shapes |= {"cross_attn_norm": (WIDTH,)}
                shapes |= {f"cross_attn_{name}": (WIDTH, WIDTH) for name in names}
            if i == 0:
                shapes |= {"attn_rel_b": (HEADS, BUCKETS)}
            tensors |= {f"{part}.{name}": size for name, size in _layer(i, shapes).items()}
    return metadata, tensors


def _embedding(norm: str) -> dict[str, tuple[int, ...]]:
    return {"token_embd.weight": (WIDTH, len(TOKENS)), f"{norm}.weight": (WIDTH,)}


def _attention() -> dict[str, tuple[int, ...]]:
    square = {f"attn_{name}": (WIDTH, WIDTH) for name in ("q", "k", "v", "output")}
    return {"attn_norm": (WIDTH,), "attn_q_norm": (HEAD,), "attn_k_norm": (HEAD,), **square}


def _feed_forward() -> dict[str, tuple[int, ...]]:
    return {
        "ffn_norm": (WIDTH,),
        "ffn_gate": (WIDTH, FFN),
        "ffn_up": (WIDTH, FFN),
        "ffn_down": (FFN, WIDTH),
    }


def _layer(i: int, shapes: Shapes) -> dict[str, tuple[int, ...]]:
    return {f"blk.{i}.{name}.weight": shape for name, shape in shapes.items()}
