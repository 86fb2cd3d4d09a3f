"""Settings of the inference service."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import Field, model_validator

from inference_svc.chat.vendor_lines import VendorLine
from inference_svc.model_settings import ModelSettings, TurnFormatSettings
from inference_svc.models.sources import BUNDLED_FOLDER
from inference_svc.upstream_settings import EngineHost, UpstreamName, UpstreamSettings
from svc_kit.settings.access_settings import AccessSettings
from svc_kit.settings.checks import Problem
from svc_kit.settings.groups import (
    KeyCacheSeconds,
    ListenAddress,
    ServerSettings,
    ServiceTlsSettings,
    SettingsGroup,
    TargetAddress,
    TracingSettings,
    UpstreamTlsSettings,
    default_data_dir,
)

MediaHost = Annotated[
    str, Field(pattern=r"^(\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*(:[0-9]{1,5})?$")
]


class EngineSettings(SettingsGroup):
    """The engine: sizes, scheduling and queue limits."""

    slots: int | None = Field(None, ge=1, le=256)
    """Sequences of a model that run at once. Unset: chosen from the available memory."""
    context_tokens: int | None = Field(None, ge=256)
    """Context of one sequence, prompt and output. Unset: chosen from memory and the model."""
    batch_tokens: int = Field(2048, ge=32, le=65536)
    """Maximum tokens of one decode call."""
    ubatch_tokens: int | None = Field(None, ge=32, le=65536)
    """Maximum tokens of one compute batch; its buffers need memory. Unset: 512 if llama.cpp can use
    a GPU, else 256, because larger batches are not faster on CPUs."""
    prefill_chunk_tokens: int = Field(512, ge=16, le=65536)
    """Maximum prompt tokens of a step, unless the policy is throughput_first. While no sequence
    decodes, the limit is at most ubatch_tokens, because new requests wait for the end of a step."""
    layout: Literal["auto", "streams", "unified"] = "auto"
    """Whether each slot has its own part of the KV cache (streams: fast, but slots x context are
    reserved) or all share it (unified). auto: streams if they fit into memory."""
    policy: Literal["latency_first", "balanced", "throughput_first"] = "balanced"
    """How prompts are computed while other sequences generate: latency_first meets token_target_ms,
    balanced meets it unless prompts would become very slow, throughput_first computes prompts as
    fast as possible."""
    token_target_ms: int = Field(100, ge=1)
    """Target time between two tokens, from which prompt chunks are sized."""
    stream_interval_ms: int | None = Field(None, ge=0, le=1000)
    """How long the tokens of a stream, after its first, are buffered to be sent together, which
    reduces CPU load. With more than 16 streams the interval grows with their number, to at most
    twice this value. 0 sends every token by itself. Unset: each token is sent when it is computed,
    and at most 20 ms later while the frontend lacks the CPU time to keep up."""
    draft_tokens: int = Field(16, ge=0, le=256)
    """Maximum draft tokens of a step for all sequences together, predicted from the text so far and
    then verified; memory for their logits is reserved. 0 disables drafts. The log probabilities of
    as many prompt tokens, and of one a slot, are computed in a step."""
    threads: int | None = Field(None, ge=1, le=1024)
    """Compute threads. Unset: measured at warm-up."""
    gpu_layers: int = Field(-1, ge=-1)
    """Layers on a GPU, if llama.cpp has one; -1 for all."""
    queued_requests: int = Field(256, ge=0)
    """Maximum sequences of a model that wait for a slot. While as many wait, those of a project
    with less than its share are still accepted: this number divided by the projects that wait."""
    queued_tokens: int = Field(1_000_000, ge=0)
    """Maximum prompt tokens of a model that wait for a slot, with shares as above."""
    adapter_wait_ms: int = Field(50, ge=0)
    """How long sequences with other adapters may use the engine while some wait for their turn;
    those with a higher priority wait for one step."""
    saved_prefix_mib: int | None = Field(None, ge=0)
    """Memory of a model for cached prefixes without a slot; 0 disables it. Unset: an eighth of the
    available memory, at most 8 GiB, divided by the models. A longer prefix is not archived."""
    pooling: Literal["mean", "cls", "last"] | None = None
    """How token vectors are pooled to one embedding. Unset: from the model's file; else the mean
    for an encoder and the last token for a model that generates."""
    warm_up_s: float = Field(3.0, ge=0)
    """Maximum time spent on measuring step times."""
    unread_events: int = Field(512, ge=8)
    """Unread events at which the generation of a stream is paused."""
    reader_patience_s: float = Field(60.0, gt=0)
    """How long a stream may stay paused before it fails."""
    abort_on: str | None = Field(None, min_length=1)
    """Only for tests of crash recovery: the engine process aborts when it gets a request with this
    stop text. Unset: never."""


class MediaSettings(SettingsGroup):
    """Pictures and sounds in requests, for models with a projector and for engines of others."""

    vectors_mib: int = Field(512, ge=1)
    """Maximum disk space for encoded pictures and sounds of a model. Those in use and those that
    were seen lately are kept."""
    folder: Path | None = None
    """Folder for them, emptied when the service ends. Unset: the system's temporary folder."""
    encoder_threads: int | None = Field(None, ge=1, le=1024)
    """Threads that encode pictures and sounds, at a low priority. Unset: as many as cores."""
    queued: int = Field(256, ge=1)
    """Maximum number of pictures and sounds of a model that wait to be encoded."""
    encode_timeout_s: float = Field(600.0, gt=0)
    """How long the encoding of one picture or sound may take, with the time in which it is stopped
    beside streams."""
    forwarded_mib: int = Field(256, ge=1)
    """Maximum size of the pictures, in base64, that requests to a model in text mode hold until its
    engine has answered, with shares as in engine.queued_requests."""


