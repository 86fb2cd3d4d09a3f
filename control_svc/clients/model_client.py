"""What the inference service says of models."""

from typing import Final

import grpc.aio
from corral.inference.v1 import generation_pb2
from corral.inference.v1 import inference_service_pb2 as pb
from corral.inference.v1.inference_service_pb2_grpc import InferenceServiceStub

from control_svc.clients.acting import SERVICE, Metadata, acting_for
from control_svc.domain.response_ports import ModelFacts
from control_svc.domain.responses import ResponseSettings
from svc_kit.auth import Priority, ServiceToken
from svc_kit.rpc_client import translate_errors

_TIMEOUT_S: Final = 60.0
_SHOWN_SAMPLING: Final = ("temperature", "top_p", "presence_penalty", "frequency_penalty")
"""What a response shows of its sampling, whether its caller said it or not."""


class RpcModels:
    """`Models` over a channel."""

    def __init__(self, channel: grpc.aio.Channel, token: ServiceToken | None) -> None:
        self._stub = InferenceServiceStub(channel)
        self._token = token

    async def describe(self, project: str, settings: ResponseSettings) -> ModelFacts:
        """Raises ModelNotFound, and what makes the service unreachable."""
        with translate_errors(SERVICE):
            found = await self._stub.GetModel(
                pb.GetModelRequest(model=settings.model),
                metadata=self._metadata(project),
                timeout=_TIMEOUT_S,
            )
        options = generation_pb2.GenerationOptions.FromString(settings.options)
        defaults, sampling = found.model.default_sampling, options.sampling
        for name in _SHOWN_SAMPLING:
            if not sampling.HasField(name):
                setattr(sampling, name, getattr(defaults, name))
        seed = sampling.seed if sampling.HasField("seed") else None
        return ModelFacts(
            settings.model or found.model.name,
            options.SerializeToString(deterministic=True),
            seed,
        )

    def _metadata(self, project: str) -> Metadata:
        return acting_for(self._token, project, Priority.INTERACTIVE, "responses")
