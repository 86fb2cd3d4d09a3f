"""Pictures and sounds from the projector to the output, beside libmtmd's own way."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from inference_svc.llama.projector import Projector, ProjectorSettings
from inference_svc.models.projector_file import describe_projector
from tests.support.llama_engines import make_engine, open_backend, output_tokens, run_engine
from tests.support.media_models import AUDIO_KINDS, KINDS, SAMPLE_RATE, MediaPair
from tests.support.media_prompts import Part, media_request, write_chunk
from tests.support.plain_llama import PlainLlama, PlainMedia
from tests.support.sequences import ManualClock

COUNT = 12
SIZE = (150, 90)
START, END = list(range(100, 112)), list(range(200, 209))


def _media(pair: MediaPair) -> PlainMedia:
    rng = np.random.default_rng(4)
    if pair.kind in AUDIO_KINDS:
        samples = rng.standard_normal(SAMPLE_RATE, np.float32) * 0.1
        return PlainMedia(pair.projector, samples.tobytes())
    width, height = SIZE
    return PlainMedia(pair.projector, rng.bytes(width * height * 3), width, height)


def _parts(pair: MediaPair, media: PlainMedia, folder: Path) -> list[Part]:
    settings = ProjectorSettings(describe_projector(pair.projector), pair.model, threads=1)
    parts: list[Part] = [START]
    with closing(Projector(settings)) as projector:
        if media.width:
            split = projector.split_image(media.width, media.height, media.data)
        else:
            split = projector.split_audio(media.data)
        with split:
            for i, chunk in enumerate(split.chunks):
                if chunk.kind is None:
                    parts.append(chunk.tokens)
                    continue
                vectors = split.encode(i)
                parts.append(
                    write_chunk(folder, vectors, grid=chunk.grid, is_causal=chunk.is_causal)
                )
    return [*parts, END]


@pytest.mark.parametrize("kind", KINDS)
def test_output_equals_that_of_libmtmd(
    kind: str, media_pair: Callable[[str], MediaPair], tmp_path: Path
) -> None:
    """For each kind of projector, the tokens after a picture or sound are those that follow when
    libmtmd gives it to llama.cpp; a stream of text runs beside it."""
    pair = media_pair(kind)
    media = _media(pair)
    # First, because libmtmd alone needs the cleared memory of a process with a `Projector`, too.
    parts = _parts(pair, media, tmp_path)
    with closing(PlainLlama(pair.model)) as plain:
        expected = plain.generate_from_media(START, media, END, COUNT)
    with open_backend(pair.model, context_tokens=1024) as backend:
        engine = make_engine(backend, chunk_cap=48, clock=ManualClock())
        fields = {"max_tokens": COUNT, "ignore_eos": True}
        text = media_request(0, [[5, 6, 7]], **{**fields, "max_tokens": 60})
        request = media_request(1, parts, **fields)
        events = run_engine(engine, text, request)

    assert output_tokens(events, 1) == expected
