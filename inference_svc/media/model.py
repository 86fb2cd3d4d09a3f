"""Pictures and sounds, decoded to raw values and encoded to vectors."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from inference_svc.engine.media import MediaKind, MediaSpan, VectorFile


@dataclass(frozen=True, slots=True)
class DecodedImage:
    """A picture as rows of RGB bytes, the top row first: `width` x `height` x 3 bytes."""

    width: int
    height: int
    rgb: bytes

    @property
    def digest(self) -> bytes:
        """The SHA-256 of size and pixels."""
        return sha256(f"image {self.width} {self.height}:".encode() + self.rgb).digest()


@dataclass(frozen=True, slots=True)
class DecodedAudio:
    """A sound of one channel: float32 samples between -1 and 1, `rate` in a second."""

    samples: bytes
    rate: int

    @property
    def digest(self) -> bytes:
        """The SHA-256 of rate and samples."""
        return sha256(f"audio {self.rate}:".encode() + self.samples).digest()

    @property
    def seconds(self) -> float:
        """Its duration."""
        return len(self.samples) / 4 / self.rate


DecodedMedia = DecodedImage | DecodedAudio


@dataclass(frozen=True, slots=True)
class TextChunk:
    """Tokens that a projector puts around or between vectors, such as the end of a picture."""

    tokens: Sequence[int]

    @property
    def num_tokens(self) -> int:
        """How many they are."""
        return len(self.tokens)


@dataclass(frozen=True, slots=True)
class VectorChunk:
    """Vectors that take `num_tokens` cells; the other fields are those of `MediaSpan`.

    `vectors` is None if they were only counted.
    """

    num_tokens: int
    num_positions: int
    digest: bytes
    vectors: VectorFile | None = None
    kind: MediaKind = MediaKind.IMAGE
    grid: tuple[int, int] | None = None
    is_causal: bool = True

    def span(self, start: int) -> MediaSpan | None:
        """Its place in a prompt, from the token with index `start` on; None if it was counted."""
        if self.vectors is None:
            return None
        return MediaSpan(
            start,
            self.num_tokens,
            self.num_positions,
            self.digest,
            self.vectors,
            self.kind,
            self.grid,
            self.is_causal,
        )


MediaChunk = TextChunk | VectorChunk


@dataclass(frozen=True, slots=True)
class EncodedMedia:
    """A picture or a sound as it stands in a prompt."""

    kind: MediaKind
    chunks: tuple[MediaChunk, ...]

    @property
    def num_tokens(self) -> int:
        """The tokens that it takes in a prompt, with those of text around its vectors."""
        return sum(chunk.num_tokens for chunk in self.chunks)
