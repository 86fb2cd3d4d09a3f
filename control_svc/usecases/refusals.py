"""What becomes of bytes whose row was refused: deleted at once, not left to the sweeper."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from control_svc.domain.ports import Blob, BlobStore
from svc_kit.errors import (
    AdapterExists,
    AdapterNotFound,
    FileNotFound,
    RequestIdReused,
    RequestTooLarge,
    TooLong,
    TooManyAdapters,
    UploadNotFound,
    UploadNotPending,
)

REFUSALS = (
    AdapterExists,
    AdapterNotFound,
    FileNotFound,
    RequestIdReused,
    RequestTooLarge,
    TooLong,
    TooManyAdapters,
    UploadNotFound,
    UploadNotPending,
)
"""What the work of a transaction raises: nothing was committed. After a database that cannot be
reached, or that is full, nobody knows; those bytes are the sweeper's to judge."""


@asynccontextmanager
async def deleted_if_refused(blobs: BlobStore, blob: Blob) -> AsyncIterator[None]:
    """Around the transaction that would make `blob` somebody's; what it raises is raised on."""
    try:
        yield
    except REFUSALS:
        await blobs.delete([blob.key])
        raise
