"""Resolves the LoRA adapters of requests, and loads adapters for operators."""

import asyncio
import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corral.inference.v1 import adapter_pb2

from inference_svc.engine.request import AdapterStack, AppliedAdapter, adapter_stack
from inference_svc.engine_client.adapter_registry import Adapter, AdapterKey
from inference_svc.engine_client.client import EngineState
from inference_svc.machine import available_memory_bytes
from inference_svc.model_pool.catalog import Catalog, ModelEntry, ResolvedModel
from inference_svc.models.metadata import default_name
from model_files.adapter_facts import AdapterFacts
from model_files.sandbox_jobs import CHECK_ADAPTER
from svc_kit import errors
from svc_kit.adapter_rules import check_adapter_name, check_scale
from svc_kit.lifecycle import StartupError
from svc_kit.local_files import AllowedFolders, PrivateFile
from svc_kit.sandbox.jobs import JobFailed, JobRunner


@dataclass(frozen=True, slots=True)
class AppliedAdapters:
    """The adapter generations that a request uses, and their stack for the engine."""

    adapters: tuple[Adapter, ...] = ()
    stack: AdapterStack = ()


def resolve_adapters(
    request: Sequence[adapter_pb2.AdapterScale],
    resolved: ResolvedModel,
    catalog: Catalog,
    project: str,
) -> AppliedAdapters:
    """Resolve the adapters of a request: those that it lists, else the adapter that its `model`
    names, else the standing adapters of its project.

    Raises `AdapterNotFound`, `AdapterBaseMismatch` or the error of an invalid field.
    """
    if not request and resolved.adapter is None:
        standing = catalog.standing_adapters(resolved.model, project)
        return _applied([(adapter, adapter.standing_scale) for adapter in standing])
    if not request:
        implied = catalog.find_adapter(resolved.name, project)
        return _applied([(implied, implied.default_scale)])
    chosen: dict[str, tuple[Adapter, float]] = {}
    for index, each in enumerate(request):
        adapter = catalog.find_adapter(each.adapter, project)
        if adapter.name in chosen:
            problem = f"{adapter.name!r} is listed twice"
            raise errors.InvalidField(field=f"adapters[{index}].adapter", problem=problem)
        if adapter.model != resolved.model.name:
            problem = f"it is for {adapter.model!r}, the request is for {resolved.model.name!r}"
            raise errors.AdapterBaseMismatch(adapter=adapter.name, problem=problem)
        scale = each.scale if each.HasField("scale") else adapter.default_scale
        chosen[adapter.name] = adapter, scale
    return _applied(list(chosen.values()))


def _applied(chosen: Sequence[tuple[Adapter, float]]) -> AppliedAdapters:
    stack = adapter_stack(AppliedAdapter(adapter.engine_key, scale) for adapter, scale in chosen)
    used = {applied.digest for applied in stack}
    return AppliedAdapters(
        tuple(adapter for adapter, _ in chosen if adapter.engine_key in used), stack
    )


log = logging.getLogger(__name__)
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class AdapterOrder:
    """An adapter to load.

    An empty `model` is the first one that is no upstream's; an empty `digest` is not checked.
    `from_anywhere`, for orders from the server's configuration, allows paths outside the allowed
    folders. An empty `project` makes the adapter available to all projects.
    """

    name: str
    model: str
    path: str
    digest: str = ""
    default_scale: float = 1.0
    from_anywhere: bool = False
    project: str = ""
    standing_scale: float = 0.0


