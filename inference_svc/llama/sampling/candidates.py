"""Preallocated sampling buffers of one thread."""

import ctypes
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt

Logits = npt.NDArray[np.float32]
"""One logit for each token of the vocabulary."""
TokenIds = npt.NDArray[np.integer[Any]]
_CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])


class Candidates:
    """A `llama_token_data_array` with room for the whole vocabulary, and two rows of scratch
    memory, `masked` and `weights`. One thread at a time may use it."""

    def __init__(self, vocabulary_size: int) -> None:
        self._ids = np.arange(vocabulary_size, dtype=np.int32)
        self._data = np.zeros(vocabulary_size, _CANDIDATE)
        self._pointer = self._data.ctypes.data_as(llama_cpp.llama_token_data_p)
        self.masked: Logits = np.empty(vocabulary_size, np.float32)
        self.weights: Logits = np.empty(vocabulary_size, np.float32)
        self.array: Any = llama_cpp.llama_token_data_array()
        self.reference = ctypes.byref(self.array)

    def fill(self, logits: Logits, ids: TokenIds | None) -> None:
        """Copy a row of logits, of all tokens or of `ids`."""
        if ids is None:
            self.put(self._ids, logits)
        else:
            self.put(ids, logits[ids])

    def put(self, ids: TokenIds, logits: Logits) -> None:
        """Copy tokens with their logits; at most as many as the vocabulary has."""
        size = len(ids)
        self._data["id"][:size] = ids
        self._data["logit"][:size] = logits
        self.array.data = self._pointer
        self.array.size = size
        self.array.selected = -1
        self.array.sorted = False

    def view(self) -> npt.NDArray[Any]:
        """The remaining candidates, without a copy."""
        # Filters may have changed the native pointer.
        address = ctypes.addressof(self.array.data.contents)
        size = self.array.size
        buffer: Any = (ctypes.c_char * (size * _CANDIDATE.itemsize)).from_address(address)
        view: npt.NDArray[Any] = np.frombuffer(buffer, _CANDIDATE, size)
        return view

    def selected(self) -> int:
        """The token that the last sampler of a chain selected."""
        return int(self.array.data[self.array.selected].id)
