"""Saved state of a slot: its tokens, its cells and the sequence they came from."""

import ctypes
import mmap
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from inference_svc.engine.events import CacheSource
from inference_svc.engine.media import MediaSpan, whole_prefix
from inference_svc.engine.slots import common_prefix

_new_bytearray = ctypes.pythonapi.PyByteArray_FromStringAndSize
_new_bytearray.restype = ctypes.py_object
_new_bytearray.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t]
_libc = ctypes.CDLL(None)
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_NO_HUGE_PAGES: int | None = getattr(mmap, "MADV_NOHUGEPAGE", None)
_MIN_OWN_PAGES: Final = 4 << 20
"""From this size on, malloc maps memory that it unmaps when the state is freed."""


def allocate_state(num_bytes: int) -> bytearray:
    """A state whose content is undefined: the caller writes all of it.

    `bytearray(num_bytes)` also zeroes it. Huge pages are avoided, because they are memory that a
    virtual machine has returned to its host: 4.5 ms for each of them (measured on KVM). Both take
    longer than a read from the page cache.
    """
    state: bytearray = _new_bytearray(None, num_bytes)
    if num_bytes >= _MIN_OWN_PAGES and _NO_HUGE_PAGES is not None:
        start = ctypes.addressof(ctypes.c_char.from_buffer(state))
        first, end = -(-start // mmap.PAGESIZE), (start + num_bytes) // mmap.PAGESIZE
        _libc.madvise(first * mmap.PAGESIZE, (end - first) * mmap.PAGESIZE, _NO_HUGE_PAGES)
    return state


@dataclass(frozen=True, slots=True)
class Origin:
    """The sequence that a state was saved from.

    `tokens` are the prompt, of `num_prompt` tokens, and the output, which may be longer than the
    computed cells. `recipe` is JSON text of all parameters that determine the output; an exact
    continuation requires the same recipe. `hidden` is the sampler state that cannot be derived
    from the tokens. `adapters` are pairs of digest and scale.
    """

    request_id: str
    choice: int
    project: str
    tokens: "array[int]"
    num_prompt: int
    recipe: str
    hidden: tuple[float, ...]
    adapters: tuple[tuple[str, float], ...] = ()


class CellArray(NamedTuple):
    """Keys or values of a layer in a state, from `start` on: `rows` rows, each with `cell_bytes`
    bytes of each cell."""

    start: int
    rows: int
    cell_bytes: int


class CellLayout(NamedTuple):
    """Where a state has its cells: all arrays have `num_cells` of them, in one order, mostly
    that of positions. What is in no array, as the cells of a window, belongs to all of it."""

    num_cells: int
    arrays: tuple[CellArray, ...]

    @property
    def cell_bytes(self) -> int:
        """Size of a cell in all arrays together."""
        return sum(array.rows * array.cell_bytes for array in self.arrays)


@dataclass(frozen=True, slots=True, eq=False)
class SavedPrefix:
    """Saved cells of a slot.

    It serves prompts that start with `min_tokens` or more of its tokens (`Backend.min_restored`).
    `snapshot_id` is the file it was restored from; `kept_for` is the owner of its archive.
    `project` is whose tokens these are; empty: unknown, as of the files of stored objects.
    """

    key: bytes
    tokens: "array[int]"
    state: bytearray
    min_tokens: int
    origin: Origin | None = None
    snapshot_id: str = ""
    kept_for: str = ""
    project: str = ""

    @property
    def source(self) -> CacheSource:
        """Cache source to report in usage when this prefix is reused."""
        return CacheSource.DISK if self.snapshot_id else CacheSource.MEMORY

    def shared(
        self, prompt: Sequence[int], key: bytes, *, limit: int, media: tuple[MediaSpan, ...] = ()
    ) -> int:
        """Number of tokens of a prompt, at most `limit`, that can be restored from this prefix:
        chunks of `media` in the prompt only as a whole."""
        if key != self.key:
            return 0
        count = whole_prefix(media, common_prefix(self.tokens, prompt, limit=limit))
        return count if count >= self.min_tokens else 0
