"""Builds the configuration of an engine process from settings and memory plans."""

from dataclasses import dataclass

from inference_svc.config import EngineSettings, InferenceSettings, ModelSettings
from inference_svc.engine.scheduler.policy import Policy
from inference_svc.engine_client.messages import EngineConfig, ModelConfig
from inference_svc.llama import library
from inference_svc.llama.backend import BackendSettings
from inference_svc.llama.embeddings import EmbeddingSettings
from inference_svc.machine import available_cores, available_memory_bytes
from inference_svc.models.memory_plan import Layout, RequestedLimits, ResolvedLimits
from inference_svc.models.metadata import ModelFile, Pooling
from inference_svc.models.placement import Attention, Placement, Rope
from inference_svc.snapshots.store import FolderLimits

_MOST_SAVED_BYTES = 1 << 30
_ENCODER_TOKENS = 8192  # an encoder's buffers grow with its longest input


def requested_limits(settings: ModelSettings, engine: EngineSettings) -> RequestedLimits:
    """What the operator asks for, for one model or for all."""
    return RequestedLimits(
        slots=settings.slots or engine.slots,
        context_tokens=settings.context_tokens or engine.context_tokens,
        batch_tokens=settings.batch_tokens,
        threads=settings.threads or engine.threads,
        layout=Layout(settings.layout or engine.layout),
    )


def placement_of(own: ModelSettings, engine: EngineSettings) -> Placement:
    """Where a model's weights go."""
    return Placement(
        gpu_layers=engine.gpu_layers if own.gpu_layers is None else own.gpu_layers,
        devices=own.devices,
        split_mode=own.split_mode,
        tensor_split=own.tensor_split,
        main_device=own.main_device,
        maps_file=own.map_file,
        locks_memory=own.lock_memory,
    )


def snapshot_folder(settings: InferenceSettings) -> FolderLimits:
    """The folder of snapshots, which all engines share."""
    limits = settings.snapshots
    folder = limits.folder or settings.data_dir / "snapshots"
    return FolderLimits(folder, limits.max_mib << 20, limits.max_files)


def disk_cache_folder(settings: InferenceSettings) -> FolderLimits:
    """The folder of the archive, which engines share too."""
    limits = settings.snapshots
    folder = snapshot_folder(settings).path / "archive"
    return FolderLimits(folder, limits.archive_mib << 20, limits.archive_files)


@dataclass(frozen=True, slots=True)
class EngineConfigBuilder:
    """Makes the boots of all models. `num_models` share the memory for saved prefixes."""

    settings: InferenceSettings
    num_models: int

    def boot(
        self,
        file: ModelFile,
        requested: RequestedLimits,
        limits: ResolvedLimits,
        digest: str = "",
    ) -> EngineConfig:
        """The boot of one model's engine; `digest` is that of its files, once it is known."""
        own = self.settings.per_model.get(file.name, ModelSettings())
        engine, cores = self.settings.engine, available_cores()
        interval_ms = engine.stream_interval_ms
        batch_tokens = requested.batch_tokens or engine.batch_tokens
        attention = _attention(own)
        backend = BackendSettings(
            file.path,
            slots=limits.slots,
            context_tokens=limits.context_tokens,
            batch_tokens=batch_tokens,
            ubatch_tokens=min(engine.ubatch_tokens or _ubatch_tokens(), batch_tokens),
            threads=requested.threads or cores,
            sampling_threads=min(requested.threads or cores, 8),
            draft_tokens=engine.draft_tokens,
            shared_cells=limits.shared_cells,
            placement=placement_of(own, engine),
            attention=attention,
        )
        model = ModelConfig(
            file.name,
            backend,
            chunk_cap=engine.prefill_chunk_tokens,
            threads=requested.threads,
            saved_bytes=self._saved_bytes(),
            policy=Policy(engine.policy),
            token_target_s=engine.token_target_ms / 1000,
            adapter_wait_s=engine.adapter_wait_ms / 1000,
            embedding=self._embedding(file, own, requested, limits, backend),
            generates=file.generates,
            stamps=file.stamps,
            digest=digest,
        )
        return EngineConfig(
            model,
            cores,
            self.settings.log_level,
            None,
            engine.warm_up_s,
            snapshot_folder(self.settings),
            disk_cache_folder(self.settings),
            None if interval_ms is None else interval_ms / 1000,
            engine.abort_on,
        )

    def _saved_bytes(self) -> int:
        """What is configured, or a small part of the memory that is there."""
        if self.settings.engine.saved_prefix_mib is not None:
            return self.settings.engine.saved_prefix_mib << 20
        return min(available_memory_bytes() // 32, _MOST_SAVED_BYTES) // self.num_models

    def _embedding(
        self,
        file: ModelFile,
        own: ModelSettings,
        requested: RequestedLimits,
        limits: ResolvedLimits,
        backend: BackendSettings,
    ) -> EmbeddingSettings:
        longest = limits.context_tokens
        if not file.is_causal:  # its positions may be a table, which ends there
            longest = min(longest, file.trained_context_tokens)
            if requested.context_tokens is None:
                longest = min(longest, _ENCODER_TOKENS)
        return EmbeddingSettings(
            file.name,
            pooling=_pooling(file, own.pooling or self.settings.engine.pooling),
            is_causal=file.is_causal,
            input_tokens=longest,
            pack_tokens=backend.ubatch_tokens,
            threads=backend.threads,
            cell_bytes=file.kv_bytes_per_token if file.is_causal else 0,
            attention=backend.attention,
        )


def _ubatch_tokens() -> int:
    return 512 if library.can_use_gpu() else 256


def _pooling(file: ModelFile, chosen: str | None) -> Pooling:
    if file.pooling is Pooling.RANK:
        return file.pooling
    default = Pooling.LAST if file.generates else Pooling.MEAN
    return Pooling(chosen) if chosen else file.pooling or default


def _attention(own: ModelSettings) -> Attention:
    rope = Rope(
        scaling=own.rope_scaling,
        frequency_base=own.rope_frequency_base,
        frequency_scale=own.rope_frequency_scale,
        original_context=own.rope_original_context,
    )
    return Attention(own.kv_type_k, own.kv_type_v, own.flash_attention, rope)
