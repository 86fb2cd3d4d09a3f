"""Projectors through libmtmd, compared with libmtmd's own way to a prompt."""

import ctypes
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import llama_cpp
import numpy as np
import pytest
from llama_cpp import mtmd_cpp as mtmd

from inference_svc.engine.media import MediaKind, Vectors
from inference_svc.llama.projector import (
    EncodeError,
    ProjectedChunk,
    Projector,
    ProjectorMismatch,
    ProjectorSettings,
)
from inference_svc.llama.vocabulary import Vocabulary
from inference_svc.media.model import DecodedAudio, DecodedMedia
from inference_svc.models.projector_file import describe_projector
from tests.support.media_models import AUDIO_KINDS, KINDS, SAMPLE_RATE, MediaPair, picture, sound

Pairs = Callable[[str], MediaPair]


@contextmanager
def opened(pair: MediaPair, image_max_tokens: int | None = None) -> Iterator[Projector]:
    file = describe_projector(pair.projector)
    settings = ProjectorSettings(file, pair.model, 1, image_max_tokens=image_max_tokens)
    projector = Projector(settings)
    yield projector
    projector.close()


def by_libmtmd(pair: MediaPair, media: DecodedMedia) -> tuple[list[tuple[int, int]], list[Vectors]]:
    """Tokens and positions of each chunk, and the vectors, with the whole text model loaded and a
    marker in a text, as llama-server does it."""
    model = llama_cpp.llama_model_load_from_file(
        str(pair.model).encode(), llama_cpp.llama_model_default_params()
    )
    params = mtmd.mtmd_context_params_default()
    params.use_gpu, params.n_threads, params.print_timings = False, 1, False
    context = mtmd.mtmd_init_from_file(str(pair.projector).encode(), model, params)
    if isinstance(media, DecodedAudio):
        samples = np.frombuffer(media.samples, np.float32)
        data: Any = samples.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        bitmap = mtmd.mtmd_bitmap_init_from_audio(len(samples), data)
    else:
        pixels = np.frombuffer(media.rgb, np.uint8)
        data = pixels.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        bitmap = mtmd.mtmd_bitmap_init(media.width, media.height, data)
    chunks, marker = mtmd.mtmd_input_chunks_init(), mtmd.mtmd_default_marker()
    text = mtmd.mtmd_input_text(marker, len(marker), False, True)
    bitmaps = (mtmd.mtmd_bitmap_p_ctypes * 1)(bitmap)
    assert mtmd.mtmd_tokenize(context, chunks, ctypes.byref(text), bitmaps, 1) == 0
    sizes, vectors = [], []
    for index in range(mtmd.mtmd_input_chunks_size(chunks)):
        chunk = mtmd.mtmd_input_chunks_get(chunks, index)
        tokens = mtmd.mtmd_input_chunk_get_n_tokens(chunk)
        sizes.append((tokens, mtmd.mtmd_input_chunk_get_n_pos(chunk)))
        if mtmd.mtmd_input_chunk_get_type(chunk) != mtmd.MTMD_INPUT_CHUNK_TYPE_TEXT:
            assert mtmd.mtmd_encode_chunk(context, chunk) == 0
            shape = (tokens, llama_cpp.llama_model_n_embd_inp(model))
            output = mtmd.mtmd_get_output_embd(context)
            vectors.append(np.ctypeslib.as_array(output, shape).copy())
    mtmd.mtmd_bitmap_free(bitmap)
    mtmd.mtmd_input_chunks_free(chunks)
    mtmd.mtmd_free(context)
    llama_cpp.llama_model_free(model)
    return sizes, vectors


@pytest.mark.parametrize("kind", [*KINDS, "idefics3"])
def test_vectors_and_chunks_equal_those_of_libmtmd(kind: str, media_pair: Pairs) -> None:
    """Without the weights of the text model, each kind of projector gives the same bits; one that
    cuts pictures into tiles gives a chunk for each, with text between."""
    pair = media_pair(kind)
    media: DecodedMedia = sound(0.7) if kind in AUDIO_KINDS else picture(200, 90)
    with (
        opened(pair) as projector,
        projector.split_audio(media.samples)
        if isinstance(media, DecodedAudio)
        else projector.split_image(media.width, media.height, media.rgb) as split,
    ):
        chunks = split.chunks
        vectors = [split.encode(i) for i, chunk in enumerate(chunks) if chunk.kind is not None]

    sizes, expected = by_libmtmd(pair, media)
    assert [(chunk.num_tokens, chunk.num_positions) for chunk in chunks] == sizes
    assert (len(vectors) > 2) == (kind == "idefics3")
    assert all(map(np.array_equal, vectors, expected))


_ENCODE_IN_USED_MEMORY = """
import ctypes
import sys
from pathlib import Path

from inference_svc.llama.projector import Projector, ProjectorSettings
from inference_svc.models.projector_file import describe_projector

libc = ctypes.CDLL(None)
libc.malloc.argtypes, libc.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
projector, model = map(Path, sys.argv[1:])
for _ in range(3):
    sizes = [2**power for power in range(12, 25)] * 3
    blocks = [libc.malloc(size) for size in sizes]
    for block, size in zip(blocks, sizes, strict=True):
        ctypes.memset(block, 0xFF, size)
        libc.free(block)
    opened = Projector(ProjectorSettings(describe_projector(projector), model, 1))
    with opened.split_image(200, 90, bytes(range(200)) * 270) as split:
        print(len([split.encode(i) for i, each in enumerate(split.chunks) if each.kind]))
    opened.close()
"""


