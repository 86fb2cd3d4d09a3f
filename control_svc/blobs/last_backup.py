"""The gauge of the newest backup, which `corral backup` notes in the blob store."""

import asyncio
import logging
from typing import Final

from control_svc.blobs.store import BlobStore
from svc_kit.logs import log_errors
from svc_kit.metrics import BackupMetrics

_log = logging.getLogger(__name__)
_INTERVAL_S: Final = 60.0


async def follow_backups(blobs: BlobStore, metrics: BackupMetrics) -> None:
    """Update the gauge until cancelled; it keeps its value while the store fails."""
    while True:
        with log_errors(_log, "the last backup is not known", lambda _: logging.DEBUG):
            await show_last_backup(blobs, metrics)
        await asyncio.sleep(_INTERVAL_S)


async def show_last_backup(blobs: BlobStore, metrics: BackupMetrics) -> None:
    """Update the gauge once. Raises StorageFailed."""
    if (last := await blobs.last_backup()) is not None:
        metrics.last.set(last.timestamp())
