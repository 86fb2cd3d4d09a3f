"""Follows changes of the settings `models` and `upstreams` while the service runs."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from inference_svc.config import InferenceSettings
from inference_svc.model_pool.catalog import Catalog, ModelEntry
from inference_svc.model_pool.discovery import find_models
from inference_svc.model_pool.eviction import ModelState
from inference_svc.model_pool.pool import ModelPool
from inference_svc.models.placement import LoadPolicy
from inference_svc.upstream_settings import UpstreamSettings
from svc_kit.errors import DomainError
from svc_kit.lifecycle import StartupError

log = logging.getLogger(__name__)


class SettingsModels:
    """The models of the settings in a pool. Use on the event loop."""

    def __init__(self, pool: ModelPool) -> None:
        self._pool = pool
        self._tasks: set[asyncio.Task[None]] = set()

    async def follow(self, settings: InferenceSettings) -> None:
        """Add the models that are new in the settings, and begin to remove those that are there no
        more, each when its last use ends. Models that were added by operators stay.

        A model that keeps its name keeps its file until the next start. An upstream is connected
        anew if it has changed, after its running calls have ended. Raises StartupError, before
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
            self._begin(self._pool.remove(entry, force=False))
        for entry in found:
            old = before.get(entry.name)
            if old is None or not old.upstream or entry.upstream in (None, old.upstream):
                continue
            if _tokenizer_kind(entry.upstream) != _tokenizer_kind(old.upstream):
                log.warning("upstream %s: its tokenizer changes at the next start", entry.name)
                continue
            log.info("upstream %s has changed: it is connected again", entry.name)
            _follow_adapters(old, entry)
            old.upstream = entry.upstream
            self._begin(self._reconnect(old))
        await _load([entry for entry in new if entry.policy is LoadPolicy.START], self._pool)

    def _begin(self, steps: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(steps)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _reconnect(self, entry: ModelEntry) -> None:
        """Connect to an upstream anew, unless it was not connected."""
        if entry.resident.state is not ModelState.AVAILABLE:
            await self._pool.unload(entry, force=False, wait=True)
            await _load([entry], self._pool)


def _follow_adapters(old: ModelEntry, new: ModelEntry) -> None:
    before = {adapter.name: adapter for adapter in old.adapters.current()}
    after = {adapter.name: adapter for adapter in new.adapters.current()}
    for name in before.keys() - after.keys():
        old.adapters.unload(name)
    for name in after.keys() - before.keys():
        old.adapters.add(after[name])


def _tokenizer_kind(upstream: UpstreamSettings) -> tuple[bool, bool]:
    return upstream.is_text_mode, upstream.tokenizer_from_engine


def _check(new: list[ModelEntry], catalog: Catalog) -> None:
    for entry in new:
        setting = "models" if entry.upstream is None else "upstreams"
        if entry.file.problem:
            raise StartupError(f"{setting}: {entry.file.problem}")
        adapters = (adapter.name for adapter in entry.adapters.current())
        for name in (entry.name, *entry.aliases, *adapters):
            try:
                catalog.check_free(name)
            except DomainError as error:
                raise StartupError(f"{setting}: {error.message}") from error


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
