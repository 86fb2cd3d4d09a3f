"""Blocks of cells, so that states with a common prefix store it once.

States are split and joined byte for byte: a block is shared by states that got it from each other,
not by those that computed equal tokens apart, whose cells may differ in their last bits.
"""

import hashlib
import os
import re
from collections.abc import Callable, Container, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from inference_svc.engine.saved_state import CellLayout, allocate_state
from svc_kit.local_files import open_regular, own_files

T = TypeVar("T")
BLOCK_TOKENS: Final = 256
_MAX_READERS: Final = min(4, os.cpu_count() or 1)
"""Reading and hashing a block holds no GIL; more threads would take the cores of other requests."""
_DIGEST_BYTES = 24
_SUFFIX, _UNFINISHED = ".block", ".unfinished"
_FILE = re.compile(rf"[0-9a-f]{{{2 * _DIGEST_BYTES}}}(\{_SUFFIX}|\{_UNFINISHED})")


class BlockDamaged(Exception):
    """A block is missing, or its content is not that of its name."""


class CellBlocks(NamedTuple):
    """The names of the blocks of a state, and where it has them."""

    names: tuple[str, ...]
    layout: CellLayout

    @property
    def block_bytes(self) -> int:
        """Size of each block."""
        return BLOCK_TOKENS * self.layout.cell_bytes


def name_blocks(state: bytearray, layout: CellLayout, key: bytes, secret: bytes) -> CellBlocks:
    """Name the blocks of a state, as `BlockFolder` does."""
    contents = split_blocks(state, layout)
    return CellBlocks(tuple(_name(each, key, secret) for each in contents), layout)


def split_blocks(state: bytearray, layout: CellLayout) -> Iterator[bytes]:
    """The blocks of a state; what is after the last one is in none."""
    arrays = _view(state, layout).arrays
    for start in range(0, layout.num_cells - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        yield b"".join(array[:, start : start + BLOCK_TOKENS].tobytes() for array in arrays)


def without_blocks(state: bytearray, layout: CellLayout) -> bytearray:
    """What is in no block: the bytes outside arrays, then the cells after the last block."""
    gaps, arrays = _view(state, layout)
    end = layout.num_cells - layout.num_cells % BLOCK_TOKENS
    return bytearray().join([*gaps, *(array[:, end:].tobytes() for array in arrays)])


def join_blocks(
    rest: bytearray, blocks: Sequence[T], read: Callable[[T, memoryview], None], layout: CellLayout
) -> bytearray:
    """Return the state with these blocks and this rest; several threads `read` blocks into buffers
    of their size. Raises `ValueError` for other sizes, and what `read` raises."""
    num_blocks = layout.num_cells // BLOCK_TOKENS
    if len(blocks) != num_blocks:
        raise ValueError(f"{len(blocks)} blocks instead of {num_blocks}")
    state = allocate_state(len(rest) + num_blocks * BLOCK_TOKENS * layout.cell_bytes)
    gaps, arrays = _view(state, layout)
    at = 0
    for gap in gaps:
        gap[:] = rest[at : at + len(gap)]
        at += len(gap)

    def fill(start: int, content: bytearray) -> None:
        at = 0
        for array in arrays:
            cells = array[:, start : start + BLOCK_TOKENS]
            values = np.frombuffer(content, np.uint8)[at : at + cells.size]
            cells[:] = values.reshape(cells.shape)
            at += cells.size

    def read_share(first: int) -> None:
        # One buffer for all: a new one for each block would cost more than its digest.
        content = bytearray(BLOCK_TOKENS * layout.cell_bytes)
        for number in range(first, num_blocks, _MAX_READERS):
            read(blocks[number], memoryview(content))
            fill(number * BLOCK_TOKENS, content)

    fill(num_blocks * BLOCK_TOKENS, rest[at:])
    with ThreadPoolExecutor(_MAX_READERS, "disk-prefix-blocks") as readers:
        list(readers.map(read_share, range(min(_MAX_READERS, num_blocks))))
    return state


class _StateView(NamedTuple):
    """What is before, between and after the arrays of a state, and the arrays, of shape (rows,
    cells, bytes of a cell)."""

    gaps: list[memoryview]
    arrays: list[npt.NDArray[np.uint8]]


def _view(state: bytearray, layout: CellLayout) -> _StateView:
    data, view, at = np.frombuffer(state, np.uint8), _StateView([], []), 0
    for start, rows, cell_bytes in layout.arrays:
        end = start + rows * layout.num_cells * cell_bytes
        view.gaps.append(memoryview(state)[at:start])
        view.arrays.append(data[start:end].reshape(rows, layout.num_cells, cell_bytes))
        at = end
    view.gaps.append(memoryview(state)[at:])
    return view


class BlockFolder:
    """The files of blocks. A name is a digest of the content with the `secret` of the installation
    and the cache `key` of the project, so projects share no blocks. It is verified by each read, so
    writes do not wait for the disk. Methods raise OSError."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def exists(self) -> bool:
        """Whether the folder exists, which the first write creates."""
        return self._path.is_dir()

    @property
    def num_bytes(self) -> int:
        """Size of all files."""
        num_bytes = 0
        with suppress(FileNotFoundError), os.scandir(self._path) as entries:
            for entry in entries:
                if _FILE.fullmatch(entry.name):
                    with suppress(FileNotFoundError):  # deleted by another process meanwhile
                        num_bytes += entry.stat(follow_symlinks=False).st_size
        return num_bytes

    def missing_bytes(self, blocks: CellBlocks) -> int:
        """The size of those blocks that are not there."""
        return blocks.block_bytes * sum(not self._has(each, blocks) for each in blocks.names)

    def write(self, blocks: CellBlocks, state: bytearray) -> None:
        """Write those blocks of a state that are not there."""
        self._path.mkdir(mode=0o700, exist_ok=True)
        for name, content in zip(blocks.names, split_blocks(state, blocks.layout), strict=True):
            if not self._has(name, blocks):
                unfinished = self._file(name).with_suffix(_UNFINISHED)
                unfinished.touch(mode=0o600)
                unfinished.write_bytes(content)
                unfinished.replace(self._file(name))

    def read_into(self, name: str, content: memoryview, key: bytes, secret: bytes) -> None:
        """Read a block. Raises `BlockDamaged`; if it is altered, it is deleted."""
        try:
            with open_regular(self._file(name)) as file:
                is_whole = file.readinto(content) == len(content) and not file.read(1)
        except FileNotFoundError:
            raise BlockDamaged from None
        if not is_whole or _name(content, key, secret) != name:
            self._file(name).unlink(missing_ok=True)
            raise BlockDamaged

    def delete_others(self, names: Container[str]) -> None:
        """Delete all blocks but these, and what a crash left unfinished."""
        for path in own_files(self._path, _FILE):
            if path.suffix == _UNFINISHED or path.stem not in names:
                path.unlink(missing_ok=True)

    def _has(self, name: str, blocks: CellBlocks) -> bool:
        try:
            return self._file(name).lstat().st_size == blocks.block_bytes
        except FileNotFoundError:
            return False

    def _file(self, name: str) -> Path:
        return self._path / f"{name}{_SUFFIX}"


def _name(content: bytes | memoryview, key: bytes, secret: bytes) -> str:
    digest = hashlib.blake2b(len(key).to_bytes(4), key=secret, digest_size=_DIGEST_BYTES)
    digest.update(key)
    digest.update(content)
    return digest.hexdigest()
