"""Protos to OpenAI's list of embeddings."""

import base64
import struct
from collections.abc import Sequence

from corral.inference.v1 import inference_service_pb2


class EmbeddingList:
    """The answer of one Embed call; vectors as numbers, or as Base64 where it `packs` them."""

    def __init__(self, model: str, *, packs: bool) -> None:
        self._model = model
        self._packs = packs
        self._data: list[dict[str, object]] = []
        self._num_tokens = 0

    def add(self, message: inference_service_pb2.EmbedResponse, _call: int = 0) -> None:
        """Takes the answer of the call."""
        self._model = message.model
        self._num_tokens = message.prompt_tokens
        self._data = [
            {
                "object": "embedding",
                "index": index,
                "embedding": packed(each.values) if self._packs else list(each.values),
            }
            for index, each in enumerate(message.embeddings)
        ]

    def as_object(self) -> dict[str, object]:
        """The whole answer."""
        return {
            "object": "list",
            "data": self._data,
            "model": self._model,
            "usage": {"prompt_tokens": self._num_tokens, "total_tokens": self._num_tokens},
        }


def packed(values: Sequence[float]) -> str:
    """Little-endian 32-bit floats in Base64, which SDKs ask for unless told otherwise."""
    return base64.b64encode(struct.pack(f"<{len(values)}f", *values)).decode("ascii")
