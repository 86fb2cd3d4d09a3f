"""What a disk refuses, in the words of our errors."""

from collections.abc import Iterator
from contextlib import contextmanager

from svc_kit.errors import StorageFailed


@contextmanager
def disk_errors() -> Iterator[None]:
    """Raises StorageFailed where the disk is full, or fails."""
    try:
        yield
    except OSError as error:
        raise StorageFailed(problem=error.strerror or "input or output failed") from error
