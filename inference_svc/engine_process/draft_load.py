"""Loads the draft model of a model in the engine process, and checks that it can draft for it."""

import logging
import time
from typing import NamedTuple

from inference_svc.engine.spec_decode.draft_model import DraftModel
from inference_svc.engine_client.messages import EngineConfig
from inference_svc.llama.backend import BackendSettings, LlamaBackend
from inference_svc.llama.warmup import WarmUp, warm_up
from inference_svc.llama.weights import ModelLoadError

log = logging.getLogger(__name__)


class LoadedDraft(NamedTuple):
    """A draft model, and the measurements of the model with its step times."""

    model: DraftModel | None
    measured: WarmUp


def load_draft(config: EngineConfig, backend: LlamaBackend, measured: WarmUp) -> LoadedDraft:
    """Load and warm up the draft model of a loaded model, None if it has none; `measured` are the
    measurements of the model. Raises `ModelLoadError`."""
    if config.draft is None:
        return LoadedDraft(None, measured)
    setting = f"per_model.{config.name}.draft_model"
    if not backend.can_trim:
        problem = f"{config.name} has a recurrent state, from which no draft can be removed"
        raise ModelLoadError(f"{setting}: {problem}")
    draft = _open(config.draft, setting, backend)
    step_times = measured.draft_step_times
    if step_times is None:
        budget_s = config.warm_up_budget_s
        times = warm_up(draft, cores=config.cores, threads=measured.threads, budget_s=budget_s)
        step_times = times.step_times
        measured = measured._replace(draft_step_times=step_times)
    draft.set_threads(measured.threads)
    log.info(
        "model %s: drafts of %s take %.2f ms a token, a step takes %.2f ms",
        config.name,
        config.draft.path.name,
        1000 * step_times.get(1, 0.0),
        1000 * measured.step_times.get(1, 0.0),
    )
    size = backend.limits.vocabulary_size
    return LoadedDraft(DraftModel(draft, step_times, time.monotonic, size), measured)


def _open(settings: BackendSettings, setting: str, backend: LlamaBackend) -> LlamaBackend:
    try:
        draft = LlamaBackend(settings)
    except ModelLoadError as error:
        raise ModelLoadError(f"{setting}: {error}") from error
    problem = None
    if not draft.can_trim:
        problem = f"{settings.path.name} has a recurrent state, from which no draft can be removed"
    elif difference := backend.vocabulary.find_difference(draft.vocabulary):
        problem = f"the vocabulary of {settings.path.name} is another one: {difference}"
    if problem is not None:
        draft.close()
        raise ModelLoadError(f"{setting}: {problem}")
    return draft
