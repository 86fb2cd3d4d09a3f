"""Settings of the inference service."""

from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator
from pydantic_settings import SettingsConfigDict

from inference_svc.chat.parsers import FormatOverride, ReasoningFormat, ToolCallFormat
from inference_svc.models.placement import FlashAttention, LoadPolicy, RopeScaling, SplitMode
from model_files.ggml_types import KvType
from svc_kit.settings.groups import (
    KeyCacheSeconds,
    KeySettings,
    ListenAddress,
    ServerSettings,
    ServiceSettings,
    SettingsGroup,
    TlsSettings,
    UpstreamTlsSettings,
    default_data_dir,
)


class EngineSettings(SettingsGroup):
    """The engine: sizes that memory pays for, and bounds on what may wait."""

    slots: int | None = Field(None, ge=1, le=256)
    """Sequences of a model that run at once. Unset: from the machine's memory."""
    context_tokens: int | None = Field(None, ge=256)
    """The context of one sequence, prompt and output. Unset: from memory and the model."""
    batch_tokens: int = Field(2048, ge=32, le=65536)
    """The most tokens of one decode call."""
    ubatch_tokens: int | None = Field(None, ge=32, le=65536)
    """The most tokens of one compute batch, whose buffers are memory. Unset: 256, which processors
    compute as fast as more; 512 where llama.cpp can use a GPU."""
    prefill_chunk_tokens: int = Field(512, ge=16, le=65536)
    """The most prompt tokens of a step, where the policy is not throughput_first. Where nobody
    decodes a step takes ubatch_tokens at most: whoever comes waits for its end."""
    layout: Literal["auto", "streams", "unified"] = "auto"
    """Whether each slot has its own part of the KV cache (streams: fast, but slots x context are
    reserved) or all share it (unified). auto: streams, where they fit into memory."""
    policy: Literal["latency_first", "balanced", "throughput_first"] = "balanced"
    """Prompts beside others that generate: latency_first holds token_target_ms, balanced does
    unless prompts would crawl, throughput_first computes prompts as fast as it can."""
    token_target_ms: int = Field(100, ge=1)
    """The time between two tokens that prompt chunks are sized to hold."""
    stream_interval_ms: int | None = Field(None, ge=0, le=1000)
    """How long a stream's tokens, after its first, may wait to be sent together: below what a
    reader notices, and a processor has less to do for each. With more than ten streams it grows as
    their number does, to twice as long. 0 sends every token by itself. Unset: 40, and 80 where the
    engine computes on every core."""
    draft_tokens: int = Field(16, ge=0, le=256)
    """The most tokens of a step that are guessed from the text so far and verified, all sequences
    together; memory for their logits is reserved. 0 turns drafts off."""
    threads: int | None = Field(None, ge=1, le=1024)
    """Threads that compute. Unset: measured at warm-up."""
    gpu_layers: int = Field(-1, ge=-1)
    """Layers kept on a GPU where llama.cpp has one; -1 for all."""
    queued_requests: int = Field(256, ge=0)
    """Sequences of a model that may wait for a slot."""
    queued_tokens: int = Field(1_000_000, ge=0)
    """Prompt tokens of a model that may wait for a slot."""
    adapter_wait_ms: int = Field(50, ge=0)
    """How long sequences with other adapters keep the engine while some wait for their turn; more
    urgent ones wait for one step."""
    saved_prefix_mib: int | None = Field(None, ge=0)
    """Memory of a model for prefixes that lost their slot; 0 keeps none. Unset: from memory."""
    pooling: Literal["mean", "cls", "last"] | None = None
    """How token vectors become one embedding. Unset: as the model's file says; where it says
    nothing, the mean for an encoder and the last token for a model that generates."""
    warm_up_s: float = Field(3.0, ge=0)
    """The most time spent on measuring step times."""
    unread_events: int = Field(512, ge=8)
    """Unread events at which a stream's generation pauses."""
    reader_patience_s: float = Field(60.0, gt=0)
    """How long a stream may stay paused before it ends."""
    abort_on: str | None = Field(None, min_length=1)
    """For tests of what survives, and for nothing else: the engine process aborts when it gets a
    request that has this among its stop texts. Unset: no request does that."""


class SnapshotSettings(SettingsGroup):
    """Saved sequences on disk."""

    folder: Path | None = None
    """Where they are kept; one server's own. Unset: snapshots/ in data_dir."""
    max_mib: int = Field(4096, ge=0)
    """Their size on disk; the least recently used make room. 0 keeps none."""
    max_files: int = Field(256, ge=0)
    """How many there may be."""
    archive_mib: int = Field(1024, ge=0)
    """The size on disk of what was computed for stored objects (threads, conversations, responses)
    and has no room in memory any more; the least recently used goes. 0 keeps none."""
    archive_files: int = Field(256, ge=0)
    """How many sequences of stored objects there may be on disk."""