class SnapshotSettings(SettingsGroup):
    """Saved sequences on disk."""

    folder: Path | None = None
    """Folder of snapshots; one per server. Unset: snapshots/ in data_dir."""
    max_mib: int = Field(4096, ge=0)
    """Maximum size on disk; the least recently used are deleted. 0 disables snapshots."""
    max_files: int = Field(256, ge=0)
    """Maximum number of snapshots."""
    archive_scope: Literal["stored", "all"] = "stored"
    """Which prefixes are also kept on disk, for restarts and for what does not fit into memory:
    those of stored objects (threads, conversations, responses), or all, also of stateless requests.
    `corral up` with loopback addresses sets all, unless this is set."""
    archive_mib: int = Field(8192, ge=0)
    """Maximum size of cached prefixes on disk; the least recently used are deleted. A twentieth of
    the disk, at most 2 GiB, stays free. 0 disables it."""
    archive_files: int = Field(256, ge=0)
    """Maximum number of cached prefixes on disk."""
    archive_age_s: float = Field(604_800.0, gt=0)
    """How long the prefix of a stateless request stays on disk after its last use."""


class LimitSettings(SettingsGroup):
    """Limits of one request."""

    prompt_bytes: int = Field(8 << 20, ge=1024)
    """Maximum size of a prompt or a text to tokenize, in UTF-8."""
    messages: int = Field(10_000, ge=1)
    """Maximum number of messages of a conversation."""
    caller_templates: bool = False
    """Whether a request may contain its own chat template."""
    image_pixels: int = Field(40_000_000, ge=1, le=40_000_000)
    """Maximum number of pixels of a picture."""
    audio_s: float = Field(600.0, gt=0, le=900)
    """Maximum duration of a sound."""
    media_hosts: list[MediaHost] = Field([])
    """Hosts from which pictures, sounds and documents are fetched by their http or https URLs:
    names such as "images.example.com", or "*.example.com" for all names that end like this, each
    with its port if it is not the usual one. A name may have a private address; a name that only
    matches a suffix may not."""


class AdapterSettings(SettingsGroup):
    """A LoRA adapter that is loaded at startup."""

    path: str = Field(min_length=1)
    """Its file. A relative path that does not exist is searched in the adapter folders."""
    model: str = ""
    """Its base model. Empty: the first model."""
    digest: str = ""
    """The expected SHA-256 of the file. Empty: not checked."""
    scale: float = 1.0
    """The default scale of the adapter."""


