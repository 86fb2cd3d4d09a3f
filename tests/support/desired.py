"""A reconciler with a fake control service and no engines: tests set the desired state."""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, cast

from inference_svc.adapter_sync.cache import AdapterCache
from inference_svc.adapter_sync.control_client import Report
from inference_svc.adapter_sync.crash_marker import CrashMarker
from inference_svc.adapter_sync.installer import AdapterInstaller
from inference_svc.adapter_sync.reconciler import Reconciler
from inference_svc.adapter_sync.state import DesiredAdapter, DesiredState
from inference_svc.engine_client.adapter_registry import Adapter
from inference_svc.model_pool.catalog import Catalog
from inference_svc.rpc.adapters import AdapterOrder, AdapterService
from model_files.adapter_facts import AdapterFacts
from svc_kit.errors import DomainError, UpstreamUnavailable
from svc_kit.local_files import PrivateFile
from tests.support.pooled import make_entry, settle


def make_desired(adapter_id: str, content: bytes = b"bytes", **fields: Any) -> DesiredAdapter:
    defaults: dict[str, Any] = {
        "project": "mine",
        "name": "voice",
        "model": "a",
        "default_scale": 1.0,
        "standing_scale": 0.0,
        "attempt": 0,
    }
    digest = hashlib.sha256(content).hexdigest()
    return DesiredAdapter(
        id=adapter_id, digest=digest, file_bytes=len(content), **{**defaults, **fields}
    )


class FakeControl:
    """Sends the desired states and files that a test sets, unless `is_down`."""

    def __init__(self) -> None:
        self.states: asyncio.Queue[DesiredState] = asyncio.Queue()
        self.blobs: dict[str, bytes] = {}
        self.downloads = 0
        self.reports: Sequence[Report] = ()
        self.followed = ""
        """The revision in the last report."""
        self.is_down = False
        self.has_bytes = True
        self._revision = 0

    def set_desired(self, *adapters: DesiredAdapter, content: bytes = b"bytes") -> None:
        self.blobs[hashlib.sha256(content).hexdigest()] = content
        self._revision += 1
        state = DesiredState(str(self._revision), {each.id: each for each in adapters})
        self.states.put_nowait(state)

    async def watch(self, state: DesiredState) -> AsyncGenerator[DesiredState, None]:
        self._check()
        while True:
            yield await self.states.get()

    async def download(self, digest: str) -> AsyncIterator[bytes]:
        self._check()
        if not self.has_bytes:
            raise UpstreamUnavailable(service="control")
        self.downloads += 1
        yield self.blobs[digest]

    async def report(
        self, frontend: str, address: str, reports: Sequence[Report], revision: str
    ) -> None:
        self._check()
        self.reports, self.followed = reports, revision

    def _check(self) -> None:
        if self.is_down:
            raise UpstreamUnavailable(service="control")


class FakeLoader:
    """Loads once `gate` is set, or fails with the error in `errors`, by digest."""

    def __init__(self, catalog: Catalog, folder: Path) -> None:
        self._catalog = catalog
        self._folder = folder
        self.orders: list[AdapterOrder] = []
        self.errors: dict[str, DomainError] = {}
        self.gate = asyncio.Event()
        self.gate.set()

    async def load(self, order: AdapterOrder) -> Adapter:
        self.orders.append(order)
        await self.gate.wait()
        if order.digest in self.errors:
            raise self.errors[order.digest]
        model = self._catalog.find_model(order.model)
        file = PrivateFile.copy_of(Path(order.path), self._folder)
        adapter = Adapter(
            order.name,
            model.name,
            file,
            AdapterFacts(architecture="llama", base_model="", rank=8, size_bytes=100, title=""),
            order.default_scale,
            project=order.project,
            standing_scale=order.standing_scale,
        )
        model.adapters.add(adapter)
        return adapter


class Frontend:
    """A reconciler over the fakes. Another one in the same folder is the frontend restarted."""

    def __init__(self, folder: Path, control: FakeControl) -> None:
        self.control = control
        self.catalog = Catalog([make_entry("a"), make_entry("b")])
        self.loader = FakeLoader(self.catalog, folder)
        self.crash_marker = CrashMarker(folder / "marks")
        self.crash_marker.open()
        self.cache = AdapterCache(folder / "cache", 1000)
        self.cache.open()
        loading = cast(AdapterService, self.loader)
        installer = AdapterInstaller(control, self.cache, self.crash_marker, self.catalog, loading)
        self.reconciler = Reconciler(control, installer, folder, "frontend_1", poll_interval_s=0.01)

    def find(self, project: str = "mine", name: str = "voice") -> Adapter | None:
        owner = self.catalog.find_adapter_model(name, project)
        return None if owner is None else owner.adapters.find(name, project)

    def states(self) -> list[tuple[str, str]]:
        """State and reason of every adapter in the last report."""
        return [(r.state.removeprefix("STATE_"), r.reason) for r in self.control.reports]

    async def wait_for(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(50):
            while not condition():
                await settle()
