"""The archive of the inference service, as far as this service knows of it."""

from collections.abc import Sequence

from control_svc.assembly.ground import Ground
from control_svc.clients.archive_client import RpcArchive
from control_svc.usecases.archives import ArchiveCleaner, Archives
from control_svc.usecases.working import JobHandler


def archives(ground: Ground) -> Archives:
    """What has deleted objects forgotten. Only our own services name objects, by their token."""
    return Archives(ground.ids, is_used=ground.token is not None)


def archive_handlers(ground: Ground) -> Sequence[JobHandler]:
    """What does the jobs of it."""
    if ground.token is None:
        return []
    return [ArchiveCleaner(RpcArchive(ground.inference, ground.token))]
