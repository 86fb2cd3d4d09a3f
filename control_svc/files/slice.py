"""Builds files and uploads."""

from collections.abc import Sequence
from typing import Final

from control_svc.core import Core, Slice
from control_svc.db.transaction import DeleteHook
from control_svc.files.model import FileLimits
from control_svc.files.queries import delete_expired_files, expire_uploads
from control_svc.files.service import Files
from control_svc.files.uploads import Uploads
from svc_kit.fair_semaphore import FairSemaphore

MAX_TRANSFERS: Final = 32
"""Files that are received, sent or joined at once. Others wait, and projects are served in turns:
their bytes stay with the sender."""
MAX_PROJECT_TRANSFERS: Final = 24
"""Of these, those of one project, whose senders may be slow."""


def build(core: Core, on_delete: Sequence[DeleteHook]) -> Slice:
    """Build the slice; `on_delete` removes what refers to a deleted file."""
    bounds = core.settings.files
    transfers = FairSemaphore(MAX_TRANSFERS, client_limit=MAX_PROJECT_TRANSFERS)
    limits = FileLimits(bounds.file_bytes, bounds.batch_bytes)
    of_uploads = FileLimits(bounds.upload_bytes, bounds.batch_bytes)
    return Slice(
        servicers=[
            Files(*core.shared, core.blobs, limits, transfers, on_delete),
            Uploads(*core.shared, core.blobs, of_uploads, bounds.part_bytes, transfers),
        ],
        cleanup=[delete_expired_files, expire_uploads],
    )
