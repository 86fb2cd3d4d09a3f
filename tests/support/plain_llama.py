"""Greedy generation with llama.cpp alone, one sequence in a context of its own."""

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import llama_cpp
import numpy as np
import numpy.typing as npt
from llama_cpp import mtmd_cpp as mtmd

from inference_svc.llama import library
from inference_svc.llama.attention import set_flash_attention_and_rope
from inference_svc.models.placement import Attention
from tests.support.media_prompts import Chunk, Part

_CELLS = 1024
Logprobs = npt.NDArray[np.float32]


class PlainMedia(NamedTuple):
    """A picture of a size, or with width 0 a sound, and its projector."""

    projector: Path
    data: bytes
    width: int = 0
    height: int = 0

    def bitmap(self) -> Any:
        """The picture or sound as libmtmd's object."""
        values = ctypes.c_char_p(self.data)
        if self.width:
            pixels = ctypes.cast(values, ctypes.POINTER(ctypes.c_uint8))
            return mtmd.mtmd_bitmap_init(self.width, self.height, pixels)
        samples = ctypes.cast(values, ctypes.POINTER(ctypes.c_float))
        return mtmd.mtmd_bitmap_init_from_audio(len(self.data) // 4, samples)


class PlainLlama:
    """A model with one sequence of up to 1,024 cells. Each part is one batch and micro-batch."""

    def __init__(self, path: Path) -> None:
        library.start()
        self._model = llama_cpp.llama_model_load_from_file(
            str(path).encode(), llama_cpp.llama_model_default_params()
        )
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = _CELLS
        params.n_threads = params.n_threads_batch = 1
        set_flash_attention_and_rope(params, self._model, Attention())
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        self._sections = 4 if llama_cpp.llama_model_rope_type(self._model) in (8, 40) else 1
        self.width = llama_cpp.llama_model_n_embd_inp(self._model)
        vocabulary = llama_cpp.llama_model_get_vocab(self._model)
        self._num_tokens = llama_cpp.llama_vocab_n_tokens(vocabulary)
        self._position = 0

    def close(self) -> None:
        """Free all native memory."""
        llama_cpp.llama_free(self._context)
        llama_cpp.llama_model_free(self._model)

    def generate(self, parts: Sequence[Part], count: int) -> list[int]:
        """The `count` most probable tokens, one after the other."""
        for part in parts:
            if isinstance(part, Chunk):
                self._decode_chunk(part)
            else:
                self._decode_tokens(part)
        output = [self._best()]
        while len(output) < count:
            self._decode_tokens(output[-1:])
            output.append(self._best())
        return output

    def logprobs(self, tokens: Sequence[int]) -> Logprobs:
        """The log probabilities of all tokens after each of these: shape (tokens, vocabulary).

        The tokens are computed one by one, after removing all cells.
        """
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), True)
        self._position, rows = 0, []
        for token in tokens:
            self._decode_tokens([token])
            logits = self._logits().astype(np.float64)
            rows.append(logits - logits.max() - np.log(np.exp(logits - logits.max()).sum()))
        return np.array(rows, np.float32)

    def generate_from_media(
        self, start: Sequence[int], media: PlainMedia, end: Sequence[int], count: int
    ) -> list[int]:
        """As `generate`, with a picture or a sound that libmtmd encodes and decodes."""
        self._decode_tokens(start)
        params = mtmd.mtmd_context_params_default()
        params.use_gpu = params.print_timings = False
        params.n_threads = 1
        context = mtmd.mtmd_init_from_file(str(media.projector).encode(), self._model, params)
        bitmap, chunks = media.bitmap(), mtmd.mtmd_input_chunks_init()
        part = mtmd.mtmd_input_part(None, bitmap)
        parts = (ctypes.POINTER(mtmd.mtmd_input_part) * 1)(ctypes.pointer(part))
        mtmd.mtmd_tokenize_from_parts(context, chunks, parts, 1, False)
        position = ctypes.c_int(-1)
        mtmd.mtmd_helper_eval_chunks(
            context, self._context, chunks, self._position, 0, _CELLS, False, position
        )
        self._position = position.value
        mtmd.mtmd_input_chunks_free(chunks)
        mtmd.mtmd_bitmap_free(bitmap)
        mtmd.mtmd_free(context)
        return self.generate([end], count)

    def _decode_tokens(self, tokens: Sequence[int]) -> None:
        positions = self._position + np.arange(len(tokens), dtype=np.int32)
        self._decode("token", np.array(tokens, np.int32), positions, len(tokens))
        self._position += len(tokens)

    def _decode_chunk(self, chunk: Chunk) -> None:
        count = chunk.num_tokens
        positions = np.zeros((self._sections, count), np.int32)
        if chunk.grid is None:
            positions[: min(self._sections, 3)] = self._position + np.arange(count)
        else:
            columns = chunk.grid[0]
            positions[0] = self._position
            positions[1] = [self._position + i // columns for i in range(count)]
            positions[2] = [self._position + i % columns for i in range(count)]
        llama_cpp.llama_set_causal_attn(self._context, chunk.is_causal)
        self._decode("embd", chunk.read(self.width), positions.ravel(), count)
        llama_cpp.llama_set_causal_attn(self._context, True)
        self._position += chunk.num_positions

    def _decode(
        self, name: str, values: npt.NDArray[Any], positions: npt.NDArray[np.int32], count: int
    ) -> None:
        batch = llama_cpp.llama_batch()
        kept = [values, positions, np.zeros(count, np.int8)]
        kept[2][-1] = 1
        for field, array in zip((name, "pos", "logits"), kept, strict=True):
            setattr(batch, field, array.ctypes.data_as(type(getattr(batch, field))))
        batch.n_tokens = count
        if code := llama_cpp.llama_decode(self._context, batch):
            raise RuntimeError(f"llama_decode returned {code}")

    def _best(self) -> int:
        return int(self._logits().argmax())

    def _logits(self) -> Logprobs:
        row = llama_cpp.llama_get_logits_ith(self._context, -1)
        address = ctypes.addressof(row.contents)
        buffer = (ctypes.c_float * self._num_tokens).from_address(address)
        return np.frombuffer(buffer, np.float32)
