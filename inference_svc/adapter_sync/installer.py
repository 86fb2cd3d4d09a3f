"""Downloads, loads and unloads single adapters for the reconciler."""

from collections.abc import Collection, Iterable, Mapping

from inference_svc.adapter_sync.cache import AdapterCache
from inference_svc.adapter_sync.control_client import Control
from inference_svc.adapter_sync.crash_marker import CrashMarker
from inference_svc.adapter_sync.state import DesiredAdapter
from inference_svc.engine_client.adapter_registry import Adapter
from inference_svc.model_pool.catalog import Catalog
from inference_svc.rpc.adapters import AdapterOrder, AdapterService
from svc_kit.errors import AdapterCrashedEngine, AdapterDigestMismatch, AdapterNotFound


class AdapterInstaller:
    """Moves adapters from the control service into the cache and from there into engines."""

    def __init__(
        self,
        control: Control,
        cache: AdapterCache,
        crash_marker: CrashMarker,
        catalog: Catalog,
        service: AdapterService,
    ) -> None:
        self._control = control
        self._cache = cache
        self._crash_marker = crash_marker
        self._catalog = catalog
        self._service = service

    def reserve_names(self, every: Iterable[DesiredAdapter]) -> None:
        """Keep models that are added from getting the name of an adapter."""
        self._catalog.registered_adapters = {desired.name for desired in every}

    def has_bytes(self, desired: DesiredAdapter) -> bool:
        return self._cache.find(desired.digest) is not None

    async def fetch(self, desired: DesiredAdapter, every: Mapping[str, DesiredAdapter]) -> None:
        """Download its file into the cache; files that none of `every` needs may be evicted.

        Raises `AdapterTooLarge`, `AdapterDigestMismatch`, `StorageFailed`, or an error of the
        control service.
        """
        needed: Collection[str] = {each.digest for each in every.values()}
        chunks = self._control.download(desired.digest)
        await self._cache.store(desired.name, desired.digest, desired.file_bytes, chunks, needed)

    async def load(self, desired: DesiredAdapter) -> Adapter:
        """Load it from the cache into its engine.

        Raises `AdapterCrashedEngine` if it crashed an engine before, or like `AdapterService.load`.
        """
        if self._crash_marker.is_blamed(desired.digest):
            raise AdapterCrashedEngine(adapter=desired.name)
        path = self._cache.find(desired.digest)
        if path is None:
            raise AdapterNotFound(adapter=desired.name)
        order = AdapterOrder(
            desired.name,
            desired.model,
            str(path),
            desired.digest,
            desired.default_scale,
            from_anywhere=True,
            project=desired.project,
            standing_scale=desired.standing_scale,
        )
        try:
            return await self._service.load(order)
        except AdapterDigestMismatch:
            self._cache.delete(desired.digest)  # damaged on disk: download it again
            raise

    def unload(self, desired: DesiredAdapter) -> None:
        """Remove its name; running requests continue with it."""
        owner = self._catalog.find_adapter_model(desired.name, desired.project)
        if owner is not None:
            owner.adapters.unload(desired.name, desired.project)

    def update_scales(self, desired: DesiredAdapter) -> None:
        """Apply the desired scales to the loaded adapter."""
        adapter = self.find_loaded(desired)
        if adapter is not None:
            adapter.default_scale = desired.default_scale
            adapter.standing_scale = desired.standing_scale

    def find_loaded(self, desired: DesiredAdapter) -> Adapter | None:
        """Return the generation loaded under its name, if it has the desired digest."""
        owner = self._catalog.find_adapter_model(desired.name, desired.project)
        adapter = None if owner is None else owner.adapters.find(desired.name, desired.project)
        return adapter if adapter is not None and adapter.digest == desired.digest else None

    def is_model_unloaded(self, adapter: Adapter) -> bool:
        """Whether its base model is not loaded; the adapter loads together with the model."""
        return self._catalog.find_model(adapter.model).engine is None

    def allow_retry(self, desired: DesiredAdapter) -> None:
        """Load it again although it crashed an engine."""
        self._crash_marker.allow_retry(desired.digest)
