"""Builds the configuration of engine processes and upstreams from settings and memory plans."""

from dataclasses import dataclass, field, replace

from inference_svc.config import EngineSettings, InferenceSettings
from inference_svc.engine.scheduler.policy import Policy
from inference_svc.engine_client.messages import EngineConfig
from inference_svc.llama import library
from inference_svc.llama.backend import BackendSettings
from inference_svc.llama.embeddings import EmbeddingSettings
from inference_svc.llama.projector import ProjectorSettings
from inference_svc.machine import available_cores, available_memory_bytes
from inference_svc.media.encoder_messages import EncoderConfig
from inference_svc.model_settings import ModelSettings
from inference_svc.models.memory_plan import Layout, RequestedLimits, ResolvedLimits
from inference_svc.models.metadata import ModelFile, Pooling
from inference_svc.models.placement import Attention, Placement, Rope
from inference_svc.models.projector_file import ProjectorFile
from inference_svc.snapshots.store import FolderLimits
from inference_svc.upstream.target import UpstreamTarget
from inference_svc.upstream_settings import UpstreamSettings
from svc_kit.lifecycle import StartupError
from svc_kit.settings.groups import UpstreamTlsSettings

_SAVED_SHARE = 8
_MAX_SAVED_BYTES = 8 << 30  # as llama-server (--cache-ram)
_MAX_RESERVE_BYTES = 2 << 30
_DEFAULT_ENCODER_TOKENS = 8192  # the buffers of an encoder grow with its longest input


def requested_limits(overrides: ModelSettings, engine: EngineSettings) -> RequestedLimits:
    """Return the configured limits of a model; its own settings override those of the engine."""
    return RequestedLimits(
        slots=overrides.slots or engine.slots,
        context_tokens=overrides.context_tokens or engine.context_tokens,
        batch_tokens=overrides.batch_tokens,
        threads=overrides.threads or engine.threads,
        layout=Layout(overrides.layout or engine.layout),
    )


def resolve_placement(overrides: ModelSettings, engine: EngineSettings) -> Placement:
    """Return where the weights of a model are placed."""
    return Placement(
        gpu_layers=engine.gpu_layers if overrides.gpu_layers is None else overrides.gpu_layers,
        devices=overrides.devices,
        split_mode=overrides.split_mode,
        tensor_split=overrides.tensor_split,
        main_device=overrides.main_device,
        maps_file=overrides.map_file,
        locks_memory=overrides.lock_memory,
    )


def snapshot_folder(settings: InferenceSettings) -> FolderLimits:
    """Return the snapshot folder, which all engines share, and its limits."""
    limits = settings.snapshots
    folder = limits.folder or settings.data_dir / "snapshots"
    return FolderLimits(folder, limits.max_mib << 20, limits.max_files)


def disk_cache_folder(settings: InferenceSettings) -> FolderLimits:
    """Return the folder of the disk prefix cache, which all engines share, and its limits."""
    limits = settings.snapshots
    folder = snapshot_folder(settings).path / "archive"
    return FolderLimits(
        folder,
        limits.archive_mib << 20,
        limits.archive_files,
        limits.archive_age_s,
        setting="snapshots.archive_mib",
        max_reserve_bytes=_MAX_RESERVE_BYTES,
    )


