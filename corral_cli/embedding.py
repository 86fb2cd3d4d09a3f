"""The flag that names an embedding model: one that is served anyway, or one more."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from inference_svc.models.metadata import default_name
from inference_svc.models.sources import BUNDLED, BUNDLED_NAME, ModelReference, parse_reference


class EmbeddingModel(NamedTuple):
    """What requests call it, and all models that are served with it."""

    name: str
    models: list[str]


def with_embedding_model(asked: str, models: Sequence[str]) -> EmbeddingModel:
    """The embedding model of a flag beside the references of others. Raises StartupError."""
    if asked in [_name_of(parse_reference(model)) for model in models]:
        return EmbeddingModel(asked, list(models))
    return EmbeddingModel(_name_of(parse_reference(asked)), [*models, asked])


def _name_of(reference: ModelReference) -> str:
    if reference.name is not None:
        return reference.name
    if reference.source == BUNDLED:
        return BUNDLED_NAME
    remote = reference.remote
    return default_name(Path(remote.file if remote else reference.source))
