"""The encoder process of one model: a loop that owns its projector.

It is a separate process because libmtmd aborts on some projectors, and because decoding must not
wait for it. Its threads have a low priority, so that they leave the cores to the engine.
"""

import os
import sys
import time
from contextlib import suppress
from hashlib import sha256
from importlib.metadata import version
from multiprocessing.connection import Connection
from typing import Any, Final

import numpy as np

from inference_svc.engine.media import VectorFile
from inference_svc.engine_client.process import StartFailed, open_parent_pipe
from inference_svc.llama.projector import (
    EncodeError,
    ProjectedChunk,
    ProjectedMedia,
    Projector,
    ProjectorMismatch,
    ProjectorSettings,
)
from inference_svc.media.encoder_messages import (
    EncodeDone,
    EncodeFailed,
    EncoderConfig,
    EncodeRequest,
    EncoderReady,
)
from inference_svc.media.model import (
    DecodedAudio,
    DecodedImage,
    DecodedMedia,
    MediaChunk,
    TextChunk,
    VectorChunk,
)
from inference_svc.models.file_identity import hash_files
from model_files.gguf import ModelFileInvalid
from svc_kit.logs import configure_logging

_NICENESS = 10
_WARM_UP_SIZES: Final = ((320, 240), (199, 31))
_WARM_UP_SAMPLES: Final = (16_000, 12_347)


def main(pipe_fd: int) -> None:
    """Serve the frontend at the other end of a socket pair."""
    pipe = open_parent_pipe(pipe_fd)
    config: EncoderConfig = pipe.recv()
    configure_logging("encoder", level=config.log_level)
    os.nice(_NICENESS)
    try:
        server = EncoderServer(config.projector)
    except (ProjectorMismatch, EncodeError, ModelFileInvalid) as error:
        pipe.send(StartFailed(str(error)))
        return
    pipe.send(server.ready)
    with suppress(EOFError):
        server.run(pipe)


class EncoderServer:
    """A projector that has encoded an ordinary and an odd-sized picture, or such sounds."""

    def __init__(self, settings: ProjectorSettings) -> None:
        """Load and warm up. Raises `ProjectorMismatch`, `EncodeError` or `ModelFileInvalid`."""
        started = time.monotonic()
        self._projector = projector = Projector(settings)
        for media in _warm_up_media(projector):
            with self._open(media, has_content=True) as split:
                for index, chunk in enumerate(split.chunks):
                    if chunk.kind is not None:
                        split.encode(index)
        self.ready = EncoderReady(
            projector.reads_images,
            projector.audio_rate,
            projector.usable_pixels if projector.reads_images else 0,
            projector.joint_tokens if projector.reads_images else 0,
            _identity(settings),
            time.monotonic() - started,
        )

    def run(self, pipe: "Connection[Any, Any]") -> None:
        """Answer requests until the pipe closes, which raises EOFError."""
        while True:
            pipe.send(self.answer(pipe.recv()))

    def answer(self, request: EncodeRequest) -> EncodeDone | EncodeFailed:
        """Encode a picture or a sound, or count its tokens."""
        started = time.monotonic()
        try:
            with self._open(request.media, has_content=request.path is not None) as split:
                chunks = self._chunks(request, split)
        except EncodeError as error:
            return EncodeFailed(request.job_id, str(error))
        except OSError as error:
            return EncodeFailed(request.job_id, error.strerror or str(error), is_disk=True)
        return EncodeDone(request.job_id, chunks, time.monotonic() - started)

    def _open(self, media: DecodedMedia, *, has_content: bool) -> ProjectedMedia:
        if isinstance(media, DecodedAudio):
            return self._projector.split_audio(media.samples)
        rgb = media.rgb if has_content else None
        return self._projector.split_image(media.width, media.height, rgb)

    def _chunks(self, request: EncodeRequest, split: ProjectedMedia) -> tuple[MediaChunk, ...]:
        digest = request.digest
        if request.path is None:
            return tuple(self._chunk(digest, n, chunk) for n, chunk in enumerate(split.chunks))
        result = []
        with request.path.open("xb") as file:
            for number, chunk in enumerate(split.chunks):
                vectors = VectorFile(request.path, file.tell())
                if chunk.kind is not None:
                    file.write(split.encode(number).data)
                result.append(self._chunk(digest, number, chunk, vectors))
        return tuple(result)

    def _chunk(
        self, digest: bytes, number: int, chunk: ProjectedChunk, vectors: VectorFile | None = None
    ) -> MediaChunk:
        if chunk.kind is None:
            return TextChunk(chunk.tokens)
        source = f"{self.ready.identity}:{digest.hex()}:{number}"
        return VectorChunk(
            chunk.num_tokens,
            chunk.num_positions,
            sha256(source.encode()).digest(),
            vectors,
            chunk.kind,
            chunk.grid,
            chunk.is_causal,
        )


def _identity(settings: ProjectorSettings) -> str:
    """A digest of all that the vectors of a picture depend on."""
    limits = (settings.image_min_tokens, settings.image_max_tokens)
    digest = hash_files([settings.file.stamp])
    return sha256(f"{digest} {limits} {version('llama-cpp-python')}".encode()).hexdigest()


def _warm_up_media(projector: Projector) -> list[DecodedMedia]:
    rng, media = np.random.default_rng(0), list[DecodedMedia]()
    if projector.reads_images:
        for width, height in _WARM_UP_SIZES:
            pixels = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
            media.append(DecodedImage(width, height, pixels.tobytes()))
    if rate := projector.audio_rate:
        for count in _WARM_UP_SAMPLES:
            samples = rng.uniform(-0.5, 0.5, count).astype(np.float32)
            media.append(DecodedAudio(samples.tobytes(), rate))
    return media


if __name__ == "__main__":
    main(int(sys.argv[1]))
