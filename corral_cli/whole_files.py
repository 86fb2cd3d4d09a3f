"""Files that a command writes: whole, or not there."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def whole_file(output: Path) -> Iterator[BinaryIO]:
    """A file that takes the place of `output` when it is whole; nobody else writes to it."""
    part = output.with_name(f"{output.name}.{secrets.token_hex(4)}.part")
    try:
        with part.open("xb") as written:
            yield written
        part.replace(output)
    finally:
        part.unlink(missing_ok=True)
