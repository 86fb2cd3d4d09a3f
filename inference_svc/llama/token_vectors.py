"""The vectors of tokens, which llama.cpp looks up itself in a batch of tokens."""

import ctypes
import logging
import math
import os
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from llama_cpp.llama_cpp import _lib

from inference_svc.engine.backend import DecodeError
from inference_svc.engine.media import Vectors
from model_files.ggml_types import TENSOR_LAYOUTS
from model_files.gguf import Tensor, read_header

log = logging.getLogger(__name__)
_TENSOR = "token_embd.weight"
_F32 = 0
_INVALID_BATCH = -1  # llama_decode's code if it has computed nothing
_ToFloat = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)


class _TypeTraits(ctypes.Structure):
    """ggml.h: `ggml_type_traits`."""

    _fields_ = (
        ("type_name", ctypes.c_char_p),
        ("blck_size", ctypes.c_int64),
        ("blck_size_interleave", ctypes.c_int64),
        ("type_size", ctypes.c_size_t),
        ("is_quantized", ctypes.c_bool),
        ("to_float", _ToFloat),
        ("from_float_ref", ctypes.c_void_p),
    )


class ModelFileChanged(DecodeError):
    """The model file has been overwritten since it was loaded, so nothing is computed."""

    def __init__(self) -> None:
        super().__init__(_INVALID_BATCH)


class TokenVectors:
    """The rows of a model file's embedding matrix, padded with zeros to `width` values.

    Rows are read when they are needed: the matrix may take a gigabyte, and llama.cpp gives no
    access to its own copy. A file that is replaced by another one stays readable; one that is
    overwritten is not read any more.
    """

    def __init__(self, path: Path, data_start: int, tensor: Tensor, width: int) -> None:
        layout = TENSOR_LAYOUTS[tensor.type_id]
        self._length = tensor.shape[0]
        self._width = width
        self._row_bytes = self._length // layout.block_items * layout.block_bytes
        self._start = data_start + tensor.offset
        self._file = path.open("rb", buffering=0)
        self._stamp = self._read_stamp()
        self._to_float = _find_converter(tensor.type_id)

    @classmethod
    def of_model(cls, path: Path, width: int, count: int) -> Self | None:
        """Those of the `count` tokens of a model; None if its file, or the first part of a split
        model, has no such matrix.

        Raises `ModelFileInvalid`.
        """
        header = read_header(path, keep_tensors=True)
        for tensor in header.tensors:
            if tensor.name == _TENSOR and _is_readable(tensor, width, count):
                return cls(path, header.data_start, tensor, width)
        return None

    def of(self, tokens: npt.NDArray[np.int32]) -> Vectors:
        """The vectors of tokens, of shape (tokens, width). Raises `ModelFileChanged`."""
        rows = b"".join(
            os.pread(self._file.fileno(), self._row_bytes, self._start + token * self._row_bytes)
            for token in tokens.tolist()
        )
        if self._read_stamp() != self._stamp:
            log.error("the model file has been overwritten: load the model again")
            raise ModelFileChanged
        vectors = np.zeros((len(tokens), self._width), np.float32)
        vectors[:, : self._length] = self._to_floats(rows).reshape(len(tokens), self._length)
        return vectors

    def close(self) -> None:
        self._file.close()

    def _to_floats(self, rows: bytes) -> Vectors:
        packed = np.frombuffer(rows, np.uint8)
        if not self._to_float:
            return packed.view(np.float32)
        values = np.empty(len(rows) // self._row_bytes * self._length, np.float32)
        self._to_float(packed.ctypes.data, values.ctypes.data, values.size)
        return values

    def _read_stamp(self) -> tuple[int, int]:
        status = os.fstat(self._file.fileno())
        return status.st_size, status.st_mtime_ns


def _is_readable(tensor: Tensor, width: int, count: int) -> bool:
    """Whether a matrix has a row of at most `width` values for each of `count` tokens, of a type
    that can be converted."""
    layout = TENSOR_LAYOUTS.get(tensor.type_id)
    if layout is None or not 0 < tensor.shape[0] <= width or tensor.shape[0] % layout.block_items:
        return False
    converts = tensor.type_id == _F32 or bool(_find_converter(tensor.type_id))
    return math.prod(tensor.shape[1:]) == count and converts


def _find_converter(type_id: int) -> Any:
    """ggml's function that converts values of a type to float32; null if it has none."""
    _lib.ggml_get_type_traits.restype = ctypes.POINTER(_TypeTraits)
    return _lib.ggml_get_type_traits(type_id).contents.to_float
