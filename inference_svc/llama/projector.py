"""Encodes pictures and sounds to vectors with a multimodal projector, through libmtmd.

libmtmd's readers of files are never called: they start ffmpeg, and small files take gigabytes.
Some pictures and projectors abort the process, so only the encoder process uses this module.
"""

import ctypes
from bisect import bisect_left
from dataclasses import dataclass
from math import isqrt
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
from llama_cpp import mtmd_cpp as mtmd

from inference_svc.engine.media import MediaKind, Vectors
from inference_svc.llama import devices, library
from inference_svc.models.projector_file import ProjectorFile

_PIXTRAL = "pixtral"
_M_PERTURB = -6  # glibc's malloc.h
_LARGEST_SIDE = 8192  # no projector uses more pixels of a picture without tiles
_SIDES = range(64, _LARGEST_SIDE + 1)  # of pictures that may be worth scaling down
_KINDS = {
    mtmd.MTMD_INPUT_CHUNK_TYPE_IMAGE: MediaKind.IMAGE,
    mtmd.MTMD_INPUT_CHUNK_TYPE_AUDIO: MediaKind.AUDIO,
}


class ProjectorMismatch(Exception):
    """The projector cannot be loaded, or does not fit the text model."""


class EncodeError(Exception):
    """libmtmd cannot encode a picture or a sound."""


@dataclass(frozen=True, slots=True)
class ProjectorSettings:
    """How to load a projector beside the text model at `model_path`.

    `image_min_tokens` and `image_max_tokens` are limits of projectors with a dynamic size; None are
    those of the projector. Without `uses_gpu` it computes on the CPU.
    """

    file: ProjectorFile
    model_path: Path
    threads: int
    uses_gpu: bool = False
    image_min_tokens: int | None = None
    image_max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class ProjectedChunk:
    """A part of an encoded picture or sound: text `tokens`, or else `num_tokens` vectors.

    `num_positions`, `grid` and `is_causal` are those of `MediaSpan`.
    """

    num_tokens: int
    num_positions: int
    kind: MediaKind | None = None
    tokens: tuple[int, ...] = ()
    grid: tuple[int, int] | None = None
    is_causal: bool = True


