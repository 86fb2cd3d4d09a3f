"""Projectors through libmtmd, compared with libmtmd's own way to a prompt."""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest
from llama_cpp import mtmd_cpp as mtmd

from inference_svc.engine.media import MediaKind
from inference_svc.llama.projector import (
    EncodeError,
    ProjectedChunk,
    Projector,
    ProjectorMismatch,
    ProjectorSettings,
    Vectors,
)
from inference_svc.llama.vocabulary import Vocabulary
from inference_svc.models.projector_file import describe_projector
from model_files.gguf import ModelFileInvalid
from tests.support.media_models import (
    AUDIO_KINDS,
    KINDS,
    SAMPLE_RATE,
    MediaPair,
    picture,
    sound,
    write_projector,
    write_text_model,
)

Pairs = Callable[[str], MediaPair]
VISION_KINDS = [kind for kind in KINDS if kind not in AUDIO_KINDS]


@contextmanager
def opened(pair: MediaPair, image_max_tokens: int | None = None) -> Iterator[Projector]:
    """The projector of a pair."""
    file = describe_projector(pair.projector)
    settings = ProjectorSettings(file, pair.model, threads=1, image_max_tokens=image_max_tokens)
    projector = Projector(settings)
    try:
        yield projector
    finally:
        projector.close()


def encoded(projector: Projector, media: Any) -> tuple[tuple[ProjectedChunk, ...], list[Vectors]]:
    """The chunks of a picture or a sound, and the vectors of those that have some."""
    split = (
        projector.split_audio(media.samples)
        if hasattr(media, "samples")
        else projector.split_image(media.width, media.height, media.rgb)
    )
    with split as parts:
        numbers = [i for i, chunk in enumerate(parts.chunks) if chunk.kind is not None]
        return parts.chunks, [parts.encode(number) for number in numbers]


def by_libmtmd(pair: MediaPair, media: Any) -> tuple[list[tuple[int, int]], list[Vectors]]:
    """Tokens and positions of each chunk, and the vectors, with the whole text model loaded and a
    marker in a text, as llama-server does it."""
    model = llama_cpp.llama_model_load_from_file(
        str(pair.model).encode(), llama_cpp.llama_model_default_params()
    )
    params = mtmd.mtmd_context_params_default()
    params.use_gpu, params.n_threads, params.print_timings = False, 1, False
    context = mtmd.mtmd_init_from_file(str(pair.projector).encode(), model, params)
    if hasattr(media, "samples"):
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


@pytest.mark.parametrize("kind", KINDS)
def test_vectors_and_chunks_equal_those_of_libmtmd(kind: str, media_pair: Pairs) -> None:
    """Without the weights of the text model, each kind of projector gives the same bits."""
    pair = media_pair(kind)
    media = sound(0.7) if kind in AUDIO_KINDS else picture(150, 90)

    with opened(pair) as projector:
        chunks, vectors = encoded(projector, media)

    sizes, expected = by_libmtmd(pair, media)
    assert [(chunk.num_tokens, chunk.num_positions) for chunk in chunks] == sizes
    assert [chunk.num_tokens for chunk in chunks if chunk.kind] == [len(v) for v in vectors]
    assert all(map(np.array_equal, vectors, expected))


VECTORS_OF_A_PICTURE = {
    "janus_pro": ProjectedChunk(36, 36, MediaKind.IMAGE),
    "gemma3": ProjectedChunk(16, 16, MediaKind.IMAGE, is_causal=False),
    "pixtral": ProjectedChunk(71, 71, MediaKind.IMAGE),
    "qwen2vl_merger": ProjectedChunk(15, 5, MediaKind.IMAGE, grid=(5, 3)),
    "qwen3vl_merger": ProjectedChunk(15, 5, MediaKind.IMAGE, grid=(5, 3)),
}
MARKERS = {
    "janus_pro": [],
    "gemma3": ["<start_of_image>", "<end_of_image>"],
    "pixtral": ["[IMG_END]"],
    "qwen2vl_merger": ["<|vision_start|>", "<|vision_end|>"],
    "qwen3vl_merger": ["<|vision_start|>", "<|vision_end|>"],
}


