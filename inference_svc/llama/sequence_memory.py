"""What llama.cpp keeps of each slot in its memory, and how much of it can be dropped.

The memory has the keys and values of all positions, of those in a sliding window, a recurrent state
of the last position, or several of these.
"""

import ctypes
from typing import Any

import llama_cpp

from inference_svc.engine.saved_state import allocate_state
from inference_svc.llama.state_convert import (
    HEAD_BYTES,
    LENGTHS_BYTES,
    cache_lengths,
    window_length,
    write_lengths,
)

_CHUNKED = frozenset({"llama4"})
"""Architectures whose windows are chunks: a position depends on those since the last multiple of
the size. llama.cpp's API has the size of a window, but not its type."""


class SequenceMemory:
    """The memory of a context. Positions are those of llama.cpp."""

    def __init__(self, model: Any, context: Any, architecture: str) -> None:
        self._context = context
        self._memory = llama_cpp.llama_get_memory(context)
        self._is_recurrent = bool(llama_cpp.llama_model_is_recurrent(model))
        self._is_hybrid = bool(llama_cpp.llama_model_is_hybrid(model))
        # If false, slots are not copied by llama.cpp: its copy of a recurrent state is shared.
        self.can_trim = not (self._is_recurrent or self._is_hybrid)
        # Models name a window that they do not use; only one in use has a cache of its own.
        has_window = not self.can_trim or self._bytes(0) != self._partial_bytes(0)
        self._window = int(llama_cpp.llama_model_n_swa(model)) if has_window else 0
        self._is_chunked = architecture in _CHUNKED

    def last(self, slot: int) -> int:
        """The last position of a slot; -1 if it is empty."""
        return int(llama_cpp.llama_memory_seq_pos_max(self._memory, slot))

    def can_cut(self, slot: int, position: int) -> bool:
        """Whether a slot has all that this position depends on, so that it can go on from there.

        llama.cpp removes the positions after any one, whatever a window has before it.
        """
        if not self.can_trim:
            return position > self.last(slot)
        first = int(llama_cpp.llama_memory_seq_pos_min(self._memory, slot))
        return first < position and first <= self._window_start(position)

    def _window_start(self, position: int) -> int:
        """The first position on which another one depends."""
        if not self._window:
            return 0
        if self._is_chunked:
            return position - position % self._window
        return max(position - self._window + 1, 0)

    def cut(self, slot: int, position: int) -> bool:
        """Remove this and all later positions of a slot; False, without any effect, if `can_cut` is
        false. All can be removed."""
        if position > 0 and not self.can_cut(slot, position):
            return False
        return bool(llama_cpp.llama_memory_seq_rm(self._memory, slot, position or -1, -1))

    def copy(self, source: int, target: int, end: int) -> None:
        """Copy the positions of a slot before `end`, all of them if it is -1."""
        llama_cpp.llama_memory_seq_cp(self._memory, source, target, 0, end)

    def min_restored(self, tokens: int) -> int:
        """The fewest tokens, besides none, to which a slot can be cut into which the state of this
        many tokens was restored: a state has only the window of its last position."""
        if not self.can_trim:
            return tokens
        if not (start := self._window_start(tokens - 1)):
            return 0
        return start + 1 if self._is_chunked else tokens - 1

    def state_bytes(self, slot: int) -> int:
        """Size of the state that `save` would return."""
        return self._bytes(slot) + LENGTHS_BYTES

    def save(self, slot: int) -> bytearray:
        """Serialize a slot, followed by the lengths of its caches."""
        size = self._bytes(slot)
        state = allocate_state(size + LENGTHS_BYTES)
        view = (ctypes.c_uint8 * size).from_buffer(state)
        llama_cpp.llama_state_seq_get_data(self._context, view, size, slot)
        lengths = cache_lengths(
            size, self._partial_bytes(slot), recurrent=self._is_recurrent, hybrid=self._is_hybrid
        )
        if self._is_hybrid and self._window:
            second = window_length(state, HEAD_BYTES + lengths.first)
            lengths = lengths._replace(second=second)
        write_lengths(state, lengths)
        return state

    def restore(self, slot: int, state: bytearray, size: int) -> bool:
        """Replace an empty slot by the first `size` bytes of a state; False if it does not fit."""
        view = (ctypes.c_uint8 * size).from_buffer(state)
        return size == int(llama_cpp.llama_state_seq_set_data(self._context, view, size, slot))

    def _bytes(self, slot: int, flags: int = 0) -> int:
        return int(llama_cpp.llama_state_seq_get_size_ext(self._context, slot, flags))

    def _partial_bytes(self, slot: int) -> int:
        return self._bytes(slot, llama_cpp.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY)