class LimitSettings(SettingsGroup):
    """Bounds on one request."""

    prompt_bytes: int = Field(8 << 20, ge=1024)
    """The longest prompt or text to tokenize, in UTF-8."""
    messages: int = Field(10_000, ge=1)
    """The most messages of a conversation."""
    caller_templates: bool = False
    """Whether a request may bring its own chat template."""


class AdapterSettings(SettingsGroup):
    """A LoRA adapter that is loaded at the start."""

    path: str = Field(min_length=1)
    """Its file. A relative one that is not there is looked for in the adapter folders."""
    model: str = ""
    """The model it is for. Empty: the first."""
    digest: str = ""
    """The SHA-256 that the file must have. Empty: not checked."""
    scale: float = 1.0
    """The default scale of the adapter."""


class TurnFormatSettings(SettingsGroup):
    """How a model writes turns, where its chat template misleads."""

    tool_calls: ToolCallFormat | None = None
    """The tool-call format. Unset: detected from the chat template."""
    reasoning: ReasoningFormat | None = None
    """The reasoning format. Unset: detected from the chat template."""
    starts_in_reasoning: bool | None = None
    """Whether every turn starts with reasoning although the prompt does not open it."""

    def as_override(self) -> FormatOverride:
        """What the chat package takes."""
        return FormatOverride(self.tool_calls, self.reasoning, self.starts_in_reasoning)


class SamplingSettings(SettingsGroup):
    """A model's sampling defaults, used where a request sets no value. An unset field falls back to
    the model file's metadata, then to llama.cpp's default.
    """

    temperature: float | None = None
    """Flattens (above 1) or sharpens (below 1) the distribution; 0 takes the likeliest token."""
    top_k: int | None = None
    """Only the so many likeliest tokens; 0 for all."""
    top_p: float | None = None
    """Only the likeliest tokens that together have this probability."""
    min_p: float | None = None
    """Only tokens with this part of the likeliest one's probability."""
    typical_p: float | None = None
    """Only the tokens of typical information that together have this probability."""
    repetition_penalty: float | None = None
    """Divides the logits of tokens that occurred before."""
    frequency_penalty: float | None = None
    """Subtracted from a token's logit for each occurrence."""
    presence_penalty: float | None = None
    """Subtracted from a token's logit if it occurred before."""
    penalty_last_n: int | None = None
    """How many tokens the penalties look back; -1 for all."""


class ModelSettings(SettingsGroup):
    """One model. Unset fields are those of [inference.engine]."""

    aliases: tuple[str, ...] = ()
    """Other names that requests may use."""
    load: LoadPolicy = LoadPolicy.START
    """When it is loaded: at the start, by the first request, or by an operator only."""
    pinned: bool = False
    """Whether it stays in memory when others need room."""
    slots: int | None = Field(None, ge=1, le=256)
    """Sequences that run at once."""
    context_tokens: int | None = Field(None, ge=256)
    """The context of one sequence, prompt and output."""
    batch_tokens: int | None = Field(None, ge=32, le=65536)
    """The most tokens of one decode call."""
    layout: Literal["auto", "streams", "unified"] | None = None
    """Whether each slot has its own part of the KV cache, or all share it."""
    threads: int | None = Field(None, ge=1, le=1024)
    """Threads that compute."""
    gpu_layers: int | None = Field(None, ge=-1)
    """Layers kept on a GPU, from the last; -1 for all. With 0 none is touched that is not named."""
    devices: tuple[str, ...] = ()
    """The devices that hold it, by ggml's names, such as CUDA0. Empty: all there are."""
    split_mode: SplitMode = SplitMode.LAYER
    """How several devices share it."""
    tensor_split: tuple[Annotated[float, Field(ge=0, allow_inf_nan=False)], ...] = ()
    """The share of each device. Empty: by their memory."""
    main_device: int = Field(0, ge=0)
    """The device that has all of it with split_mode none, by its place among them."""
    map_file: bool = False
    """Whether its weights stay in its file, mapped, where they would otherwise be copied into huge
    pages: for services of one machine that share a model. Up to an eighth slower."""
    lock_memory: bool = False
    """Whether its weights are kept from being swapped out."""
    kv_type_k: KvType = KvType.F16
    """What the keys of the KV cache are kept in."""
    kv_type_v: KvType = KvType.F16
    """What its values are kept in; a quantized type needs flash attention."""
    flash_attention: FlashAttention = FlashAttention.AUTO
    """Whether attention is one fused operation."""
    rope_scaling: RopeScaling | None = None
    """RoPE scaling beyond the trained context. Unset: that of the model's file."""
    rope_frequency_base: float | None = Field(None, gt=0)
    """The RoPE base frequency. Unset: that of the model's file."""
    rope_frequency_scale: float | None = Field(None, gt=0)
    """The RoPE frequency scale; 0.5 doubles the context. Unset: that of the model's file."""
    rope_original_context: int | None = Field(None, ge=1)
    """The trained context in tokens, for YaRN. Unset: that of the model's file."""
    pooling: Literal["mean", "cls", "last"] | None = None
    """How token vectors become one embedding."""
    sampling: SamplingSettings = SamplingSettings()
    """Default sampling of requests."""

    @model_validator(mode="after")
    def _values_can_be_quantized(self) -> Self:
        if self.kv_type_v.is_quantized and self.flash_attention is FlashAttention.OFF:
            raise ValueError("kv_type_v: a quantized type needs flash_attention")
        return self


