"""The vectors of tokens, which llama.cpp looks up itself in a batch of tokens."""

import ctypes
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt
from llama_cpp.llama_cpp import _lib

from inference_svc.engine.media import Vectors
from model_files.ggml_types import TENSOR_LAYOUTS
from model_files.gguf import Tensor, read_header

_TENSOR = "token_embd.weight"
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


class TokenVectors:
    """The rows of a model file's embedding matrix, padded with zeros to `width` values."""

    def __init__(self, path: Path, data_start: int, tensor: Tensor, width: int) -> None:
        layout = TENSOR_LAYOUTS[tensor.type_id]
        self._length, count = tensor.shape
        self._width = width
        row_bytes = self._length // layout.block_items * layout.block_bytes
        offset = data_start + tensor.offset
        self._rows = np.memmap(path, np.uint8, "r", offset, (count, row_bytes))
        _lib.ggml_get_type_traits.restype = ctypes.POINTER(_TypeTraits)
        self._to_float = _lib.ggml_get_type_traits(tensor.type_id).contents.to_float

    @classmethod
    def of_model(cls, path: Path, width: int) -> Self | None:
        """Those of a model file; None if it has no such matrix, as some parts of a split model."""
        header = read_header(path, keep_tensors=True)
        for tensor in header.tensors:
            if tensor.name == _TENSOR and tensor.type_id in TENSOR_LAYOUTS:
                return cls(path, header.data_start, tensor, width)
        return None

    def of(self, tokens: npt.NDArray[np.int32]) -> Vectors:
        """The vectors of tokens, of shape (tokens, width)."""
        rows = np.ascontiguousarray(self._rows[tokens])
        vectors = np.zeros((len(tokens), self._width), np.float32)
        if not self._to_float:  # float32
            vectors[:, : self._length] = rows.view(np.float32)
            return vectors
        values = np.empty((len(tokens), self._length), np.float32)
        self._to_float(rows.ctypes.data, values.ctypes.data, values.size)
        vectors[:, : self._length] = values
        return vectors
