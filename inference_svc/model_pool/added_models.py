"""Models that operators add while the service runs, and aliases of models.

What they want is in a file (`added_models_file.py`); a background task for each model downloads its
files into a folder of its own and then puts it into the catalog. After a restart the tasks begin
again.
"""

import asyncio
import functools
import logging
import re
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from inference_svc.config import InferenceSettings
from inference_svc.media.fetcher import MediaFetcher
from inference_svc.model_pool.added_model_sources import AddedModelSources
from inference_svc.model_pool.added_models_file import (
    AddedModel,
    AddedModels,
    delete_downloads,
    delete_unused_downloads,
    read_added_models,
    write_added_models,
    write_file_list,
)
from inference_svc.model_pool.catalog import ModelEntry, PendingModel
from inference_svc.model_pool.discovery import added_folders, make_entry, make_upstream_entry
from inference_svc.model_pool.downloads import DownloadProgress, ModelDownloader, verify_file
from inference_svc.model_pool.pool import ModelPool
from inference_svc.model_settings import ModelSettings
from inference_svc.models.metadata import FileRole, file_role, fileless_model
from inference_svc.models.placement import LoadPolicy
from inference_svc.models.sources import RemoteFile, describe_file
from model_files.gguf import ModelFileInvalid
from svc_kit.errors import DomainError, InvalidField, ModelExists, ModelInSettings, ModelNotFound
from svc_kit.lifecycle import StartupError
from svc_kit.local_files import disk_errors
from svc_kit.tasks import run_in_thread

log = logging.getLogger(__name__)
_ALIAS: Final = re.compile(r"[!-~]{1,256}")
_REPORT_S: Final = 0.2
"""Seconds between two reports of a download's progress to watchers."""
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def _completed(
    change: Callable[Concatenate["AddedModelsService", Parameters], Coroutine[Any, Any, Result]],
) -> Callable[Concatenate["AddedModelsService", Parameters], Coroutine[Any, Any, Result]]:
    """A change is completed also if its caller leaves, so that the file and the catalog agree."""

    @functools.wraps(change)
    async def complete(
        service: "AddedModelsService", /, *args: Parameters.args, **kwargs: Parameters.kwargs
    ) -> Result:
        task = asyncio.create_task(change(service, *args, **kwargs))
        service.changes.add(task)
        task.add_done_callback(service.changes.discard)
        return await asyncio.shield(task)

    return complete


