"""Builds the catalog: resolves the configured models and reads their metadata."""

from dataclasses import replace
from pathlib import Path

from inference_svc.config import InferenceSettings
from inference_svc.engine_client.adapter_registry import Adapter
from inference_svc.model_pool.catalog import Catalog, ModelEntry
from inference_svc.model_pool.engine_config import requested_limits, resolve_placement
from inference_svc.model_pool.eviction import ModelState, Resident
from inference_svc.model_pool.settings_check import find_name_problems
from inference_svc.model_settings import ModelSettings
from inference_svc.models.device_memory import LayerSplit
from inference_svc.models.memory_plan import RequestedLimits
from inference_svc.models.metadata import ModelClass, ModelFile
from inference_svc.models.sources import (
    Download,
    RemoteFile,
    find_draft_model,
    find_projector,
    resolve_models,
    resolve_tokenizer,
)
from inference_svc.upstream_settings import UpstreamSettings
from svc_kit.lifecycle import StartupError
from svc_kit.local_files import AllowedFolders
from svc_kit.logs import hide_queries


def find_models(settings: InferenceSettings) -> Catalog:
    """Resolve every configured model and the tokenizers of upstreams, which come first,
    downloading missing files. Blocks.

    Raises:
        StartupError: a reference is malformed, two models share a name, or `per_model` or
            `turn_formats` contain an unknown model name.
    """
    download = make_downloads(settings)
    files = resolve_models(settings.models, download) if settings.models else []
    for setting, problem in find_name_problems(settings, files):
        raise StartupError(f"{setting}: {problem}")
    upstreams = (
        make_upstream_entry(
            resolve_tokenizer(upstream.tokenizer, name, download),
            upstream,
            settings.per_model.get(name, ModelSettings()),
        )
        for name, upstream in settings.upstreams.items()
    )
    entries = (
        make_entry(file, settings.per_model.get(file.name, ModelSettings()), settings, download)
        for file in files
    )
    return Catalog([*upstreams, *entries])


def make_upstream_entry(
    tokenizer: ModelFile, upstream: UpstreamSettings, overrides: ModelSettings
) -> ModelEntry:
    """Return the entry of a model that an upstream serves, FAILED if its tokenizer cannot be used.
    It has no memory here, and so is never evicted."""
    if upstream.task == "embed":
        tokenizer = replace(tokenizer, model_class=ModelClass.ENCODER)
    entry = ModelEntry(
        tokenizer,
        RequestedLimits(),
        Resident(
            tokenizer.name,
            is_pinned=True,
            state=ModelState.FAILED if tokenizer.problem else ModelState.AVAILABLE,
            problem=tokenizer.problem,
        ),
        policy=overrides.load,
        aliases=overrides.aliases,
        upstream=upstream,
        tokenizer="" if upstream.tokenizer_from_engine else hide_queries(upstream.tokenizer),
    )
    for name in upstream.adapters:
        entry.adapters.add(Adapter.of_upstream(name, entry.name))
    entry.digest_computed.set()  # that of an engine's weights is never known
    return entry


def make_entry(
    file: ModelFile, overrides: ModelSettings, settings: InferenceSettings, download: Download
) -> ModelEntry:
    """Return the entry of a model with these settings, FAILED if it cannot be used. Blocks."""
    if not file.problem:
        try:
            file = replace(
                file,
                projector=find_projector(file, overrides.projector, download),
                draft=find_draft_model(file, overrides.draft_model, download),
            )
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


def added_folders(settings: InferenceSettings) -> AllowedFolders:
    """Where the files of models may be that are added at run time."""
    folders = [*settings.model_folders, settings.data_dir / "models", _downloads(settings)]
    return AllowedFolders([*dict.fromkeys(folders)], "models may be added")


def _downloads(settings: InferenceSettings) -> Path:
    return settings.download_folder or settings.data_dir / "models"


def make_downloads(settings: InferenceSettings) -> Download:
    """What downloads the files of models to the folder of the settings."""
    folder = _downloads(settings)

    def download(remote: RemoteFile) -> Path:
        # Imported here because huggingface_hub is slow to import and seldom needed.
        from inference_svc.models.huggingface import HuggingFaceDownloads

        return HuggingFaceDownloads(folder)(remote)

    return download