_UPSTREAM_OPTIONS: Final = frozenset({"aliases", "load", "sampling"})
"""Of `ModelSettings`: those that apply to the model of an upstream."""


class PrefixGroupSettings(SettingsGroup):
    """Projects that share cached prefixes."""

    projects: list[str] = Field(min_length=1)
    """Projects of the group. Each can infer from cached tokens what the others send."""


class VllmEngineSettings(SettingsGroup):
    """The gRPC service vllm.grpc.engine.VllmEngine, by which routers such as SMG use a model."""

    enabled: bool = False
    """Whether it is served, on `listen`."""
    model: str = ""
    """The model that it serves, by its name or an alias in the settings. Empty: the default
    model."""
    tokenizer: str = ""
    """What GetTokenizer sends, so that routers have the model's tokenizer: a folder of Hugging Face
    files or hf:owner/repository. It is compared with the model's. Empty: the folder of an upstream,
    else nothing."""


class PoolSettings(SettingsGroup):
    """The models that are loaded at the same time."""

    memory_mib: int | None = Field(None, ge=1)
    """Maximum measured memory of all models together, including GPU memory. Unset: the memory of
    the machine and its GPUs that is available at startup."""
    load_wait_s: float = Field(120.0, ge=0)
    """How long a request waits for its model to load."""
    memory_wait_s: float = Field(10.0, ge=0)
    """How long a load waits for memory of models in use."""


