"""Protos to lists: OpenAI's of embeddings, and the common one of ranked documents."""

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


class RankedList:
    """The answer of one Rerank call; `documents` are sent along where they are given."""

    def __init__(self, answer_id: str, model: str, documents: Sequence[str] | None) -> None:
        self._id = answer_id
        self._model = model
        self._documents = documents
        self._results: list[dict[str, object]] = []
        self._num_tokens = 0

    def add(self, message: inference_service_pb2.RerankResponse, _call: int = 0) -> None:
        """Takes the answer of the call."""
        self._model = message.model
        self._num_tokens = message.prompt_tokens
        self._results = [self._result(each) for each in message.results]

    def _result(self, ranked: inference_service_pb2.RerankResult) -> dict[str, object]:
        result: dict[str, object] = {
            "index": ranked.index,
            "relevance_score": ranked.relevance,
            "score": ranked.score,
        }
        if self._documents is not None:
            result["document"] = {"text": self._documents[ranked.index]}
        return result

    def as_object(self) -> dict[str, object]:
        """The whole answer."""
        return {
            "id": self._id,
            "object": "list",
            "model": self._model,
            "results": self._results,
            "usage": {"prompt_tokens": self._num_tokens, "total_tokens": self._num_tokens},
        }
