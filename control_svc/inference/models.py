"""Model names, options and seeds as the inference service resolves them."""

from dataclasses import dataclass
from typing import Final, Protocol

import grpc.aio
from corral.inference.v1 import generation_pb2
from corral.inference.v1 import inference_service_pb2 as pb
from corral.inference.v1.inference_service_pb2_grpc import InferenceServiceStub

from control_svc.inference.client import SERVICE, Metadata, call_metadata
from svc_kit.auth.authenticator import ServiceToken
from svc_kit.auth.principal import Priority
from svc_kit.rpc.client import translate_errors


@dataclass(frozen=True)
class ResolvedModel:
    """What a response shows of the model that answers it."""

    model: str
    """The name it is served under."""
    options: bytes
    """The caller's options, with the model's default sampling."""
    seed: int | None
    """The caller's seed, if any."""


class Models(Protocol):
    """What the inference service knows without computing."""

    async def describe(self, project: str, model: str, options: bytes) -> ResolvedModel:
        """Raises ModelNotFound, and what makes the service unreachable."""


_TIMEOUT_S: Final = 60.0
_SHOWN_SAMPLING: Final = ("temperature", "top_p", "presence_penalty", "frequency_penalty")
"""Sampling fields that a response always shows."""


class RpcModels:
    """`Models` over a channel."""

    def __init__(self, channel: grpc.aio.Channel, token: ServiceToken | None) -> None:
        self._stub = InferenceServiceStub(channel)
        self._token = token

    async def describe(self, project: str, model: str, options: bytes) -> ResolvedModel:
        """Raises ModelNotFound, and what makes the service unreachable."""
        with translate_errors(SERVICE):
            found = await self._stub.GetModel(
                pb.GetModelRequest(model=model),
                metadata=self._metadata(project),
                timeout=_TIMEOUT_S,
            )
        resolved = generation_pb2.GenerationOptions.FromString(options)
        defaults, sampling = found.model.default_sampling, resolved.sampling
        for name in _SHOWN_SAMPLING:
            if not sampling.HasField(name):
                setattr(sampling, name, getattr(defaults, name))
        seed = sampling.seed if sampling.HasField("seed") else None
        return ResolvedModel(
            model or found.model.name,
            resolved.SerializeToString(deterministic=True),
            seed,
        )

    def _metadata(self, project: str) -> Metadata:
        return call_metadata(self._token, project, Priority.INTERACTIVE, "responses")