class InferenceSettings(AccessSettings):
    toml_table: ClassVar[str] = "inference"

    listen: ListenAddress = "127.0.0.1:50051"
    """Where gRPC is served."""
    management_listen: ListenAddress | None = "127.0.0.1:50061"
    """Where /metrics, /healthz and /readyz are served. "none": nowhere."""
    models: list[str] = Field(["bundled"])
    """Models: a file, a folder, hf:owner/repo/file.gguf or "bundled"; NAME=SOURCE names one. Unset,
    with upstreams: none."""
    upstreams: dict[UpstreamName, UpstreamSettings] = Field(default_factory=dict)
    """Engines of others, such as vLLM, that serve models, by the names of these in requests. They
    come before `models`: the first is the default model."""
    upstream_hosts: list[EngineHost] = Field([])
    """Hosts from whose URLs operators may add upstreams at run time, each with its port if it is
    not the usual one. They may have private addresses, so no suffixes are allowed."""
    download_folder: Path | None = None
    """Cache of models from Hugging Face; services may share it. Unset: models/ in data_dir."""
    model_folders: list[Path] = Field([])
    """Folders from which operators may add models at run time."""
    model_hosts: list[MediaHost] = Field([])
    """Hosts from whose http or https URLs operators may add models at run time, as in
    limits.media_hosts."""
    turn_formats: dict[str, TurnFormatSettings] = Field(default_factory=dict)
    """Output formats (tool calls, reasoning) by model name, if detection fails."""
    adapters: dict[str, AdapterSettings] = Field(default_factory=dict)
    """LoRA adapters to load at startup, by name. More can be loaded while the server runs."""
    adapter_folders: list[Path] = Field([])
    """Folders from which adapters may be loaded at run time, in addition to "adapters" in data_dir
    and the bundled ones."""
    adapter_cache_mib: int = Field(16_384, ge=1)
    """Maximum size of the cache, in data_dir, of adapters assigned by the control service."""
    per_model: dict[str, ModelSettings] = Field(default_factory=dict)
    """Settings of single models, by name."""
    removed_prompt_lines: list[VendorLine] = Field(["claude-code-billing-header"])
    """Lines that known programs write before their system prompt for the servers of their vendor,
    and that are removed, by name: the billing header of Claude Code, which changes with each
    request, so that no prefix could be reused. []: none."""
    prefix_groups: dict[str, PrefixGroupSettings] = Field(default_factory=dict)
    """Groups of projects that share cached prefixes, by name. Other projects share none."""
    pool: PoolSettings = PoolSettings()
    """The pool of loaded models."""
    data_dir: Path = Field(default_factory=default_data_dir)
    """Folder of downloaded models, adapters and snapshots."""
    service_token_file: Path | None = None
    """File with the service token, by which Corral's services authenticate each other."""
    control_target: TargetAddress | None = "127.0.0.1:50052"
    """The control service, host:port, or of several processes gRPC's list, ipv4:IP:port,IP:port,
    for stored keys, desired adapters and usage reports. Used only with a service_token_file.
    "none": no control service."""
    control_tls: UpstreamTlsSettings | None = None
    """TLS to the control service. Unset: plain text."""
    key_cache_s: KeyCacheSeconds = 30.0
    """How long keys of the control service are cached; a revoked key may be used that long."""
    usage_interval_s: float = Field(5.0, gt=0)
    """How often usage is reported to the control service. What is not reported is in data_dir, and
    reported after a crash."""
    limits_grace_s: float = Field(300.0, ge=0)
    """How long requests with a limit are served while the control service is away."""
    tls: ServiceTlsSettings | None = None
    """Serve over TLS."""
    tracing: TracingSettings = TracingSettings()
    """Traces for OpenTelemetry."""
    engine: EngineSettings = EngineSettings()
    """The engine."""
    media: MediaSettings = MediaSettings()
    """Pictures and sounds."""
    snapshots: SnapshotSettings = SnapshotSettings()
    """Saved sequences on disk."""
    limits: LimitSettings = LimitSettings()
    """Limits of one request."""
    vllm_engine: VllmEngineSettings = VllmEngineSettings()
    """The service for routers."""
    server: ServerSettings = ServerSettings()
    """The gRPC server."""

    @model_validator(mode="after")
    def _projects_have_one_group(self) -> Self:
        grouped: set[str] = set()
        for name, group in self.prefix_groups.items():
            if repeated := grouped & set(group.projects):
                raise ValueError(f"prefix_groups.{name}: {min(repeated)} is in another group too")
            grouped |= set(group.projects)
        return self

    @model_validator(mode="before")
    @classmethod
    def _upstreams_replace_the_demo(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("upstreams") and "models" not in values:
            return {**values, "models": []}
        return values

    @model_validator(mode="after")
    def _has_models(self) -> Self:
        if not (self.models or self.upstreams):
            raise ValueError("models: name at least one, or an upstream")
        return self

    @model_validator(mode="after")
    def _draft_models_draft(self) -> Self:
        for name, model in self.per_model.items():
            if model.draft_model is not None and not self.engine.draft_tokens:
                raise ValueError(
                    f"per_model.{name}.draft_model: engine.draft_tokens is 0, so that nothing is "
                    "drafted"
                )
        return self

    @model_validator(mode="after")
    def _upstreams_have_only_settings_of_requests(self) -> Self:
        for name in self.upstreams.keys() & self.per_model.keys():
            for setting in sorted(self.per_model[name].model_fields_set - _UPSTREAM_OPTIONS):
                allowed = ", ".join(sorted(_UPSTREAM_OPTIONS))
                raise ValueError(
                    f"per_model.{name}.{setting}: {name!r} is an upstream, whose engine has its own"
                    f" settings; of per_model it has {allowed}"
                )
        for name in self.upstreams.keys() & self.turn_formats.keys():
            if self.upstreams[name].is_text_mode:
                raise ValueError(
                    f"turn_formats.{name}: {name!r} is used in text mode, where the engine parses"
                )
        for name, adapter in self.adapters.items():
            if adapter.model in self.upstreams:
                raise ValueError(
                    f"adapters.{name}.model: {adapter.model!r} is an upstream, which loads no GGUF"
                    " adapters"
                )
        return self

    @property
    def all_adapter_folders(self) -> list[Path]:
        """The folders in which relative paths of adapters are searched, in this order."""
        return [*self.adapter_folders, self.data_dir / "adapters", BUNDLED_FOLDER]

    def find_problems(self) -> Iterator[Problem]:
        """Yield what is wrong with settings together, and with the files that they name."""
        yield from super().find_problems()
        for name, upstream in self.upstreams.items():
            for setting, text in upstream.tls.find_problems() if upstream.tls is not None else ():
                yield self.problem(f"upstreams.{name}.tls.{setting}", text)
        yield from self.find_access_problems(
            has_service_token=self.service_token_file is not None,
            verifies_stored_keys=None not in (self.control_target, self.service_token_file),
        )
