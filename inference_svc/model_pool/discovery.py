"""Finds the models that the settings name, reads their metadata and checks their names."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from inference_svc.config import InferenceSettings, ModelSettings
from inference_svc.model_pool.catalog import Catalog, KnownModel
from inference_svc.model_pool.engine_config import placement_of, requested_limits
from inference_svc.model_pool.eviction import Resident
from inference_svc.models.device_memory import LayerSplit
from inference_svc.models.metadata import ModelFile
from inference_svc.models.sources import Download, RemoteFile, resolve_models
from svc_kit.errors import ModelCannot
from svc_kit.lifecycle import StartupError


def find_models(settings: InferenceSettings) -> Catalog:
    """Resolve every model of the settings, downloading what is not here. Blocks.

    Raises:
        StartupError: one cannot be found or served, names clash, or settings are of no model.
    """
    files = resolve_models(settings.models, _downloads(settings.data_dir / "models"))
    for file in files:
        try:
            file.check_served()
        except ModelCannot as error:
            raise StartupError(error.message) from error
    _check_names("turn_formats", settings.turn_formats, files)
    _check_names("per_model", settings.per_model, files)
    return Catalog(_known(file, settings) for file in files)


def _known(file: ModelFile, settings: InferenceSettings) -> KnownModel:
    own = settings.per_model.get(file.name, ModelSettings())
    spread = LayerSplit(placement_of(own, settings.engine), file.num_layers)
    return KnownModel(
        file.with_kv_types(own.kv_type_k, own.kv_type_v),
        requested_limits(own, settings.engine),
        Resident(file.name, is_pinned=own.pinned, spread=spread),
        policy=own.load,
        aliases=own.aliases,
    )


def _check_names(setting: str, names: Iterable[str], files: Sequence[ModelFile]) -> None:
    known = {file.name for file in files}
    for name in names:
        if name not in known:
            raise StartupError(
                f"{setting}: no model is called {name!r}; there are {', '.join(sorted(known))}"
            )


def _downloads(folder: Path) -> Download:
    def download(remote: RemoteFile) -> Path:
        # Here, because its library takes as long to import as everything else and few need it.
        from inference_svc.models.huggingface import HuggingFaceDownloads

        return HuggingFaceDownloads(folder)(remote)

    return download