class PrefixGroupSettings(SettingsGroup):
    """Projects that share computed prefixes."""

    projects: list[str] = Field(min_length=1)
    """Projects of the group. Each can infer from cached tokens what the others send."""


class PoolSettings(SettingsGroup):
    """The models in memory."""

    memory_mib: int | None = Field(None, ge=1)
    """What all models together may take, measured, memory of GPUs included. Unset: what is
    available at the start, of the machine and of GPUs."""
    load_wait_s: float = Field(120.0, ge=0)
    """How long a request waits for its model to be loaded."""
    memory_wait_s: float = Field(10.0, ge=0)
    """How long a load waits for memory that models in use hold."""


class InferenceSettings(ServiceSettings):
    """Settings of the inference service."""

    model_config = SettingsConfigDict(env_prefix="CORRAL_INFERENCE_")
    toml_table: ClassVar[str] = "inference"

    listen: ListenAddress = "127.0.0.1:50051"
    """Where gRPC is served."""
    management_listen: ListenAddress | None = "127.0.0.1:50061"
    """Where /metrics, /healthz and /readyz are served. "none": nowhere."""
    models: list[str] = Field(["bundled"], min_length=1)
    """Models: a file, a folder, hf:owner/repo/file.gguf or "bundled"; NAME=SOURCE names one."""
    turn_formats: dict[str, TurnFormatSettings] = Field(default_factory=dict)
    """By a model's name: how it writes tool calls and thinking, where its template misleads."""
    adapters: dict[str, AdapterSettings] = Field(default_factory=dict)
    """By name: LoRA adapters to load at the start. More can be loaded while the server runs."""
    adapter_folders: list[Path] = Field([])
    """Where files of adapters that are loaded at run time may lie, beside the data folder's
    "adapters" and the bundled ones."""
    adapter_cache_mib: int = Field(16_384, ge=1)
    """What the adapters that the control service wants here may take on disk, in data_dir."""
    per_model: dict[str, ModelSettings] = Field(default_factory=dict)
    """By a model's name: what differs from the others."""
    prefix_groups: dict[str, PrefixGroupSettings] = Field(default_factory=dict)
    """Groups of projects that share computed prefixes, by name. Other projects share with none."""
    pool: PoolSettings = PoolSettings()
    """The models in memory."""
    data_dir: Path = Field(default_factory=default_data_dir)
    """Where downloaded models and snapshots are kept."""
    keys: list[KeySettings] = Field(default_factory=list)
    """API keys that are accepted."""
    service_token_file: Path | None = None
    """The installation's own credential, which the gateway presents."""
    allow_keyless: bool = False
    """Serve without keys beyond the loopback interface."""
    require_keys: bool = False
    """Require an API key, also on loopback; keys of `corral keys create` count."""
    control_target: str | None = "127.0.0.1:50052"
    """The control service, host:port: it knows further keys, says which adapters to load, and is
    told what was used. It is asked only with a service_token_file. "none": there is none."""
    control_tls: UpstreamTlsSettings | None = None
    """TLS towards it. Unset: plain."""
    key_cache_s: KeyCacheSeconds = 30.0
    """How long what the control service says of a key counts, and so how long a revoked one may
    still be used."""
    usage_interval_s: float = Field(5.0, gt=0)
    """How often usage is reported to the control service; a crash loses at most this much."""
    tls: TlsSettings | None = None
    """Serve over TLS."""
    log_level: str = "info"
    """debug, info, warning or error."""
    engine: EngineSettings = EngineSettings()
    """The engine."""
    snapshots: SnapshotSettings = SnapshotSettings()
    """Saved sequences on disk."""
    limits: LimitSettings = LimitSettings()
    """Bounds on one request."""
    server: ServerSettings = ServerSettings()
    """The gRPC server."""

    @model_validator(mode="after")
    def _projects_have_one_group(self) -> Self:
        seen: set[str] = set()
        for name, group in self.prefix_groups.items():
            if twice := seen & set(group.projects):
                raise ValueError(f"prefix_groups.{name}: {min(twice)} is in another group too")
            seen |= set(group.projects)
        return self
