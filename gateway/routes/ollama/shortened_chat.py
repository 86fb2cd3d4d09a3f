"""Calls of chats that are repeated without their oldest turns when they are too long."""

from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from corral.inference.v1 import inference_service_pb2

from dialects.ollama.truncation import shorten
from gateway.calls import ComposedCall
from gateway.rpc import InferenceClient
from svc_kit.errors import ContextLengthExceeded, DomainError


class ShortenedChat:
    """The call of a chat (`Calls`). `streams` is as in `InferenceClient.generate`."""

    def __init__(
        self,
        inference: InferenceClient,
        request: inference_service_pb2.ChatRequest,
        *,
        streams: bool,
    ) -> None:
        self._inference = inference
        self._request = request
        self._streams = streams
        self._call: Any = self._start()
        self._stopped: DomainError | None = None

    async def open(self) -> None:
        """Wait until the call is accepted. Raises ContextLengthExceeded if the last turn alone is
        too long."""
        try:
            await self._call.open()
            return
        except ContextLengthExceeded as error:
            count = partial(self._inference.call, reply=inference_service_pb2.CountTokensResponse)
            self._call = ComposedCall(shorten(self._request, error.context_tokens, count))
            await self._call.open()
            if not self._call.first:
                raise
        if self._stopped is not None:
            raise self._stopped
        self._call = self._start()
        await self._call.open()

    def __aiter__(self) -> AsyncIterator[tuple[int, Any]]:
        """As `Calls`."""
        return aiter(self._call)

    @property
    def first(self) -> Any:
        """As `Calls`."""
        return self._call.first

    def stop(self, error: DomainError) -> None:
        """As `Calls`."""
        self._stopped = error
        self._call.stop(error)

    def _start(self) -> Any:
        return self._inference.generate([self._request], streams=self._streams)