@pytest.mark.parametrize("kind", VISION_KINDS)
def test_a_picture_becomes_vectors_between_marker_tokens(kind: str, media_pair: Pairs) -> None:
    """Grid, positions and attention follow from the projector, markers from the vocabulary."""
    pair = media_pair(kind)
    vocabulary = Vocabulary.load(pair.model)

    with opened(pair) as projector:
        chunks = projector.count_image(150, 90)

    words = [vocabulary.token_text(token) for chunk in chunks for token in chunk.tokens]
    vocabulary.close()
    assert [chunk for chunk in chunks if chunk.kind is not None] == [VECTORS_OF_A_PICTURE[kind]]
    assert words == MARKERS[kind]


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
    assert {chunk.kind for chunk in chunks} == {MediaKind.AUDIO}
    assert all(chunk.num_positions == chunk.num_tokens and chunk.is_causal for chunk in chunks)


def test_tiles_are_chunks_with_text_between(media_pair: Pairs) -> None:
    """A projector that cuts large pictures gives a chunk for each tile and one for the whole."""
    pair = media_pair("idefics3")
    with opened(pair) as projector:
        chunks, vectors = encoded(projector, picture(200, 90))

    sizes, expected = by_libmtmd(pair, picture(200, 90))
    assert [(chunk.num_tokens, chunk.num_positions) for chunk in chunks] == sizes
    assert len(vectors) > 2
    assert all(map(np.array_equal, vectors, expected))


def test_a_text_model_without_the_markers_of_tiles_is_refused(
    media_pair: Pairs, tmp_path: Path
) -> None:
    """libmtmd would put token -1 into the prompt, which aborts the engine."""
    model = write_text_model("llama", tmp_path / "model.gguf")
    pair = MediaPair("idefics3", model, media_pair("idefics3").projector)

    with opened(pair) as projector, pytest.raises(EncodeError, match="lacks marker tokens"):
        projector.count_image(200, 90)


def test_a_projector_says_what_it_can_use(media_pair: Pairs) -> None:
    """Callers scale pictures down, and sounds to its rate, before they are encoded."""
    with opened(media_pair("janus_pro")) as fixed, opened(media_pair("qwen2a")) as audio:
        seen = (fixed.sees, fixed.audio_rate, fixed.usable_pixels)
        heard = (audio.sees, audio.audio_rate)

    assert seen == (True, None, 4 * 84**2)
    assert heard == (False, SAMPLE_RATE)


def test_a_limit_of_tokens_scales_pictures_down(media_pair: Pairs) -> None:
    """A projector with a dynamic size uses fewer tokens, and needs fewer pixels."""
    pair = media_pair("qwen2vl_merger")
    with opened(pair) as projector, opened(pair, image_max_tokens=20) as limited:
        tokens = [
            max(chunk.num_tokens for chunk in each.count_image(600, 400))
            for each in (projector, limited)
        ]
        pixels = (projector.usable_pixels, limited.usable_pixels)

    assert tokens == [294, 15]
    assert pixels == (4 * 4096 * 28**2, 4 * 16 * 28**2)


def test_counted_pictures_cannot_be_encoded(media_pair: Pairs) -> None:
    """A picture without pixels has a size only."""
    with (
        opened(media_pair("janus_pro")) as projector,
        projector.split_image(90, 90, None) as split,
        pytest.raises(EncodeError, match="placeholder"),
    ):
        split.encode(0)


def test_a_projector_of_another_width_is_refused(media_pair: Pairs, tmp_path: Path) -> None:
    """The widths of projector and text model are in the reason."""
    narrow = write_projector("janus_pro", tmp_path / "mmproj.gguf", width=64)
    pair = MediaPair("janus_pro", media_pair("janus_pro").model, narrow)

    with pytest.raises(ProjectorMismatch, match=r"n_embd = 128.*n_embd = 64"), opened(pair):
        pass


def test_a_projector_of_positions_in_two_dimensions_needs_mrope(
    media_pair: Pairs, tmp_path: Path
) -> None:
    """With a text model of plain positions it would not know where a vector is."""
    pair = MediaPair("", media_pair("janus_pro").model, media_pair("qwen2vl_merger").projector)

    with pytest.raises(ProjectorMismatch, match="M-RoPE"), opened(pair):
        pass


def test_a_text_model_is_no_projector(media_pair: Pairs) -> None:
    """A file is refused by its header, before it is loaded."""
    with pytest.raises(ModelFileInvalid, match="not a projector"):
        describe_projector(media_pair("janus_pro").model)
