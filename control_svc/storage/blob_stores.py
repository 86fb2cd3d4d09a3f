"""Which store of bytes the settings mean, and that it is this database's and no other's."""

from pathlib import Path

from control_svc.domain.ports import BlobStore
from control_svc.storage.blobs import FolderBlobs
from control_svc.storage.s3_blobs import Credentials, open_bucket
from svc_kit.startup import StartupError


async def open_blobs(
    url: str | None, credentials: Credentials, folder: Path, installation: str
) -> BlobStore:
    """The store of a URL; None: the folder's. Raises StartupError."""
    if url is not None:
        bucket = open_bucket(url, credentials)
        await bucket.claim(installation)
        return bucket
    store = FolderBlobs(folder)
    try:
        store.prepare()
        store.claim(installation)
    except OSError as error:
        raise StartupError(f"cannot keep files in {folder}: {error.strerror}") from error
    return store
