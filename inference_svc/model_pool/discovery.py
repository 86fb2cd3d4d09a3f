"""Builds the catalog: resolves the configured models and reads their metadata."""

from dataclasses import replace
from pathlib import Path

from inference_svc.config import InferenceSettings, ModelSettings
from inference_svc.model_pool.catalog import Catalog, ModelEntry
from inference_svc.model_pool.engine_config import requested_limits, resolve_placement
from inference_svc.model_pool.eviction import ModelState, Resident
from inference_svc.model_pool.settings_check import find_unknown_names
from inference_svc.models.device_memory import LayerSplit
from inference_svc.models.metadata import ModelFile
from inference_svc.models.sources import Download, RemoteFile, find_projector, resolve_models
from svc_kit.lifecycle import StartupError


def find_models(settings: InferenceSettings) -> Catalog:
    """Resolve every configured model, downloading missing files. Blocks.

    Raises:
        StartupError: a reference is malformed, two models share a name, or `per_model` or
            `turn_formats` contain an unknown model name.
    """
    download = _downloads(settings.data_dir / "models")
    files = resolve_models(settings.models, download)
    for setting in ("turn_formats", "per_model"):
        for problem in find_unknown_names(getattr(settings, setting), files):
            raise StartupError(f"{setting}: {problem}")
    entries = (
        make_entry(file, settings.per_model.get(file.name, ModelSettings()), settings, download)
        for file in files
    )
    return Catalog(entries)


def make_entry(
    file: ModelFile, overrides: ModelSettings, settings: InferenceSettings, download: Download
) -> ModelEntry:
    """Return the entry of a model with these settings, FAILED if it cannot be used. Blocks."""
    if not file.problem:
        try:
            file = replace(file, projector=find_projector(file, overrides.projector, download))
        except StartupError as error:
            file = replace(file, problem=str(error))
    layer_split = LayerSplit(resolve_placement(overrides, settings.engine), file.num_layers)
    return ModelEntry(
        file.with_kv_types(overrides.kv_type_k, overrides.kv_type_v),
        requested_limits(overrides, settings.engine),
        Resident(
            file.name,
            is_pinned=overrides.pinned,
            state=ModelState.FAILED if file.problem else ModelState.AVAILABLE,
            problem=file.problem,
            idle_ttl_s=overrides.idle_ttl_s,
            layer_split=layer_split,
        ),
        policy=overrides.load,
        aliases=overrides.aliases,
    )


def _downloads(folder: Path) -> Download:
    def download(remote: RemoteFile) -> Path:
        # Imported here because huggingface_hub is slow to import and seldom needed.
        from inference_svc.models.huggingface import HuggingFaceDownloads

        return HuggingFaceDownloads(folder)(remote)

    return download
