"""Loads one wanted adapter after the other into the engines, and unloads it."""

from collections.abc import Collection, Mapping

from inference_svc.adapter_sync.cache import AdapterCache
from inference_svc.adapter_sync.control_client import Control
from inference_svc.adapter_sync.crash_marker import CrashMarker
from inference_svc.adapter_sync.state import DesiredAdapter
from inference_svc.engine_client.adapter_registry import Adapter
from inference_svc.model_pool.catalog import Catalog
from inference_svc.rpc.adapters import AdapterOrder, AdapterService
from svc_kit.errors import AdapterCrashedEngine, AdapterDigestMismatch, AdapterNotFound


class AdapterInstaller:
    """Brings adapters from control or the cache into engines."""

    def __init__(
        self,
        control: Control,
        cache: AdapterCache,
        marks: CrashMarker,
        catalog: Catalog,
        loading: AdapterService,
    ) -> None:
        self._control = control
        self._cache = cache
        self._marks = marks
        self._catalog = catalog
        self._loading = loading

    def has_bytes(self, wanted: DesiredAdapter) -> bool:
        """Whether nothing has to be fetched."""
        return self._cache.find(wanted.digest) is not None

    async def fetch(self, wanted: DesiredAdapter, every: Mapping[str, DesiredAdapter]) -> None:
        """Get its bytes into the cache, where those that none of `every` needs make room.

        Raises `AdapterTooLarge`, `AdapterDigestMismatch`, `StorageFailed`, or what control says.
        """
        needed: Collection[str] = {each.digest for each in every.values()}
        chunks = self._control.download(wanted.digest)
        await self._cache.store(wanted.name, wanted.digest, wanted.file_bytes, chunks, needed)

    async def load(self, wanted: DesiredAdapter) -> Adapter:
        """Have its engine load what the cache holds.

        Raises `AdapterCrashedEngine` where one has died of it before, or as `AdapterService.load`.
        """
        if self._marks.is_blamed(wanted.digest):
            raise AdapterCrashedEngine(adapter=wanted.name)
        path = self._cache.find(wanted.digest)
        if path is None:
            raise AdapterNotFound(adapter=wanted.name)
        order = AdapterOrder(
            wanted.name,
            wanted.model,
            str(path),
            wanted.digest,
            wanted.default_scale,
            from_anywhere=True,
            project=wanted.project,
            standing_scale=wanted.standing_scale,
        )
        try:
            return await self._loading.load(order)
        except AdapterDigestMismatch:
            self._cache.drop(wanted.digest)  # damaged since it came: to be fetched again
            raise

    def unload(self, wanted: DesiredAdapter) -> None:
        """Remove its name; running requests continue with it."""
        owner = self._catalog.find_adapter_model(wanted.name, wanted.project)
        if owner is not None:
            owner.adapters.unload(wanted.name, wanted.project)

    def tune(self, wanted: DesiredAdapter) -> None:
        """Give what is loaded the scales that are wanted."""
        adapter = self.loaded(wanted)
        if adapter is not None:
            adapter.default_scale = wanted.default_scale
            adapter.standing_scale = wanted.standing_scale

    def loaded(self, wanted: DesiredAdapter) -> Adapter | None:
        """The generation under its name, where it has its bytes."""
        owner = self._catalog.find_adapter_model(wanted.name, wanted.project)
        adapter = None if owner is None else owner.adapters.find(wanted.name, wanted.project)
        return adapter if adapter is not None and adapter.digest == wanted.digest else None

    def is_idle(self, adapter: Adapter) -> bool:
        """Whether its model is not in memory: the adapter comes with it when it is."""
        return self._catalog.find_model(adapter.model).engine is None

    def forgive(self, wanted: DesiredAdapter) -> None:
        """Retry it on request."""
        self._marks.forgive(wanted.digest)
