"""Follows changes of the setting `models` while the service runs."""

import asyncio
import logging

from inference_svc.config import InferenceSettings
from inference_svc.model_pool.catalog import Catalog, ModelEntry
from inference_svc.model_pool.discovery import find_models
from inference_svc.model_pool.pool import ModelPool
from inference_svc.models.placement import LoadPolicy
from svc_kit.errors import DomainError
from svc_kit.lifecycle import StartupError

log = logging.getLogger(__name__)


class SettingsModels:
    """The models of the settings in a pool. Use on the event loop."""

    def __init__(self, pool: ModelPool) -> None:
        self._pool = pool
        self._removals: set[asyncio.Task[None]] = set()

    async def follow(self, settings: InferenceSettings) -> None:
        """Add the models that are new in the settings, and begin to remove those that are there no
        more, each when its last use ends. Models that were added by operators stay.

        A model that keeps its name keeps its file until the next start. Raises StartupError, before
        anything is changed, if a model cannot be used or its name is taken.
        """
        found = await asyncio.to_thread(find_models, settings)
        before = {
            entry.name: entry
            for entry in self._pool.catalog
            if not (entry.source or entry.is_removed)
        }
        new = [entry for entry in found if entry.name not in before]
        gone = [entry for name, entry in before.items() if not found.has_model(name)]
        _check(new, self._pool.catalog)
        for entry in new:
            _add(entry, self._pool)
        for entry in gone:
            log.info("model %s is not in the settings any more: it is removed", entry.name)
            removal = asyncio.create_task(self._pool.remove(entry, force=False))
            self._removals.add(removal)
            removal.add_done_callback(self._removals.discard)
        await _load([entry for entry in new if entry.policy is LoadPolicy.START], self._pool)


def _check(new: list[ModelEntry], catalog: Catalog) -> None:
    for entry in new:
        if entry.file.problem:
            raise StartupError(f"models: {entry.file.problem}")
        for name in (entry.name, *entry.aliases):
            try:
                catalog.check_free(name)
            except DomainError as error:
                raise StartupError(f"models: {error.message}") from error


def _add(entry: ModelEntry, pool: ModelPool) -> None:
    aliases, entry.aliases = entry.aliases, ()
    pool.catalog.add(entry)
    for alias in aliases:
        pool.catalog.add_alias(entry, alias)
    pool.changes.model_changed(entry)
    log.info("model %s is new in the settings", entry.name)


async def _load(entries: list[ModelEntry], pool: ModelPool) -> None:
    for entry in entries:
        try:
            await pool.load(entry, wait=False)
        except DomainError as error:
            log.error("model %s cannot be loaded: %s", entry.name, error)
