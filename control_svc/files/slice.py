"""Builds files and uploads."""

from collections.abc import Sequence

from control_svc.core import Core, Slice
from control_svc.db.transaction import DeleteHook
from control_svc.files.model import FileLimits
from control_svc.files.queries import delete_expired_files, expire_uploads
from control_svc.files.service import Files
from control_svc.files.servicers import (
    MAX_PROJECT_TRANSFERS,
    MAX_TRANSFERS,
    FileServicer,
    UploadServicer,
)
from control_svc.files.uploads import Uploads
from svc_kit.fair_semaphore import FairSemaphore


def build(core: Core, on_delete: Sequence[DeleteHook]) -> Slice:
    """Build the slice; `on_delete` removes what refers to a deleted file."""
    bounds = core.settings.files
    files = Files(
        core.transactions,
        core.blobs,
        core.ids,
        core.tokens,
        FileLimits(bounds.file_bytes, bounds.batch_bytes),
        core.clock,
        on_delete,
    )
    uploads = Uploads(
        core.transactions,
        core.blobs,
        core.ids,
        FileLimits(bounds.upload_bytes, bounds.batch_bytes),
        bounds.part_bytes,
        core.clock,
    )
    transfers = FairSemaphore(MAX_TRANSFERS, client_limit=MAX_PROJECT_TRANSFERS)
    return Slice(
        servicers=[FileServicer(files, transfers), UploadServicer(uploads, transfers)],
        cleanup=[delete_expired_files, expire_uploads],
    )