class Projector:
    """A loaded projector. Only one thread may use it."""

    def __init__(self, settings: ProjectorSettings) -> None:
        """Load it. Raises `ProjectorMismatch`."""
        library.start()
        if _PIXTRAL in settings.file.kinds:
            _clear_new_memory()
        mtmd.mtmd_log_set(_log_line, ctypes.c_void_p(0))
        self.file = settings.file
        self._model = _open_text_model(settings.model_path)
        self.width = int(llama_cpp.llama_model_n_embd_inp(self._model))
        params = mtmd.mtmd_context_params_default()
        params.use_gpu = settings.uses_gpu
        params.print_timings = False
        params.n_threads = settings.threads
        params.image_min_tokens = settings.image_min_tokens or -1
        params.image_max_tokens = settings.image_max_tokens or -1
        _errors.clear()
        self._context: Any = mtmd.mtmd_init_from_file(
            str(settings.file.path).encode(), self._model, params
        )
        if not self._context:
            llama_cpp.llama_model_free(self._model)
            raise ProjectorMismatch(_last_error("llama.cpp cannot load it"))
        self.has_mrope = bool(mtmd.mtmd_decode_use_mrope(self._context))
        if settings.file.needs_mrope and not self.has_mrope:
            self.close()
            raise ProjectorMismatch("it needs a text model with M-RoPE")

    def close(self) -> None:
        """Free all native memory."""
        mtmd.mtmd_free(self._context)
        llama_cpp.llama_model_free(self._model)

    @property
    def reads_images(self) -> bool:
        """Whether it encodes pictures."""
        return bool(mtmd.mtmd_support_vision(self._context))

    @property
    def audio_rate(self) -> int | None:
        """The sample rate of the sounds that it encodes, in Hz; None if it encodes none."""
        rate = int(mtmd.mtmd_get_audio_sample_rate(self._context))
        return rate if rate > 0 else None

    @property
    def usable_pixels(self) -> int:
        """The pixels of a picture that it can use; larger pictures may be scaled down before.

        Twice the sides that its vectors or tiles stand for, since scaling twice blurs. A vector of
        a dynamic size is measured where its limits have no effect: at half of the largest number.
        """
        num_chunks, num_vectors = self._size_of_square(_LARGEST_SIDE)
        side = _SIDES[
            bisect_left(_SIDES, num_vectors / 2, key=lambda side: self._size_of_square(side)[1])
        ]
        pixels = side**2 * num_vectors // self._size_of_square(side)[1]
        return 4 * max(pixels, num_chunks * self.file.image_size**2)

    @property
    def joint_tokens(self) -> int:
        """The most vectors of a chunk of a picture without causal attention, 0 if there are none.

        Of a dynamic size, a square has the largest square number of vectors below the limit; others
        have up to the limit.
        """
        side = _LARGEST_SIDE
        shapes = [(side, side), (side, side // 2), (side // 2, side), (_SIDES[0], _SIDES[0])]
        counts = [self._largest_joint_chunk(*shape) for shape in shapes]
        if len(set(counts)) == 1:
            return counts[0]
        return max(*counts, (isqrt(counts[0]) + 1) ** 2 - 1)

    def _largest_joint_chunk(self, width: int, height: int) -> int:
        chunks = self.count_image(width, height)
        return max((chunk.num_tokens for chunk in chunks if not chunk.is_causal), default=0)

    def _size_of_square(self, side: int) -> tuple[int, int]:
        """The chunks of vectors of a square picture, and their vectors."""
        chunks = [chunk for chunk in self.count_image(side, side) if chunk.kind is not None]
        return len(chunks), sum(chunk.num_tokens for chunk in chunks)

    def count_image(self, width: int, height: int) -> tuple[ProjectedChunk, ...]:
        """The chunks of a picture of a size in pixels. Raises `EncodeError`."""
        with self.split_image(width, height, None) as split:
            return split.chunks

    def split_image(self, width: int, height: int, rgb: bytes | None) -> "ProjectedMedia":
        """Split a picture of `width` x `height` x 3 bytes into chunks, to be encoded in a `with`
        block; without bytes they can only be counted. Raises `EncodeError`."""
        data = None
        if rgb is not None:
            if len(rgb) != width * height * 3:
                raise EncodeError("the pixels do not have the size of the picture")
            data = ctypes.cast(ctypes.c_char_p(rgb), ctypes.POINTER(ctypes.c_uint8))
        return ProjectedMedia(self, mtmd.mtmd_bitmap_init(width, height, data))

    def split_audio(self, samples: bytes) -> "ProjectedMedia":
        """Split float32 samples of one channel, `audio_rate` in a second, as `split_image`."""
        if len(samples) < 8 or len(samples) % 4:
            raise EncodeError("a sound needs two samples or more")
        data = ctypes.cast(ctypes.c_char_p(samples), ctypes.POINTER(ctypes.c_float))
        return ProjectedMedia(self, mtmd.mtmd_bitmap_init_from_audio(len(samples) // 4, data))


class ProjectedMedia:
    """A picture or a sound in chunks. `chunks` and `encode` may be used in its `with` block."""

    def __init__(self, projector: Projector, bitmap: Any) -> None:
        self._context = projector._context
        self._width = projector.width
        self._native = mtmd.mtmd_input_chunks_init()
        try:
            self._tokenize(bitmap)
            self.chunks = tuple(map(self._describe, self._pointers))
        except EncodeError:
            mtmd.mtmd_input_chunks_free(self._native)
            raise
        finally:
            mtmd.mtmd_bitmap_free(bitmap)

    def __enter__(self) -> "ProjectedMedia":
        return self

    def __exit__(self, *_: object) -> None:
        mtmd.mtmd_input_chunks_free(self._native)

    def encode(self, index: int) -> Vectors:
        """The vectors of a chunk, of shape (tokens, input width of the text model).

        Raises `EncodeError`.
        """
        _errors.clear()
        if mtmd.mtmd_encode_chunk(self._context, self._pointers[index]) != 0:
            raise EncodeError(_last_error("libmtmd cannot encode it"))
        shape = (self.chunks[index].num_tokens, self._width)
        vectors = np.ctypeslib.as_array(mtmd.mtmd_get_output_embd(self._context), shape).copy()
        if not np.isfinite(vectors).all():
            raise EncodeError("the projector computed values that are not finite")
        return vectors

    def _tokenize(self, bitmap: Any) -> None:
        # Without text and with parts there is no marker that could be confused with anything.
        part = mtmd.mtmd_input_part(None, bitmap)
        parts = (ctypes.POINTER(mtmd.mtmd_input_part) * 1)(ctypes.pointer(part))
        _errors.clear()
        code = mtmd.mtmd_tokenize_from_parts(self._context, self._native, parts, 1, False)
        if code != 0:
            raise EncodeError(_last_error("libmtmd cannot read it"))
        count = mtmd.mtmd_input_chunks_size(self._native)
        self._pointers = [mtmd.mtmd_input_chunks_get(self._native, i) for i in range(count)]

    def _describe(self, chunk: Any) -> ProjectedChunk:
        kind = _KINDS.get(mtmd.mtmd_input_chunk_get_type(chunk))
        num_tokens = int(mtmd.mtmd_input_chunk_get_n_tokens(chunk))
        if kind is None:
            tokens = _text_tokens(chunk)
            if min(tokens, default=0) < 0:
                raise EncodeError("the text model lacks marker tokens of the projector")
            return ProjectedChunk(num_tokens, num_tokens, tokens=tokens)
        return ProjectedChunk(
            num_tokens,
            int(mtmd.mtmd_input_chunk_get_n_pos(chunk)),
            kind,
            grid=_grid(chunk, num_tokens) if kind is MediaKind.IMAGE else None,
            is_causal=not mtmd.mtmd_decode_use_non_causal(self._context, chunk),
        )


def _text_tokens(chunk: Any) -> tuple[int, ...]:
    count = ctypes.c_size_t()
    tokens = mtmd.mtmd_input_chunk_get_tokens_text(chunk, ctypes.byref(count))
    return tuple(tokens[: count.value]) if tokens else ()


def _grid(chunk: Any, num_tokens: int) -> tuple[int, int] | None:
    """Width and height in tokens if the text model has M-RoPE, else None."""
    tokens = mtmd.mtmd_input_chunk_get_tokens_image(chunk)
    last = mtmd.mtmd_image_tokens_get_decoder_pos(tokens, 0, num_tokens - 1)
    if num_tokens == 1 or last.t:
        return None  # with plain positions, each token is one later than the token before
    return last.x + 1, last.y + 1


def _clear_new_memory() -> None:
    """Have glibc fill allocated memory with zeros from now on, except small blocks that are reused.

    libmtmd's graph of Pixtral clears the rows for [IMG_BREAK] by multiplying new memory by 0; where
    that memory held a NaN, the vectors are NaN. The memory of a GPU and of other C libraries is not
    cleared.
    """
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
        mallopt(_M_PERTURB, 0xFF)  # allocated bytes become the complement of this one


def _open_text_model(path: Path) -> Any:
    """Open a text model for its vocabulary and sizes, without weights.

    Not by `vocab_only`: that leaves the width 0, so that libmtmd neither compares it nor recognizes
    the models whose pictures have causal attention (Gemma 4 E2B, E4B).
    """
    params = llama_cpp.llama_model_default_params()
    params.no_alloc = True
    params.load_mode = llama_cpp.LLAMA_LOAD_MODE_NONE
    no_devices = devices.device_array(())
    params.devices = ctypes.cast(no_devices, ctypes.c_void_p)
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
    if not model:
        raise ProjectorMismatch("llama.cpp cannot open the text model")
    return model


_errors: list[str] = []
_ERROR = 4  # ggml's level


@llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]  # a ctypes function type
def _log_line(level: int, text: bytes, data: ctypes.c_void_p) -> None:
    if level == _ERROR:
        _errors.append(" ".join(text.decode("utf-8", "replace").split()))
    library._log_line(level, text, data)


def _last_error(default: str) -> str:
    """libmtmd's last error, which it only logs."""
    return _errors[-1].removeprefix("mtmd_init_from_file: error: ") if _errors else default
