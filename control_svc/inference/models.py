"""Model names, options and seeds as the inference service resolves them."""

import logging
from dataclasses import dataclass
from typing import Final, Protocol

import grpc.aio
from corral.inference.v1 import inference_service_pb2 as pb
from corral.inference.v1.inference_service_pb2_grpc import InferenceServiceStub
from corral.inference.v1.model_pb2 import Model

from control_svc.inference.client import SERVICE, call_metadata
from control_svc.inference.generation_options import OPTIONS, GenerationOptions
from svc_kit.auth.authenticator import ServiceToken
from svc_kit.auth.principal import Priority
from svc_kit.errors import (
    DomainError,
    ModelExists,
    ModelLoadFailed,
    ModelLoading,
    ModelNotFound,
)
from svc_kit.rpc.client import translate_errors


@dataclass(frozen=True)
class ResolvedModel:
    """Model, options and seed as a response shows them."""

    model: str
    """Served model name."""
    options: GenerationOptions
    """The options of the request, with default sampling of the model."""
    seed: int | None
    """The seed of the request, if any."""


class Models(Protocol):
    """Looks up models."""

    async def resolve(self, project: str, model: str, options: GenerationOptions) -> ResolvedModel:
        """Resolve the model of a request and complete its options.

        Raises ModelNotFound, and retryable errors if the service is not reachable.
        """


_log = logging.getLogger(__name__)
_TIMEOUT_S: Final = 60.0
_NAME_TIMEOUT_S: Final = 5.0
_SHOWN_SAMPLING: Final = ("temperature", "top_p", "presence_penalty", "frequency_penalty")
"""Sampling fields that a response always contains."""


class RpcModels:
    """`Models` over a channel."""

    def __init__(self, channel: grpc.aio.Channel, token: ServiceToken | None) -> None:
        self._stub = InferenceServiceStub(channel)
        self._token = token

    async def resolve(self, project: str, model: str, options: GenerationOptions) -> ResolvedModel:
        """See `Models.resolve`."""
        found = await self.find(project, model)
        resolved = OPTIONS.to_message(options)
        defaults, sampling = found.default_sampling, resolved.sampling
        for name in _SHOWN_SAMPLING:
            if not sampling.HasField(name):
                setattr(sampling, name, getattr(defaults, name))
        seed = sampling.seed if sampling.HasField("seed") else None
        options = OPTIONS.from_message(resolved)
        return ResolvedModel(model or found.name, options, seed)

    async def check_free(self, project: str, name: str) -> None:
        """Raise ModelExists if a model or an alias of one has this name. If the service cannot be
        reached, nothing is known: frontends refuse an adapter with the name of a model too.
        """
        metadata = call_metadata(self._token, project, Priority.INTERACTIVE)
        request = pb.GetModelRequest(model=name)
        try:
            with translate_errors(SERVICE):
                reply = await self._stub.GetModel(
                    request, metadata=metadata, timeout=_NAME_TIMEOUT_S
                )
        except (ModelLoading, ModelLoadFailed):
            raise ModelExists(model=name) from None
        except ModelNotFound:
            return
        except DomainError as error:
            _log.warning("whether %r is the name of a model is not known: %s", name, error)
            return
        if not reply.model.parent:  # else it is an adapter
            raise ModelExists(model=name)

    async def find(self, project: str, model: str) -> Model:
        """Describe a model or adapter that a project may use. Errors: as `Models.resolve`."""
        metadata = call_metadata(self._token, project, Priority.INTERACTIVE)
        with translate_errors(SERVICE):
            response = await self._stub.GetModel(
                pb.GetModelRequest(model=model), metadata=metadata, timeout=_TIMEOUT_S
            )
        return response.model
