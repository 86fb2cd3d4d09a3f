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
"""A vector a row."""


# ---- other services


class EmbeddingModel(NamedTuple):
    """What is known of a model."""

    name: str
    max_tokens: int
    """The longest text that it takes at once."""


class EmbeddingResult(NamedTuple):
    """Vectors, and the model that they are of."""

    vectors: Vectors
    digest: str
    """The digest of the model's file; empty if unknown."""


class Embedder(Protocol):
    """The inference service, as far as it makes vectors.

    All methods raise Unavailable and ResourceExhausted where another try may do better,
    EngineRestarting with a phase where an engine died, ModelNotFound, and what the model refuses.
    """

    async def model(self, project: str, name: str) -> EmbeddingModel:
        """Describe a model."""

    async def count_tokens(self, project: str, model: str, texts: Sequence[str]) -> list[int]:
        """How long texts are."""

    async def embed(
        self, project: str, model: str, texts: Sequence[str], *, is_background: bool
    ) -> EmbeddingResult:
        """The vectors of texts, each of length 1, and whose they are."""


_LONGEST_WINDOW: Final = 512
"""Tokens of a text that is computed at once: what encoders are made for; more costs its square."""
_SPECIAL_TOKENS: Final = 16
"""Left for what the model puts around a text, and for seams between its pieces."""


class EmbeddingClient:
    """Calls on behalf of projects, over one channel."""

    def __init__(
        self, channel: grpc.aio.Channel, token: ServiceToken | None, timeout_s: float
    ) -> None:
        """Without a token the service must serve callers without a key, all as one project."""
        self._stub = InferenceServiceStub(channel)
        self._token = token
        self._timeout_s = timeout_s

    async def model(self, project: str, name: str) -> EmbeddingModel:
        """Describe a model."""
        request = pb.GetModelRequest(model=name)
        answer = await self._ask(self._stub.GetModel, request, project, Priority.BATCH)
        trained = answer.model.trained_context_tokens or _LONGEST_WINDOW
        window = min(trained, _LONGEST_WINDOW) - _SPECIAL_TOKENS
        return EmbeddingModel(answer.model.name, window)

    async def count_tokens(self, project: str, model: str, texts: Sequence[str]) -> list[int]:
        """How long texts are."""
        request = pb.CountTokensRequest(model=model, texts=texts)
        answer = await self._ask(self._stub.CountTokens, request, project, Priority.BATCH)
        return list(answer.text_tokens)

    async def embed(
        self, project: str, model: str, texts: Sequence[str], *, is_background: bool
    ) -> EmbeddingResult:
        """The vectors of texts, each of length 1, and whose they are."""
        inputs = [pb.TextOrTokens(text=text) for text in texts]
        priority = Priority.BATCH if is_background else Priority.NORMAL
        request = pb.EmbedRequest(model=model, inputs=inputs, with_digest=True)
        answer = await self._ask(self._stub.Embed, request, project, priority)
        vectors = np.array([each.values for each in answer.embeddings], np.float32)
        return EmbeddingResult(vectors, answer.model_digest)

    async def _ask(
        self,
        method: Callable[..., Awaitable[Any]],
        request: Any,
        project: str,
        priority: Priority,
    ) -> Any:
        metadata = call_metadata(self._token, project, priority, "vectors")
        with translate_errors(SERVICE):
            return await method(request, metadata=metadata, timeout=self._timeout_s)
