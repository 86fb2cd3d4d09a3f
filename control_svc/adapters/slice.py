"""Builds the registry of adapters, with which inference frontends synchronize."""

from collections.abc import Awaitable, Callable

from control_svc.adapters.ingest import AdapterBytes
from control_svc.adapters.service import Adapters
from control_svc.adapters.sync import AdapterSync
from control_svc.core import Core, Slice, data_folder
from svc_kit.local_files import AllowedFolders


def build(core: Core, check_name: Callable[[str, str], Awaitable[None]]) -> Slice:
    """Build the slice; `check_name` raises if a project's model has the name."""
    settings = core.settings
    source = AdapterBytes(
        core.transactions,
        core.blobs,
        core.sandbox,
        AllowedFolders([*settings.adapter_folders, settings.data_dir / "adapters"]),
        scratch=data_folder(settings),
        limit=settings.adapters.file_bytes,
        clock=core.clock,
    )
    adapters = Adapters(
        *core.shared,
        core.blobs,
        source,
        settings.adapters.per_project,
        core.notifications,
        check_name,
        AdapterSync(core.across_projects, core.blobs, core.notifications),
    )
    return Slice(servicers=[adapters])