class AdapterService:
    """Loads adapters from the allowed `folders`, from private copies in the folder `copies`."""

    def __init__(
        self,
        catalog: Catalog,
        jobs: JobRunner,
        folders: Sequence[Path],
        copies: Path,
    ) -> None:
        self._catalog = catalog
        self._jobs = jobs
        self._folders = AllowedFolders(folders)
        self._copies = copies
        self._publish_lock = asyncio.Lock()

    async def load_all(self, orders: Iterable[AdapterOrder]) -> None:
        """Load the configured adapters at startup. Raises `StartupError`."""
        for order in orders:
            try:
                await self.load(order)
            except errors.DomainError as error:
                problem = f"adapter {order.name!r} ({order.path}): {error.message}"
                raise StartupError(problem) from error

    async def load_beside(self, model: ModelEntry, path: Path) -> None:
        """Load an adapter of a model under the name of its file. Raises a `DomainError`."""
        order = AdapterOrder(default_name(path), model.name, str(path), from_anywhere=True)
        await self.load(order)

    async def load(self, order: AdapterOrder) -> Adapter:
        """Load a new generation of the adapter; it is ready once its model is.

        Raises a `DomainError`; then nothing has changed.
        """
        model = self._check(order)
        path = await asyncio.to_thread(self._find, order)
        await asyncio.to_thread(_check_memory, order.name, path)
        try:
            file = await asyncio.to_thread(PrivateFile.copy_of, path, self._copies)
        except OSError as error:
            raise errors.StorageFailed(problem=f"{order.name}: {_reason(error)}") from error
        try:
            description = await self._examine(order, file, model)
        except BaseException:
            file.close()
            raise
        adapter = Adapter(
            order.name,
            model.name,
            file,
            description,
            order.default_scale,
            project=order.project,
            standing_scale=order.standing_scale,
        )
        # Shielded, because the lock must be held until the engine has answered.
        await asyncio.shield(self._publish(adapter, model))
        log.info(
            "adapter %s for %s: generation %d, SHA-256 %s",
            adapter.name,
            adapter.model,
            adapter.generation,
            adapter.digest,
        )
        return adapter

    async def _publish(self, adapter: Adapter, model: ModelEntry) -> None:
        async with self._publish_lock:
            try:
                self._check_name(adapter.key, model.name)  # again: the name may be taken by now
            except errors.DomainError:
                adapter.file.close()
                raise
            await _load_into_engine(adapter, model)

    def _check(self, order: AdapterOrder) -> ModelEntry:
        check_adapter_name(order.name)
        if not order.path:
            raise errors.MissingField(field="path")
        if order.digest and not _DIGEST.fullmatch(order.digest):
            raise errors.InvalidField(field="digest", problem="a SHA-256 has 64 hexadecimal digits")
        check_scale("default_scale", order.default_scale)
        local = (each.name for each in self._catalog if not (each.upstream or each.is_removed))
        name = order.model or next(local, "")
        model = self._catalog.find_model(name, operation="have adapters of its own")
        if model.upstream is not None:
            feature = f"adapters of '{model.name}', which an upstream engine serves"
            raise errors.FeatureUnsupported(feature=feature)
        model.file.check_generates()
        self._check_name(AdapterKey(order.project, order.name), model.name)
        return model

    def _check_name(self, key: AdapterKey, model: str) -> None:
        self._catalog.check_no_model(key.name)
        before = self._catalog.find_adapter_model(key.name, key.project)
        if before is not None and before.name != model:
            raise errors.AdapterExists(adapter=key.name)

    def _find(self, order: AdapterOrder) -> Path:
        if order.from_anywhere:
            return self._folders.find_configured("path", order.path)
        return self._folders.find("path", order.path)

    async def _examine(
        self, order: AdapterOrder, file: PrivateFile, model: ModelEntry
    ) -> AdapterFacts:
        if order.digest not in ("", file.digest):
            raise errors.AdapterDigestMismatch(
                adapter=order.name, expected=order.digest, actual=file.digest
            )
        payload = {"adapter": str(file.path), "model": [str(path) for path in model.file.paths]}
        try:
            result: dict[str, Any] = await self._jobs.run(CHECK_ADAPTER, payload, key=file.digest)
        except JobFailed as failure:
            raise errors.AdapterInvalid(adapter=order.name, problem=failure.problem) from None
        if "mismatch" in result:
            raise errors.AdapterBaseMismatch(adapter=order.name, problem=result["mismatch"])
        return AdapterFacts(**result)


async def _load_into_engine(adapter: Adapter, model: ModelEntry) -> None:
    """Load an adapter into the model's engine, or leave it to the next engine if there is none.

    Raises `EngineRestarting` or `AdapterInvalid`.
    """
    if model.engine is None or model.engine.state is EngineState.STARTING:
        model.adapters.add(adapter)
    else:
        await model.engine.load_adapter(adapter)


def _check_memory(name: str, path: Path) -> None:
    size_bytes, available = path.stat().st_size, available_memory_bytes()
    if size_bytes > available:
        raise errors.AdapterTooLarge(
            adapter=name, needed_bytes=size_bytes, available_bytes=available
        )


def _reason(error: OSError) -> str:
    return f"it cannot be copied: {(error.strerror or 'unknown reason').lower()}"
