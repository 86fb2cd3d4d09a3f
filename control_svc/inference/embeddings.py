"""Embeddings and token counts from the inference service."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol

import grpc.aio
import numpy as np
import numpy.typing as npt
from corral.inference.v1 import inference_service_pb2 as pb
from corral.inference.v1.inference_service_pb2_grpc import InferenceServiceStub

from control_svc.inference.client import SERVICE, call_metadata
from svc_kit.auth.authenticator import ServiceToken
from svc_kit.auth.principal import Priority
from svc_kit.rpc.client import translate_errors

Vector = npt.NDArray[np.float32]
Vectors = npt.NDArray[np.float32]
"""Shape (vectors, dimensions)."""


class EmbeddingModel(NamedTuple):
    name: str
    max_tokens: int
    """Maximum length of a text that is embedded as one piece."""
    counts_tokens: bool = True
    """Whether the service counts its tokens: for an engine in text mode they are estimated."""


class EmbeddingResult(NamedTuple):
    vectors: Vectors
    digest: str
    """The digest of the model's file; empty if unknown."""


class Embedder(Protocol):
    """Computes embeddings.

    All methods raise Unavailable and ResourceExhausted, which can be retried, EngineRestarting with
    a phase if an engine died, ModelNotFound, and errors of the request.
    """

    async def model(self, project: str, name: str) -> EmbeddingModel:
        """Look up a model."""

    async def count_tokens(
        self, project: str, model: EmbeddingModel, texts: Sequence[str]
    ) -> list[int]:
        """Return the number of tokens of each text."""

    async def embed(
        self, project: str, model: str, texts: Sequence[str], *, is_background: bool
    ) -> EmbeddingResult:
        """Embed texts; the vectors are normalized."""


_MAX_WINDOW_TOKENS: Final = 512
"""The usual context of encoders. The cost of attention grows with the square of the length."""
_BYTES_PER_TOKEN: Final = 3
"""A cautious estimate: English has more, and few scripts have less."""
_RESERVED_TOKENS: Final = 16
"""For special tokens and for differences in tokenization at the ends of a piece."""


class EmbeddingClient:
    """An `Embedder` over a channel."""

    def __init__(
        self, channel: grpc.aio.Channel, token: ServiceToken | None, timeout_s: float
    ) -> None:
        """Without a token the service must accept callers without a key, all as one project."""
        self._stub = InferenceServiceStub(channel)
        self._token = token
        self._timeout_s = timeout_s

    async def model(self, project: str, name: str) -> EmbeddingModel:
        """Look up a model."""
        request = pb.GetModelRequest(model=name)
        response = await self._call(self._stub.GetModel, request, project, Priority.BATCH)
        found = response.model
        contexts = (found.trained_context_tokens, found.resolved_limits.context_tokens)
        window = min(filter(None, (*contexts, _MAX_WINDOW_TOKENS))) - _RESERVED_TOKENS
        return EmbeddingModel(found.name, window, not found.upstream.text_mode)

    async def count_tokens(
        self, project: str, model: EmbeddingModel, texts: Sequence[str]
    ) -> list[int]:
        """Return the number of tokens of each text."""
        if not model.counts_tokens:
            return [-(-len(text.strip().encode()) // _BYTES_PER_TOKEN) for text in texts]
        request = pb.CountTokensRequest(model=model.name, texts=texts)
        response = await self._call(self._stub.CountTokens, request, project, Priority.BATCH)
        return list(response.text_tokens)

    async def embed(
        self, project: str, model: str, texts: Sequence[str], *, is_background: bool
    ) -> EmbeddingResult:
        """Embed texts; the vectors are normalized."""
        inputs = [pb.TextOrTokens(text=text) for text in texts]
        priority = Priority.BATCH if is_background else Priority.NORMAL
        request = pb.EmbedRequest(model=model, inputs=inputs, with_digest=True)
        response = await self._call(self._stub.Embed, request, project, priority)
        vectors = np.array([each.values for each in response.embeddings], np.float32)
        return EmbeddingResult(vectors, response.model_digest)

    async def _call(
        self, method: Callable[..., Awaitable[Any]], request: Any, project: str, priority: Priority
    ) -> Any:
        metadata = call_metadata(self._token, project, priority)
        with translate_errors(SERVICE):
            return await method(request, metadata=metadata, timeout=self._timeout_s)
