"""Prompts with chunks of vectors, for tests of the engine."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from inference_svc.engine.media import MediaSpan, VectorFile, Vectors, media_tokens
from inference_svc.engine.request import SequenceRequest
from tests.support.sequences import make_request


@dataclass(frozen=True)
class Chunk:
    vectors: VectorFile
    num_tokens: int
    digest: bytes
    grid: tuple[int, int] | None = None
    is_causal: bool = True

    @property
    def num_positions(self) -> int:
        """The longer side of a grid, or as many as tokens."""
        return max(self.grid) if self.grid is not None else self.num_tokens

    def read(self, width: int) -> Vectors:
        values = np.fromfile(self.vectors.path, np.float32, self.num_tokens * width)
        return values.reshape(self.num_tokens, width)

    def span(self, start: int) -> MediaSpan:
        return MediaSpan(
            start,
            self.num_tokens,
            self.num_positions,
            self.digest,
            self.vectors,
            grid=self.grid,
            is_causal=self.is_causal,
        )


Part = Sequence[int] | Chunk
"""Text or a chunk."""


def write_chunk(folder: Path, vectors: Vectors, **fields: Any) -> Chunk:
    """Write vectors to a file of their own; `fields` are those of `Chunk`."""
    data = np.ascontiguousarray(vectors, np.float32).tobytes()
    digest = sha256(data).digest()
    path = folder / f"{digest.hex()}.vectors"
    path.write_bytes(data)
    return Chunk(VectorFile(path, 0), len(vectors), digest, **fields)


def write_fake_chunk(folder: Path, name: str, count: int, **fields: Any) -> Chunk:
    """Write vectors of width 1 for the fake backend: they have the bits of their numbers."""
    digest = sha256(name.encode()).digest()
    path = folder / f"{name}.vectors"
    path.write_bytes(media_tokens(digest, count).tobytes())
    return Chunk(VectorFile(path, 0), count, digest, **fields)


def media_request(sequence_id: int, parts: Sequence[Part], **changes: Any) -> SequenceRequest:
    """A request for text and chunks; `changes` are fields of `SequenceRequest`."""
    prompt, spans = array("i"), []
    for part in parts:
        if isinstance(part, Chunk):
            spans.append(part.span(len(prompt)))
            prompt += media_tokens(part.digest, part.num_tokens)
        else:
            prompt += array("i", part)
    return make_request(sequence_id, prompt, media=tuple(spans), **changes)


def token_vectors(path: Path) -> Vectors:
    """The vector of each token of a model."""
    (tensor,) = (t for t in gguf.GGUFReader(path).tensors if t.name == "token_embd.weight")
    values: Vectors = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    return values
