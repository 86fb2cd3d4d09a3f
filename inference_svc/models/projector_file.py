"""Describes the file of a multimodal projector (mmproj), which encodes pictures or sounds."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from inference_svc.models.file_identity import FileStamp
from model_files.gguf import GgufHeader, ModelFileInvalid, read_header

_UNSUPPORTED: Final = {
    "deepseek4v": "its vectors depend on their place in the prompt",
    "hunyuanvl": "its pictures have positions of a kind that is not supported",
}
_MROPE: Final = frozenset(
    {"qwen2vl_merger", "qwen2.5vl_merger", "qwen3vl_merger", "glm4v", "paddleocr"}
)


@dataclass(frozen=True, slots=True)
class ProjectorFile:
    """Description of a projector.

    `kinds` are libmtmd's names of its projectors. A fixed-size projector scales pictures to squares
    of `image_size` pixels. With `needs_mrope` the text model must have M-RoPE.
    """

    path: Path
    kinds: tuple[str, ...]
    reads_images: bool
    reads_audio: bool
    size_bytes: int
    stamp: FileStamp
    image_size: int = 0

    @property
    def needs_mrope(self) -> bool:
        """Whether its pictures have positions in two dimensions."""
        return not _MROPE.isdisjoint(self.kinds)


def describe_projector(path: Path) -> ProjectorFile:
    """Read the header of a projector.

    Raises:
        ModelFileInvalid: it is not a projector, or one that is not supported.
    """
    stamp = FileStamp.of(path)
    header = read_header(path)
    if header.text("general.architecture") != "clip":
        raise ModelFileInvalid(path, "it is not a projector (general.architecture is not clip)")
    reads_images = header.metadata.get("clip.has_vision_encoder") is True
    reads_audio = header.metadata.get("clip.has_audio_encoder") is True
    if not reads_images and not reads_audio:
        raise ModelFileInvalid(path, "the projector encodes neither pictures nor sounds")
    kinds = _kinds(header)
    for kind in kinds:
        if kind in _UNSUPPORTED:
            problem = f"projectors of the type {kind} are not supported: {_UNSUPPORTED[kind]}"
            raise ModelFileInvalid(path, problem)
    return ProjectorFile(
        path,
        kinds,
        reads_images,
        reads_audio,
        header.file_bytes,
        stamp,
        image_size=header.integer("clip.vision.image_size") or 0,
    )


def _kinds(header: GgufHeader) -> tuple[str, ...]:
    keys = ("clip.projector_type", "clip.vision.projector_type", "clip.audio.projector_type")
    kinds = tuple(kind for key in keys if (kind := header.text(key)))
    if not kinds:
        raise ModelFileInvalid(header.path, "the type of the projector is missing")
    return kinds
