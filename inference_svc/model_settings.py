"""Settings of one model."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from inference_svc.chat.parsers.formats import FormatOverride, ReasoningFormat, ToolCallFormat
from inference_svc.models.placement import FlashAttention, LoadPolicy, RopeScaling, SplitMode
from model_files.ggml_types import KvType
from svc_kit.settings.groups import SettingsGroup


class TurnFormatSettings(SettingsGroup):
    """Output format of a model, if it cannot be detected from the chat template."""

    tool_calls: ToolCallFormat | None = None
    """The tool-call format. Unset: detected from the chat template."""
    reasoning: ReasoningFormat | None = None
    """The reasoning format. Unset: detected from the chat template."""
    starts_in_reasoning: bool | None = None
    """Whether every turn starts with reasoning although the prompt does not open it."""

    def as_override(self) -> FormatOverride:
        """Convert to the type of the chat package."""
        return FormatOverride(self.tool_calls, self.reasoning, self.starts_in_reasoning)


class SamplingSettings(SettingsGroup):
    """A model's sampling defaults, used where a request sets no value. An unset field falls back to
    the model file's metadata, then to llama.cpp's default."""

    temperature: float | None = None
    """Flattens (above 1) or sharpens (below 1) the distribution; 0 selects the likeliest token."""
    top_k: int | None = None
    """Sample from this number of likeliest tokens; 0 for all."""
    top_p: float | None = None
    """Sample from the likeliest tokens with this cumulative probability."""
    min_p: float | None = None
    """Sample from tokens with at least this fraction of the highest probability."""
    typical_p: float | None = None
    """Sample from the most typical tokens with this cumulative probability."""
    repetition_penalty: float | None = None
    """Divides the logits of tokens that occurred before."""
    frequency_penalty: float | None = None
    """Subtracted from a token's logit for each occurrence."""
    presence_penalty: float | None = None
    """Subtracted from a token's logit if it occurred before."""
    penalty_last_n: int | None = None
    """Number of recent tokens to which the penalties apply; -1 for all."""


class ModelSettings(SettingsGroup):
    """One model. Unset fields are those of [inference.engine]."""

    aliases: tuple[str, ...] = ()
    """Other names that requests may use."""
    load: LoadPolicy = LoadPolicy.START
    """When it is loaded: at startup, by the first request, or only by an operator."""
    pinned: bool = False
    """Whether it is never evicted for other models."""
    idle_ttl_s: float | None = Field(None, ge=1)
    """How long it stays loaded without requests, unless it is pinned. Unset: until its memory is
    needed."""
    slots: int | None = Field(None, ge=1, le=256)
    """Sequences that run at once."""
    context_tokens: int | None = Field(None, ge=256)
    """Context of one sequence, prompt and output."""
    batch_tokens: int | None = Field(None, ge=32, le=65536)
    """Maximum tokens of one decode call."""
    layout: Literal["auto", "streams", "unified"] | None = None
    """Whether each slot has its own part of the KV cache, or all share it."""
    threads: int | None = Field(None, ge=1, le=1024)
    """Compute threads."""
    gpu_layers: int | None = Field(None, ge=-1)
    """Layers on a GPU, counted from the last; -1 for all. With 0, only devices named in `devices`
    are used."""
    devices: tuple[str, ...] = ()
    """Devices of the model, by ggml names such as CUDA0. Empty: all devices."""
    split_mode: SplitMode = SplitMode.LAYER
    """How the model is split across several devices."""
    tensor_split: tuple[Annotated[float, Field(ge=0, allow_inf_nan=False)], ...] = ()
    """The share of each device. Empty: proportional to free memory."""
    main_device: int = Field(0, ge=0)
    """Index of the device that holds the model with split_mode none."""
    map_file: bool = False
    """Whether the weights are mapped from the file (mmap) instead of copied into huge pages, so
    that services on one machine share them. Up to an eighth slower."""
    lock_memory: bool = False
    """Whether the weights are locked in memory, which prevents swapping."""
    kv_type_k: KvType = KvType.F16
    """Type of the keys in the KV cache."""
    kv_type_v: KvType = KvType.F16
    """Type of the values in the KV cache; a quantized type needs flash attention."""
    flash_attention: FlashAttention = FlashAttention.AUTO
    """Whether flash attention is used."""
    rope_scaling: RopeScaling | None = None
    """RoPE scaling beyond the trained context. Unset: that of the model's file."""
    rope_frequency_base: float | None = Field(None, gt=0)
    """The RoPE base frequency. Unset: that of the model's file."""
    rope_frequency_scale: float | None = Field(None, gt=0)
    """The RoPE frequency scale; 0.5 doubles the context. Unset: that of the model's file."""
    rope_original_context: int | None = Field(None, ge=1)
    """The trained context in tokens, for YaRN. Unset: that of the model's file."""
    pooling: Literal["mean", "cls", "last"] | None = None
    """How token vectors are pooled to one embedding."""
    projector: str = Field("auto", min_length=1)
    """Its multimodal projector, which encodes pictures or sounds: a file, or
    hf:owner/repo/file.gguf. auto: the file beside the model whose name contains "mmproj", if there
    is exactly one. none: the model reads text only."""
    draft_model: str | None = Field(None, min_length=1)
    """A small model with the same vocabulary, whose drafts it verifies: a file,
    hf:owner/repo/file.gguf, or bundled, that of the bundled model. It is loaded with the model, and
    used while measured times predict a gain. Unset: drafts come from the text so far only."""
    image_min_tokens: int | None = Field(None, ge=1, le=65536)
    """Minimum tokens of a picture, for projectors with a dynamic size; smaller pictures are scaled
    up. Unset: that of the projector."""
    image_max_tokens: int | None = Field(None, ge=1, le=65536)
    """Maximum tokens of a picture, for projectors with a dynamic size; larger pictures are scaled
    down. Unset: that of the projector."""
    sampling: SamplingSettings = SamplingSettings()
    """Default sampling of requests."""

    @model_validator(mode="after")
    def _image_tokens_are_in_order(self) -> Self:
        minimum, maximum = self.image_min_tokens, self.image_max_tokens
        if minimum is not None and maximum is not None and minimum > maximum:
            raise ValueError("image_min_tokens: more than image_max_tokens")
        return self

    @model_validator(mode="after")
    def _values_can_be_quantized(self) -> Self:
        if self.kv_type_v.is_quantized and self.flash_attention is FlashAttention.OFF:
            raise ValueError("kv_type_v: a quantized type needs flash_attention")
        return self
