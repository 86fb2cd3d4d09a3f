"""Composes the adapter sync from the settings."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc.aio

from inference_svc.adapter_sync.cache import AdapterCache
from inference_svc.adapter_sync.control_client import GrpcControl
from inference_svc.adapter_sync.crash_marker import CrashMarker
from inference_svc.adapter_sync.installer import AdapterInstaller
from inference_svc.adapter_sync.reconciler import Reconciler
from inference_svc.adapter_sync.state import frontend_id
from inference_svc.config import InferenceSettings
from inference_svc.model_pool.catalog import Catalog
from inference_svc.rpc.adapters import AdapterService
from svc_kit.lifecycle import StartupError


def open_follower(
    settings: InferenceSettings,
    channel: grpc.aio.Channel | None,
    catalog: Catalog,
    adapters: AdapterService,
    address: str,
) -> Reconciler | None:
    """What keeps the adapters as the control service behind `channel` wants them; None: there is
    none.

    From now on what engines load is marked. Raises `StartupError`.
    """
    if channel is None:
        return None
    folder = settings.data_dir / "desired"
    cache = AdapterCache(folder / "adapters", settings.adapter_cache_mib << 20)
    try:
        cache.open()
        frontend = frontend_id(folder / "frontend")
    except OSError as error:
        raise StartupError(f"cannot keep adapters in {folder}: {error.strerror}") from error
    marks = CrashMarker(folder / "marks")
    marks.open()
    for known in catalog:
        known.adapters.marks = marks
    control = GrpcControl(channel)
    installer = AdapterInstaller(control, cache, marks, catalog, adapters)
    return Reconciler(control, installer, folder, frontend, address)


@asynccontextmanager
async def following(follower: Reconciler | None) -> AsyncIterator[None]:
    """Load what was wanted last and is here, then follow until the block is left."""
    if follower is None:
        yield
        return
    await follower.load_saved()
    task = asyncio.create_task(follower.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