class AddedModelsService:
    """Adds, changes and removes models at run time. Use on the event loop."""

    def __init__(
        self,
        settings: InferenceSettings,
        pool: ModelPool,
        load_adapter: Callable[[ModelEntry, Path], Awaitable[None]],
    ) -> None:
        """`load_adapter` loads an adapter that was downloaded with a model. Raises DomainErrors."""
        self._settings = settings
        self._load_adapter = load_adapter
        self._pool = pool
        self._catalog = pool.catalog
        fetcher = MediaFetcher(settings.model_hosts, remedy="set inference.model_hosts")
        self._downloader = ModelDownloader(fetcher)
        engines = MediaFetcher(settings.upstream_hosts, remedy="set inference.upstream_hosts")
        self._sources = AddedModelSources(fetcher, added_folders(settings), engines)
        self._downloads = settings.data_dir / "models" / "added"
        self._path = settings.data_dir / "added_models.json"
        self._added = read_added_models(self._path)
        self._list_added()
        self._store_lock = asyncio.Lock()
        self._folder_locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.changes: set[asyncio.Task[Any]] = set()

    def _list_added(self) -> None:
        """Put the models and aliases of the file into the catalog, so that they are found while the
        service starts. Raises `StartupError`."""
        for name in (*self._added.models, *self._added.aliases):
            if self._catalog.has_model(name):
                raise StartupError(
                    f"the name {name!r} is in the settings, and in {self._path} that of a model or "
                    "an alias that was added at run time: choose another in the settings"
                )
        for model in self._added.models.values():
            self._list_pending(model)
        for alias, name in self._added.aliases.items():
            if self._catalog.has_model(name):
                self._catalog.add_alias(self._catalog.find_model(name), alias)

    async def start(self) -> None:
        """Begin to download what is missing, and wait for the models whose files are here."""
        async with self._store_lock:  # no other folder is made meanwhile
            used = {model.folder for model in self._added.models.values()}
            await asyncio.to_thread(delete_unused_downloads, self._downloads, used)
        for model in self._added.models.values():
            self._begin(model)
        models = [self._added.models[name] for name in self._tasks if name in self._added.models]
        if here := [self._tasks[model.name] for model in models if self._is_here(model)]:
            await asyncio.wait(here)

    async def close(self) -> None:
        """Stop downloads; what is here of their files stays."""
        tasks = [*self._tasks.values(), *self.changes]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def find(self, name: str) -> ModelEntry | PendingModel:
        """Return a model by its name or alias, also a pending one. Raises `ModelNotFound`."""
        return self._catalog.find_pending(name) or self._catalog.find_model(name)

    # --- operations -------------------------------------------------------------------------------

    async def add(self, wanted: AddedModel, aliases: Sequence[str]) -> ModelEntry | PendingModel:
        """Add a model, or continue to add one with these fields. `wanted.files` are found.

        Raises:
            InvalidField, MissingField: the source has no such file, or is not allowed.
            DownloadFailed: the Hub cannot be reached.
            ModelExists, AdapterExists: a name is taken.
            StorageFailed: the file of added models cannot be written.
        """
        return await self._put(await self._sources.find_files(wanted), aliases)

    @_completed
    async def _put(self, model: AddedModel, aliases: Sequence[str]) -> ModelEntry | PendingModel:
        async with self._store_lock:
            known = self._added.models.get(model.name)
            if known is None or not known.has_fields_of(model):
                known = model
                self._check_free("name", model.name)
            named = {model.name, *self._aliases_of(model.name)}
            new = [alias for alias in dict.fromkeys(aliases) if alias not in named]
            for alias in new:
                self._check_free("aliases", alias)
            await self._store(
                {**self._added.models, known.name: known},
                {**self._added.aliases, **dict.fromkeys(new, known.name)},
            )
            if (found := self._catalog.watched(known.name).get(known.name)) is not None:
                for alias in new:
                    self._catalog.add_alias(found, alias)
            self._begin(known)
        return self.find(known.name)

    @_completed
    async def update(
        self, name: str, changes: Mapping[str, bool | float | None]
    ) -> ModelEntry | PendingModel:
        """Change the fields `pinned` and `idle_ttl_s` of an added model; pinning loads it.

        Raises `ModelNotFound`, `ModelInSettings` or `StorageFailed`; `ModelTooLarge` or
        `ModelLoading` if a model that is pinned now cannot be loaded at once.
        """
        async with self._store_lock:
            model = replace(self._find_added(name), **changes)  # type: ignore[arg-type]  # by name
            if model.upstream is not None:
                problem = f"'{model.name}' is a model of an upstream, which needs no memory here"
                raise InvalidField(field="update_mask", problem=problem)
            await self._store({**self._added.models, model.name: model}, self._added.aliases)
            found = self.find(model.name)
            if isinstance(found, ModelEntry):
                self._apply(found)
            self._pool.changes.model_changed(found)
        if isinstance(found, ModelEntry) and changes.get("pinned"):
            await self._pool.load(found, wait=False)
        return found

    @_completed
    async def add_alias(self, name: str, alias: str) -> ModelEntry | PendingModel:
        """Give a model another name. Raises `ModelNotFound`, `InvalidField`, `ModelExists`,
        `AdapterExists` or `StorageFailed`."""
        async with self._store_lock:
            found = self.find(name)
            if self._added.aliases.get(alias) == found.name:
                return found
            self._check_free("alias", alias)
            await self._store(self._added.models, {**self._added.aliases, alias: found.name})
            self._catalog.add_alias(found, alias)
            self._pool.changes.model_changed(found)
        return found

    @_completed
    async def remove(self, name: str, *, force: bool) -> None:
        """Remove an added alias; or an added model, its aliases and downloaded files when its
        last use ends, or at once with `force`.

        Raises `ModelNotFound`, `ModelInSettings` or `StorageFailed`.
        """
        async with self._store_lock:
            models, aliases = dict(self._added.models), dict(self._added.aliases)
            if aliases.pop(name, None) is not None:
                await self._store(models, aliases)
                if (named := self._catalog.remove_alias(name)) is not None:
                    self._pool.changes.model_changed(named)
                return
            model = models.pop(self._find_added(name).name)
            kept = {alias: each for alias, each in aliases.items() if each != model.name}
            await self._store(models, kept)
        await self._remove(model, force=force)

    def _find_added(self, name: str) -> AddedModel:
        model = self._added.models.get(self._added.aliases.get(name, name))
        if model is None and self._catalog.has_model(name):
            raise ModelInSettings(model=name)
        if model is None:
            raise ModelNotFound(model=name)
        return model

    def _aliases_of(self, name: str) -> tuple[str, ...]:
        return tuple(alias for alias, each in self._added.aliases.items() if each == name)

    def _check_free(self, field: str, name: str) -> None:
        if field != "name" and _ALIAS.fullmatch(name) is None:
            problem = "an alias has 1 to 256 characters of ASCII without spaces"
            raise InvalidField(field=field, problem=problem)
        if name in self._added.models or name in self._added.aliases:
            raise ModelExists(model=name)
        self._catalog.check_free(name)

    async def _store(self, models: dict[str, AddedModel], aliases: dict[str, str]) -> None:
        added = AddedModels(models, aliases)
        with disk_errors():
            await asyncio.to_thread(write_added_models, self._path, added)
        self._added = added

    # --- files ------------------------------------------------------------------------------------

    def _is_here(self, model: AddedModel) -> bool:
        """Whether nothing is to be downloaded or verified."""
        folder = self._downloads / model.folder
        return all((folder / file.name).exists() for file in model.files) and (
            bool(model.files) or not model.sha256
        )

    # --- tasks ------------------------------------------------------------------------------------

    def _begin(self, model: AddedModel) -> None:
        """Start to bring a model into the catalog, unless that is in progress or done."""
        if model.name in self._tasks or self._catalog.has_model(model.name):
            return
        pending = self._list_pending(model)
        self._pool.changes.model_changed(pending)
        task = asyncio.create_task(self._bring(model, pending), name=f"add {model.name}")
        self._tasks[model.name] = task
        task.add_done_callback(lambda _: self._tasks.pop(model.name))

    def _list_pending(self, model: AddedModel) -> PendingModel:
        pending = PendingModel(model.name, model.shown_source, self._aliases_of(model.name))
        self._catalog.pending[model.name] = pending
        return pending

    async def _bring(self, model: AddedModel, pending: PendingModel) -> None:
        try:
            async with self._folder_locks[model.folder]:
                entry = await self._prepare(model, pending)
        except (DomainError, ModelFileInvalid, OSError, StartupError) as error:
            log.error("model %s cannot be added: %s", model.name, error)
            pending.problem = str(error) or type(error).__name__
            self._pool.changes.model_changed(pending)
            return
        if model.name not in self._added.models:
            return  # it is being removed
        del self._catalog.pending[model.name]
        self._catalog.add(entry)
        for alias in pending.aliases:
            self._catalog.add_alias(entry, alias)
        self._apply(entry)
        for file in model.files[1:] if entry.upstream is None else ():
            await self._add_adapter(entry, self._downloads / model.folder / file.name)
        self._pool.changes.model_changed(entry)
        log.info("model %s is added from %s", model.name, entry.source)
        if entry.resident.is_pinned:
            try:
                await self._pool.load(entry, wait=False)
            except DomainError as error:
                log.error("model %s is pinned, and cannot be loaded: %s", model.name, error)

    async def _add_adapter(self, entry: ModelEntry, path: Path) -> None:
        """Load a downloaded file if it is an adapter."""
        try:
            if await asyncio.to_thread(file_role, path) is FileRole.ADAPTER:
                await self._load_adapter(entry, path)
        except (DomainError, ModelFileInvalid) as error:
            log.error("the adapter %s of model %s is not used: %s", path.name, entry.name, error)

    async def _prepare(self, model: AddedModel, pending: PendingModel) -> ModelEntry:
        """Download what is missing and describe the model. Raises DomainErrors, StartupError."""
        report = self._reporter(pending)
        folder = self._downloads / model.folder
        if model.files:
            with disk_errors():
                await run_in_thread(write_file_list, folder, model.files)
        paths = [await self._downloader.download(file, folder, report) for file in model.files]
        path = paths[0] if paths else Path(model.source)
        if not model.files and model.sha256:
            await verify_file(path, model.sha256, report)
        projector = model.projector
        if projector not in ("auto", "none"):
            projector = str(folder / projector)
        draft_model = str(folder / model.draft_model) if model.draft_model else None
        overrides = ModelSettings(
            load=LoadPolicy.ON_DEMAND, projector=projector, draft_model=draft_model
        )
        upstream = self._sources.upstream_settings(model)

        def describe() -> ModelEntry:
            file = fileless_model(model.name)
            if not model.has_no_file:
                file = describe_file(path, model.name)
            if upstream is not None:
                return make_upstream_entry(file, upstream, ModelSettings())
            return make_entry(file, overrides, self._settings, _no_download)

        entry = await asyncio.to_thread(describe)
        if entry.file.problem:
            raise StartupError(entry.file.problem)
        entry.source = model.shown_source
        return entry

    def _reporter(self, pending: PendingModel) -> Callable[[DownloadProgress], None]:
        clock = asyncio.get_running_loop().time
        reported_at = 0.0

        def report(progress: DownloadProgress) -> None:
            nonlocal reported_at
            before, pending.download = pending.download, progress
            is_other = (before.file, before.is_verified) != (progress.file, progress.is_verified)
            if is_other or clock() - reported_at >= _REPORT_S:
                reported_at = clock()
                self._pool.changes.model_changed(pending)

        return report

    def _apply(self, entry: ModelEntry) -> None:
        model = self._added.models[entry.name]
        if model.upstream is not None:
            return
        entry.resident.is_pinned, entry.resident.idle_ttl_s = model.pinned, model.idle_ttl_s

    async def _remove(self, model: AddedModel, *, force: bool) -> None:
        if (task := self._tasks.get(model.name)) is not None:
            task.cancel()
            await asyncio.wait((task,))
        if self._catalog.pending.pop(model.name, None) is not None:
            self._pool.changes.notify()
        if self._catalog.has_model(model.name):
            await self._pool.remove(self._catalog.find_model(model.name), force=force)
        async with self._folder_locks[model.folder]:
            if all(each.folder != model.folder for each in self._added.models.values()):
                folder = self._downloads / model.folder
                names = [file.name for file in model.files]
                await asyncio.to_thread(delete_downloads, folder, names)
        log.info("model %s is removed", model.name)


def _no_download(remote: RemoteFile) -> Path:
    raise StartupError(f"{remote} was not downloaded")