def test_pixtral_does_not_depend_on_what_memory_held(media_pair: Pairs) -> None:
    """libmtmd multiplies the rows of [IMG_BREAK] by 0 before it sets them, which keeps NaN. In a
    process of its own, whose memory nothing has cleared."""
    pair = media_pair("pixtral")
    paths = str(pair.projector), str(pair.model)
    command = [sys.executable, "-c", _ENCODE_IN_USED_MEMORY, *paths]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)

    assert ended.stdout.split() == ["1"] * 3, ended.stderr


IMAGE = MediaKind.IMAGE
PICTURES = {
    "janus_pro": (ProjectedChunk(36, 36, IMAGE), []),
    "gemma3": (
        ProjectedChunk(16, 16, IMAGE, is_causal=False),
        ["<start_of_image>", "<end_of_image>"],
    ),
    "pixtral": (ProjectedChunk(71, 71, IMAGE), ["[IMG_END]"]),
    "qwen2vl_merger": (
        ProjectedChunk(15, 5, IMAGE, grid=(5, 3)),
        ["<|vision_start|>", "<|vision_end|>"],
    ),
    "gemma4uv": (ProjectedChunk(77, 77, IMAGE, is_causal=False), ["<|image>", "<image|>"]),
}


@pytest.mark.parametrize("kind", PICTURES)
def test_a_picture_becomes_vectors_between_marker_tokens(kind: str, media_pair: Pairs) -> None:
    """Grid, positions and attention follow from the projector, markers from the vocabulary."""
    pair = media_pair(kind)
    vocabulary = Vocabulary.load(pair.model)
    with opened(pair) as projector:
        chunks = projector.count_image(150, 90)

    words = [vocabulary.token_text(token) for chunk in chunks for token in chunk.tokens]
    vocabulary.close()
    vectors, markers = PICTURES[kind]
    assert [chunk for chunk in chunks if chunk.kind is not None] == [vectors]
    assert words == markers


@pytest.mark.parametrize(("seconds", "tokens"), [(0.001, 750), (29.9, 750), (30.1, 1500)])
def test_each_started_half_minute_of_sound_takes_a_whole_chunk(
    seconds: float, tokens: int, media_pair: Pairs
) -> None:
    """Vectors of sound have plain positions and causal attention."""
    with (
        opened(media_pair("qwen2a")) as projector,
        projector.split_audio(sound(seconds).samples) as split,
    ):
        chunks = [chunk for chunk in split.chunks if chunk.kind is not None]

    assert sum(chunk.num_tokens for chunk in chunks) == tokens
    assert set(chunks) == {ProjectedChunk(750, 750, MediaKind.AUDIO)}


def test_a_projector_says_what_it_can_use(media_pair: Pairs) -> None:
    """Callers scale pictures down, and sounds to its rate, before they are encoded. A limit of
    tokens makes pictures of a dynamic size smaller."""
    with opened(media_pair("janus_pro")) as fixed, opened(media_pair("qwen2a")) as audio:
        assert (fixed.reads_images, fixed.audio_rate, fixed.usable_pixels) == (
            True,
            None,
            4 * 84**2,
        )
        assert (audio.reads_images, audio.audio_rate) == (False, SAMPLE_RATE)

    pair = media_pair("qwen2vl_merger")
    with opened(pair) as dynamic, opened(pair, image_max_tokens=20) as limited:
        both = (dynamic, limited)
        assert [each.usable_pixels for each in both] == pytest.approx(
            [4 * 1792**2, 4 * 112**2], rel=0.03
        )
        assert [each.count_image(600, 400)[1].num_tokens for each in both] == [294, 15]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in AUDIO_KINDS])
def test_a_picture_of_usable_pixels_has_as_many_vectors_as_a_larger_one(
    kind: str, media_pair: Pairs
) -> None:
    """So scaling down to them loses nothing."""
    with opened(media_pair(kind)) as projector:
        scale = (projector.usable_pixels / (6000 * 4000)) ** 0.5
        sizes = [(6000, 4000), (round(6000 * scale), round(4000 * scale))]
        counts = [[chunk.num_tokens for chunk in projector.count_image(*size)] for size in sizes]

    assert scale < 1
    assert counts[0] == counts[1]


def test_the_largest_chunk_of_a_dynamic_size_depends_on_the_shape(media_pair: Pairs) -> None:
    """A square of at most 1,120 tokens has 33 x 33, other pictures more; a fixed size has one."""
    with opened(media_pair("gemma3")) as fixed:
        assert fixed.joint_tokens == 16
    with opened(media_pair("gemma4uv")) as projector:
        square, other = projector.count_image(4000, 4000)[1], projector.count_image(1474, 1340)[1]

        assert (square.num_tokens, other.num_tokens) == (1089, 1120)
        assert 1120 <= projector.joint_tokens < 34**2
        assert (projector.reads_images, projector.audio_rate) == (True, SAMPLE_RATE)


def test_a_dynamic_length_of_sound_has_a_vector_for_each_frame(media_pair: Pairs) -> None:
    """The same file has projectors for pictures and for sounds."""
    with (
        opened(media_pair("gemma4ua")) as projector,
        projector.split_audio(sound(0.7).samples) as split,
    ):
        assert split.chunks[1] == ProjectedChunk(18, 18, MediaKind.AUDIO)


def test_a_picture_without_pixels_cannot_be_encoded(media_pair: Pairs) -> None:
    """It has a size only."""
    with (
        opened(media_pair("janus_pro")) as projector,
        projector.split_image(90, 90, None) as split,
        pytest.raises(EncodeError, match="placeholder"),
    ):
        split.encode(0)


def test_a_projector_of_positions_in_two_dimensions_needs_mrope(media_pair: Pairs) -> None:
    """With a text model of plain positions it would not know where a vector is."""
    pair = MediaPair("", media_pair("janus_pro").model, media_pair("qwen2vl_merger").projector)

    with pytest.raises(ProjectorMismatch, match="M-RoPE"), opened(pair):
        pass
