"""Attention settings of a context: flash attention, RoPE scaling, cache types."""

import ctypes
from dataclasses import fields
from typing import Any

import llama_cpp

from inference_svc.models.placement import Attention, FlashAttention, Rope, RopeScaling
from model_files.ggml_types import TENSOR_LAYOUTS

_FLASH_ATTENTION = {
    FlashAttention.AUTO: llama_cpp.LLAMA_FLASH_ATTN_TYPE_AUTO,
    FlashAttention.ON: llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED,
    FlashAttention.OFF: llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED,
}
_ROPE_SCALING = {
    RopeScaling.NONE: llama_cpp.LLAMA_ROPE_SCALING_TYPE_NONE,
    RopeScaling.LINEAR: llama_cpp.LLAMA_ROPE_SCALING_TYPE_LINEAR,
    RopeScaling.YARN: llama_cpp.LLAMA_ROPE_SCALING_TYPE_YARN,
}


_WITHOUT_FLASH_ATTENTION = frozenset({"plm"})
"""Architectures whose graphs end the process with flash attention. llama.cpp itself turns it off
for Grok only."""


def architecture_of(model: Any) -> str:
    """The `general.architecture` of a model."""
    value = ctypes.create_string_buffer(128)
    llama_cpp.llama_model_meta_val_str(model, b"general.architecture", value, 128)
    return value.value.decode(errors="replace")


def set_attention(params: Any, model: Any, attention: Attention) -> None:
    """Write all attention settings for a model into `llama_context_params`."""
    params.type_k = attention.key_type.number
    params.type_v = attention.value_type.number
    set_flash_attention_and_rope(params, model, attention)


def cell_format(attention: Attention) -> str:
    """Describe what KV cells depend on besides model and tokens: the types of keys and values, and
    the RoPE settings that the operator has set."""
    types = (
        TENSOR_LAYOUTS[kind.number].name for kind in (attention.key_type, attention.value_type)
    )
    rope = ((field.name, getattr(attention.rope, field.name)) for field in fields(Rope))
    return " ".join(["/".join(types), *(f"{name}={it}" for name, it in rope if it is not None)])


def set_flash_attention_and_rope(params: Any, model: Any, attention: Attention) -> None:
    """Write the settings without the cache types, for a context whose KV cache is small."""
    is_off = architecture_of(model) in _WITHOUT_FLASH_ATTENTION
    kind = FlashAttention.OFF if is_off else attention.flash_attention
    params.flash_attn_type = _FLASH_ATTENTION[kind]
    rope = attention.rope
    if rope.scaling is not None:
        params.rope_scaling_type = _ROPE_SCALING[rope.scaling]
    if rope.frequency_base is not None:
        params.rope_freq_base = rope.frequency_base
    if rope.frequency_scale is not None:
        params.rope_freq_scale = rope.frequency_scale
    if rope.original_context is not None:
        params.yarn_orig_ctx = rope.original_context
