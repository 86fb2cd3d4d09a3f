"""Small random models of the architectures that llama.cpp knows.

llama.cpp itself says which tensors a model has: it creates one from metadata alone and asks for the
values of each tensor. The metadata is the same for all architectures, as in llama.cpp's own
`test-llama-archs.cpp`, with few exceptions.
"""

import ctypes
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import llama_cpp
import numpy as np
import numpy.typing as npt

from inference_svc.llama import library
from tests.support.gguf_files import ALIGNMENT, F32Tensor, gguf_bytes
from tests.support.model_kinds import byte_vocabulary

WIDTH: Final = 64
HEADS: Final = 2
HEAD: Final = WIDTH // HEADS
FFN: Final = 96
LAYERS: Final = 2
WINDOW: Final = 16
CONTEXT: Final = 512
_MAX_DIMENSIONS = 4
_SHAPE_OFFSET = 16  # of `ggml_tensor.ne`, after the type and the buffer
_SCALES = (
    ("bias", 0.1),
    ("token_embd", 0.02),
    ("attn_v", 0.8),
    ("attn_output", 0.8),
    ("ssm_out", 0.8),
    ("time_mix_output", 0.8),
)
_ALTERNATING = [HEADS, 0]
"""Attention heads of layers, of which some have a recurrent state instead."""
_MLA = {
    "attention.head_count": 1,
    "attention.head_count_kv": 1,
    "attention.key_length": 48,
    "attention.value_length": 32,
    "rope.dimension_count": 16,
    "attention.key_length_mla": 24,
    "attention.value_length_mla": 16,
}
_EXPERTS = {
    "expert_count": 2,
    "expert_used_count": 2,
    "expert_shared_count": 1,
    "expert_feed_forward_length": FFN,
    "expert_shared_feed_forward_length": FFN // 2,
    "expert_gating_func": 2,
    "expert_group_scale": 1.0,
    "experts_per_group": 1,
    "interleave_moe_layer_step": 2,
}
_COMMON: Final[Mapping[str, Any]] = {
    "vocab_size": 259,
    "context_length": CONTEXT,
    "embedding_length": WIDTH,
    "features_length": WIDTH,
    "block_count": LAYERS,
    "feed_forward_length": FFN,
    "leading_dense_block_count": 1,
    "use_parallel_residual": False,
    "logit_scale": 1.0,
    "time_mix_extra_dim": 16,
    "time_decay_extra_dim": 16,
    "full_attention_interval": 2,
    "attention.head_count": HEADS,
    "attention.head_count_kv": HEADS,
    "attention.max_alibi_bias": 8.0,
    "attention.clamp_kqv": 8.0,
    "attention.layer_norm_epsilon": 1e-5,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "attention.group_norm_epsilon": 1e-5,
    "attention.group_norm_groups": 8,
    "attention.q_lora_rank": 32,
    "attention.kv_lora_rank": 32,
    "attention.relative_buckets_count": 8,
    "attention.sliding_window": WINDOW,
    "attention.sliding_window_pattern": 2,
    "rope.dimension_sections": [HEAD // 4] * 4,
    "ssm.inner_size": 2 * WIDTH,
    "ssm.conv_kernel": 4,
    "ssm.state_size": 64,
    "ssm.time_step_rank": HEADS,
    "ssm.group_count": 2,
    "wkv.head_size": HEAD,
    "shortconv.l_cache": 3,
    "kda.head_dim": HEAD,
    "kda.gate_lower_bound": -5.0,
    "residual_scale": 1.0,
}
_RWKV7 = {"wkv.head_size": 64} | {
    f"attention.{name}_lora_rank": 16 for name in ("decay", "iclr", "value_residual_mix", "gate")
}
_PATTERN = {"attention.sliding_window_pattern": [1, 0]}
_INDEXER = {
    "attention.indexer.head_count": 2,
    "attention.indexer.key_length": 32,
    "attention.indexer.top_k": 1024,
    "attention.indexer.block_size": 4,
    "attention.indexer.local_blocks": 1,
}
_LINEAR_MLA = _MLA | {"attention.head_count_kv": [0, 1]}
_SPARSE = _INDEXER | {
    "attention.indexer.head_count": 64,
    "attention.indexer.key_length": 128,
    "attention.indexer.kpool": 4,
    "attention.indexer.kpool_select_tail": True,
}
"""Attention to the tokens that an indexer selects, here all."""
_INDEXED_LAYERS = {"attention.indexer.types": [1, 0]}
_HYPER = {
    "hyper_connection.count": 4,
    "hyper_connection.sinkhorn_iterations": 2,
    "hyper_connection.epsilon": 1e-6,
    "hyper_connection.low_rank": 8,
}
_THREE = {
    "block_count": 3,
    "feed_forward_length": [0, 0, FFN],
    "attention.head_count": [HEADS, 0, HEADS],
    "attention.head_count_kv": [HEADS, 0, HEADS],
}
_HYBRID = {"attention.head_count": _ALTERNATING, "attention.head_count_kv": _ALTERNATING}
COMMON: Final = """
cohere2 deepseek2 falcon-h1 gemma2 gemma3 gemma3n glm4 gpt-oss granite granitehybrid jamba
kimi-linear lfm2 llama llama4 mamba mamba2 minimax-m3 mistral3 olmo2 phi3 plm qwen2 qwen3 qwen35
qwen3moe qwen3next rwkv6 rwkv7
"""
"""Names of one or more architectures of each kind of memory and of attention."""
OTHERS: Final = """
afmoe apertus arcee arctic arwkv7 baichuan bailingmoe bailingmoe2 bailingmoe3 bitnet bloom
chatglm codeshell cohere2moe command-r dbrx deci deepseek deepseek2-ocr deepseek32 deepseek4 dots1
dots3note ernie4_5 ernie4_5-moe exaone exaone-moe exaone4 falcon gemma gemma4 glm-dsa glm4moe
glm5-next gpt2 gptneox granite_swa granitemoe grok grovemoe hrm_text hunyuan-dense hunyuan-moe
hunyuan_vl hy_v3 hy_v4 internlm2 jais jais2 kimi-k3 laguna lfm2moe maincoder maple mellum
mimo2 minicpm minicpm3 minimax-01 minimax-m2 mistral4 mpt muse-glimmer nanbeige nemotron
nemotron_h nemotron_h_moe olmo olmoe openelm orion paddleocr pangu-embedded phi2 phimoe plamo
plamo2 plamo3 qwen qwen2moe qwen2vl qwen35moe qwen3vl qwen3vlmoe qwen4exp refact seed_oss
smallthinker smollm3 spark2_5 stablelm starcoder starcoder2 step35 talkie xverse
"""
"""Names of all others of llama.cpp that generate, but these:

- cogvlm, of which llama.cpp returns wrong rows unless it returns all, and the diffusion models
  (dream, llada, llada-moe, rnd1), which Corral refuses;
- chameleon, whose graph removes 8,192 image tokens from the vocabulary, which has 259 here;
- gptj, which llama.cpp only names; graniteswitch, which needs adapters and tokens of theirs;
- rwkv6qwen2, whose graph needs tensors that llama.cpp calls optional and makes no random ones of;
- t5, which has an encoder (`tests/outside/transformers`), the drafts dflash, eagle3 and
  gemma4-assistant, and speech: pockettts, qwen3tts and wavtokenizer-dec.
"""
ENCODERS: Final = """
bert eurobert gemma-embedding jina-bert-v2 jina-bert-v3 llama-embed modern-bert neo-bert nomic-bert
nomic-bert-moe t5encoder
"""
"""Names of all that only embed."""
_CHANGES: Final[Mapping[str, Mapping[str, Any]]] = {
    **{name: {"attention.causal": False} for name in ENCODERS.split()},
    "arwkv7": _RWKV7 | {"token_shift_count": 1},
    "bailingmoe3": _LINEAR_MLA | {"rope.dimension_sections": [2, 3, 3, 0]},
    "deepseek2": _MLA,
    "deepseek32": _MLA | _SPARSE,
    "deepseek4": {
        "embedding_length": 2 * WIDTH,
        "block_count": 4,
        "expert_gating_func": 4,
        "expert_weights_scale": 1.0,
        "expert_weights_norm": True,
        "swiglu_clamp_exp": 10.0,
        "hash_layer_count": 0,
        "attention.head_count": 8,
        "attention.head_count_kv": 1,
        "attention.key_length": 64,
        "attention.value_length": 64,
        "attention.output_group_count": 8,
        "attention.output_lora_rank": 32,
        "attention.compress_ratios": [0, 0, 4, 128],
        "attention.compress_rope_freq_base": 160000.0,
        "rope.dimension_count": 32,
    }
    | _SPARSE
    | _HYPER,
    "dots3note": {
        "attention.sliding_window_pattern": [0, 1],
        "attention.kv_lora_rank_swa": 32,
        "rope.freq_base_swa": 10000.0,
        **{f"{name}_swa": size for name, size in _MLA.items() if "length" in name},
    }
    | _MLA
    | _SPARSE
    | _INDEXED_LAYERS,
    "gemma4": {
        "embedding_length_per_layer_input": WIDTH // 2,
        "attention.shared_kv_layers": 0,
        "attention.key_length_swa": HEAD,
        "attention.value_length_swa": HEAD,
        "rope.freq_base_swa": 10000.0,
    }
    | _PATTERN,
    "glm-dsa": _MLA | _SPARSE,
    "glm5-next": {
        **_LINEAR_MLA,
        "attention.key_length": 32,
        "attention.compress_ratios": [4, 4],
        "rope.dimension_count": 0,
    }
    | _SPARSE
    | _HYPER,
    "granite_swa": _PATTERN,
    "granitehybrid": _HYBRID,
    "hrm_text": {
        "block_count": 6,
        "hrm.layers_per_stack": 1,
        "hrm.h_cycles": 2,
        "hrm.l_cycles": 2,
    },
    "hy_v4": _MLA | _SPARSE | _INDEXED_LAYERS | _HYPER | {"hyper_connection.magnitude": 2.0},
    "jamba": _HYBRID,
    "kimi-k3": _LINEAR_MLA
    | {
        "expert_latent_length": FFN,
        "attn_res.block_size": 12,
        "activation.situ_beta": 4.0,
        "activation.situ_linear_beta": 25.0,
    },
    "kimi-linear": _LINEAR_MLA,
    "lfm2": _HYBRID,
    "lfm2moe": _HYBRID,
    "llama4": {"block_count": 4},  # its windows are chunks of 8,192 tokens, which no key changes
    "maple": _PATTERN | {"swiglu_clamp_exp": 7.0},
    "mimo2": _PATTERN,
    "minimax-m3": _INDEXER,
    "mistral4": _MLA,
    "nemotron_h": _THREE,
    "nemotron_h_moe": _THREE,
    "plamo2": _HYBRID | {"ssm.group_count": 0},
    "qwen4exp": _INDEXER | _INDEXED_LAYERS | _HYPER,
    "rwkv7": _RWKV7,
    "spark2_5": _PATTERN,
    "step35": _PATTERN,
}


def write_architecture(architecture: str, path: Path, **more: Any) -> Path:
    """Write a model of an architecture in some hundred kilobytes; returns `path`. `more` are
    further fields of its metadata."""
    fields = {**_COMMON, **_EXPERTS, **_CHANGES.get(architecture, {}), **more}
    metadata = {
        "general.architecture": architecture,
        "general.name": "random",  # llama.cpp gives tokens of "phi-3" and others attributes
        **{f"{architecture}.{name}": item for name, item in fields.items() if item is not None},
        **dict.fromkeys(("xielu.alpha_n", "xielu.alpha_p", "xielu.beta", "xielu.eps"), 1.0),
        **byte_vocabulary(),
        "tokenizer.ggml.token_type_count": 2,
    }
    path.write_bytes(gguf_bytes(metadata))
    shapes = _tensors_of(path)
    tensors = [F32Tensor(name, shape) for name, shape in shapes.items()]
    parts = [
        _weights(name, f"{architecture} {name}", shape).tobytes() for name, shape in shapes.items()
    ]
    padded = b"".join(part + bytes(-len(part) % ALIGNMENT) for part in parts)
    blank = gguf_bytes(metadata, tensors)
    path.write_bytes(blank[: len(blank) - len(padded)] + padded)
    return path


class _FileParams(ctypes.Structure):
    _fields_ = [("no_alloc", ctypes.c_bool), ("context", ctypes.c_void_p)]


def _tensors_of(path: Path) -> dict[str, tuple[int, ...]]:
    """The tensors that llama.cpp expects in a model with the metadata of a file."""
    library.start()
    ggml = llama_cpp.llama_cpp._lib
    ggml.gguf_init_from_file.restype = ctypes.c_void_p
    ggml.gguf_init_from_file.argtypes = [ctypes.c_char_p, _FileParams]
    ggml.ggml_get_name.restype = ctypes.c_char_p
    ggml.ggml_get_name.argtypes = [ctypes.c_void_p]
    shapes: dict[str, tuple[int, ...]] = {}

    @llama_cpp.llama_model_set_tensor_data_t  # type: ignore[untyped-decorator]  # of ctypes
    def add(tensor: int, _: int) -> None:
        sizes = (ctypes.c_int64 * _MAX_DIMENSIONS).from_address(tensor + _SHAPE_OFFSET)
        count = max((i + 1 for i, size in enumerate(sizes) if size > 1), default=1)
        shapes[ggml.ggml_get_name(tensor).decode()] = tuple(sizes[:count])

    metadata = ggml.gguf_init_from_file(str(path).encode(), _FileParams(no_alloc=True))
    params = llama_cpp.llama_model_default_params()
    model = llama_cpp.llama_model_init_from_user(metadata, add, None, params)
    if not model:
        raise ValueError(f"llama.cpp makes no model of the metadata in {path}")
    llama_cpp.llama_model_free(model)
    return shapes


def _weights(name: str, seed: str, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """Values with which attention is sharp and layers outweigh the embedding of the last token, so
    that the output depends on the whole context."""
    values = np.random.default_rng(crc32(seed.encode())).standard_normal(shape[::-1])
    if ("norm" in name or "_ln." in name) and name.endswith("weight"):
        values = values * 0.1 + 1.2
    elif "rope" in name:
        values = np.ones(shape[::-1])
    elif "ssm_a" in name:
        values = -np.abs(values) * 0.1  # a state that decays
    else:
        values *= next((scale for part, scale in _SCALES if part in name), 0.25)
    return values.astype("<f4")