@dataclass(frozen=True, slots=True)
class EngineConfigBuilder:
    """Builds engine configurations. The memory for saved prefixes is divided by `num_models`;
    `cores` (unset: detected) is the number of usable CPU cores."""

    settings: InferenceSettings
    num_models: int
    cores: int = field(default_factory=available_cores)

    def build(
        self,
        file: ModelFile,
        requested: RequestedLimits,
        limits: ResolvedLimits,
        digest: str = "",
        *,
        takes_media: bool = False,
        joint_tokens: int = 0,
    ) -> EngineConfig:
        """Return the configuration of one engine. `digest` is that of the model's files, or empty
        if it is not computed yet. `joint_tokens` must fit into one compute batch.

        Raises `StartupError` if they do not.
        """
        overrides = self.settings.per_model.get(file.name, ModelSettings())
        engine = self.settings.engine
        interval_ms = engine.stream_interval_ms
        batch_tokens = requested.batch_tokens or engine.batch_tokens
        ubatch_tokens = min(engine.ubatch_tokens or _ubatch_tokens(), batch_tokens)
        if file.has_source:  # an encoder computes all sources at once
            ubatch_tokens = batch_tokens
        if joint_tokens > ubatch_tokens:
            _check_joint_tokens(joint_tokens, batch_tokens, engine.ubatch_tokens)
            ubatch_tokens = joint_tokens
        threads = requested.threads or self.cores
        backend = BackendSettings(
            file.path,
            slots=limits.slots,
            context_tokens=limits.context_tokens,
            batch_tokens=batch_tokens,
            ubatch_tokens=ubatch_tokens,
            threads=threads,
            sampling_threads=min(threads, 8),
            draft_tokens=engine.draft_tokens,
            shared_cells=limits.shared_cells,
            placement=resolve_placement(overrides, engine),
            attention=_attention(overrides),
            logit_scale=file.logit_scale,
        )
        return EngineConfig(
            file.name,
            backend,
            chunk_cap=engine.prefill_chunk_tokens,
            threads=requested.threads,
            cores=self.cores,
            log_level=self.settings.log_level,
            warm_up_budget_s=engine.warm_up_s,
            saved_bytes=self._saved_bytes(),
            policy=Policy(engine.policy),
            token_target_s=engine.token_target_ms / 1000,
            adapter_wait_s=engine.adapter_wait_ms / 1000,
            embedding=None
            if file.has_source
            else self._embedding(file, overrides, requested, limits, backend),
            generates=file.generates,
            draft=None if file.draft is None else _draft(file.draft, backend),
            takes_media=takes_media,
            stamps=file.stamps,
            digest=digest,
            snapshots=snapshot_folder(self.settings),
            archive=disk_cache_folder(self.settings),
            stream_interval_s=None if interval_ms is None else interval_ms / 1000,
            abort_on=engine.abort_on,
        )

    def build_encoder(self, file: ModelFile, projector: ProjectorFile) -> EncoderConfig:
        overrides = self.settings.per_model.get(file.name, ModelSettings())
        uses_devices = resolve_placement(overrides, self.settings.engine).uses_devices
        uses_gpu = uses_devices and library.can_use_gpu()
        threads = self.settings.media.encoder_threads or self.cores
        engine_threads = requested_limits(overrides, self.settings.engine).threads or self.cores
        return EncoderConfig(
            file.name,
            ProjectorSettings(
                projector,
                file.path,
                threads=threads,
                uses_gpu=uses_gpu,
                image_min_tokens=overrides.image_min_tokens,
                image_max_tokens=overrides.image_max_tokens,
            ),
            self.settings.log_level,
            competes_for_cores=not uses_gpu and threads + engine_threads > self.cores,
        )

    def _saved_bytes(self) -> int:
        if self.settings.engine.saved_prefix_mib is not None:
            return self.settings.engine.saved_prefix_mib << 20
        return min(available_memory_bytes() // _SAVED_SHARE, _MAX_SAVED_BYTES) // self.num_models

    def _embedding(
        self,
        file: ModelFile,
        overrides: ModelSettings,
        requested: RequestedLimits,
        limits: ResolvedLimits,
        backend: BackendSettings,
    ) -> EmbeddingSettings:
        input_tokens = limits.context_tokens
        if not file.is_causal:  # its position embeddings may be a table of this length
            input_tokens = min(input_tokens, file.trained_context_tokens)
            if requested.context_tokens is None:
                input_tokens = min(input_tokens, _DEFAULT_ENCODER_TOKENS)
        return EmbeddingSettings(
            file.name,
            pooling=_pooling(file, overrides.pooling or self.settings.engine.pooling),
            is_causal=file.is_causal,
            input_tokens=input_tokens,
            pack_tokens=backend.ubatch_tokens,
            threads=backend.threads,
            cell_bytes=file.kv_bytes_per_token if file.is_causal else 0,
            attention=backend.attention,
        )


def _draft(file: ModelFile, backend: BackendSettings) -> BackendSettings:
    """The settings of a draft model, with as many slots and cells as the model has."""
    return replace(
        backend,
        path=file.path,
        sampling_threads=1,
        draft_tokens=0,
        attention=Attention(),
        logit_scale=file.logit_scale,
    )


def _check_joint_tokens(joint_tokens: int, batch_tokens: int, ubatch_tokens: int | None) -> None:
    for name, limit in (("batch_tokens", batch_tokens), ("ubatch_tokens", ubatch_tokens)):
        if limit is not None and limit < joint_tokens:
            raise StartupError(
                f"a picture takes up to {joint_tokens} tokens at once, but {name} is {limit}: "
                "raise it, or set image_max_tokens"
            )


def _ubatch_tokens() -> int:
    return 512 if library.can_use_gpu() else 256


def _pooling(file: ModelFile, configured: str | None) -> Pooling:
    if file.pooling is Pooling.RANK:
        return file.pooling
    default = Pooling.LAST if file.generates else Pooling.MEAN
    return Pooling(configured) if configured else file.pooling or default


def _attention(overrides: ModelSettings) -> Attention:
    rope = Rope(
        scaling=overrides.rope_scaling,
        frequency_base=overrides.rope_frequency_base,
        frequency_scale=overrides.rope_frequency_scale,
        original_context=overrides.rope_original_context,
    )
    return Attention(overrides.kv_type_k, overrides.kv_type_v, overrides.flash_attention, rope)


def upstream_target(name: str, settings: UpstreamSettings) -> UpstreamTarget:
    """The engines behind the name of a model."""
    tls, ahead = settings.tls or UpstreamTlsSettings(), settings.batch_ahead
    if ahead is None and (settings.concurrency is not None or settings.is_text_mode):
        ahead = 0
    return UpstreamTarget(
        name,
        settings.urls,
        kind=settings.kind,
        model=settings.model,
        adapters=tuple(settings.adapters),
        adapter_folder=settings.adapter_folder.rstrip("/"),
        key_file=settings.key_file,
        headers=tuple((key, value.get_secret_value()) for key, value in settings.headers.items()),
        concurrency=settings.concurrency,
        batch_ahead=ahead,
        context_tokens=settings.context_tokens,
        connect_timeout_s=settings.connect_timeout_s,
        first_token_timeout_s=settings.first_token_timeout_s,
        token_timeout_s=settings.token_timeout_s,
        ca_file=tls.ca_file,
        certificate_file=tls.certificate_file,
        certificate_key_file=tls.key_file,
        default_path="/v1" if settings.is_text_mode else "",
        embeds=settings.task == "embed",
    )
