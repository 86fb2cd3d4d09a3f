"""Messages of the encoder's pipe."""

from dataclasses import dataclass
from pathlib import Path

from inference_svc.llama.projector import ProjectorSettings
from inference_svc.media.model import DecodedMedia, MediaChunk


@dataclass(frozen=True, slots=True)
class EncoderConfig:
    """The first message to an encoder process: the projector of the model `name`.

    `competes_for_cores` is whether it computes on the CPU, and it and the engine have more threads
    than there are cores.
    """

    name: str
    projector: ProjectorSettings
    log_level: str = "info"
    competes_for_cores: bool = True


@dataclass(frozen=True, slots=True)
class EncoderReady:
    """A loaded projector.

    `audio_rate` is the rate of its sounds in Hz, None if it encodes none. `usable_pixels` is the
    size of pictures above which scaling down loses nothing. `joint_tokens` is the size of its
    largest chunk whose vectors attend to all of the chunk, 0 if there are none. `identity` is a
    digest of the projector and of what else its vectors depend on, apart from the picture.
    """

    reads_images: bool
    audio_rate: int | None
    usable_pixels: int
    joint_tokens: int
    identity: str
    load_s: float


@dataclass(frozen=True, slots=True)
class EncodeRequest:
    """A picture or a sound to encode, and its `digest`; the vectors are written to the file `path`.
    Without one the chunks are only counted, and a picture needs no pixels."""

    job_id: int
    media: DecodedMedia
    digest: bytes
    path: Path | None


@dataclass(frozen=True, slots=True)
class EncodeDone:
    job_id: int
    chunks: tuple[MediaChunk, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class EncodeFailed:
    """The reason why a request failed; `is_disk` if the vectors could not be written."""

    job_id: int
    problem: str
    is_disk: bool = False


EncoderMessage = EncoderReady | EncodeDone | EncodeFailed
