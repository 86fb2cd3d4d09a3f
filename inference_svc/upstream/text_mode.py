"""Engines without token ids: messages go there as they are, and come parsed (`openai`).

An answer that was shown in part cannot go on at another engine. Tokens are counted by the engine;
until it has told them, or if it does not, each event counts as one.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from inference_svc.engine.events import Delta, Finished, FinishReason, MessagePart, ToldUsage
from inference_svc.engine.sequence import Sequence
from inference_svc.engine_client.features import Features
from inference_svc.upstream.embedding_turn import EmbeddingRoute, EmbeddingTurn
from inference_svc.upstream.endpoint import Endpoint
from inference_svc.upstream.endpoints import Examined
from inference_svc.upstream.faults import AnswerInvalid, EngineLost, EngineUnusable, RequestRefused
from inference_svc.upstream.openai import FEATURES, MessageReader, OpenAi, Usage, chat_completion
from inference_svc.upstream.probe import Identity
from inference_svc.upstream.target import UpstreamTarget
from inference_svc.upstream.upstream_turn import ServedModel, Turn
from svc_kit.errors import ContextLengthExceeded, DomainError, InvalidField

_MAX_TOKEN_BYTES: Final = 256
"""More bytes for each token that was asked for than any vocabulary has: the engine does not end."""

_NEW_LIMIT: Final = "max_completion_tokens"
_REFUSED_STATUSES: Final = frozenset({400, 403, 404, 413, 422})
"""403 and 404 are also for contents that a service does not allow, and for features that a model
does not have; that the routes are there was seen by the list of models."""
_EMBEDDINGS: Final = EmbeddingRoute("/embeddings", _REFUSED_STATUSES)
_PROBE_TEXT: Final = "a"
_REFUSED: Final = "the engine does not accept this request; the log of the service has its reason"


@dataclass(slots=True)
class FieldNames:
    """The name of the limit of tokens. Newer models of OpenAI refuse the old one, which most others
    know alone."""

    limit: str = "max_tokens"


class TextMode:
    """The engines of a name without a vocabulary."""

    default_context = 0

    def __init__(self, target: UpstreamTarget) -> None:
        self._target = target
        self._api = OpenAi()
        self._names = FieldNames()

    async def examine(self, endpoint: Endpoint) -> Examined:
        info = await self._api.info(endpoint, self._target)
        size = await self._vector_size(endpoint, info.model) if self._target.embeds else None
        identity = Identity(self._api.name, info.model, info.revision, size, "")
        turn = partial(MessageTurn, names=self._names)
        embed = partial(EmbeddingTurn, route=_EMBEDDINGS, size=size) if size else None

        async def features() -> Features:
            return replace(FEATURES, generates=not self._target.embeds, vector_size=size)

        return Examined(self._api, info, identity, features, turn, embed)

    async def _vector_size(self, endpoint: Endpoint, model: str) -> int:
        try:
            return await _EMBEDDINGS.vector_size(endpoint, model, _PROBE_TEXT)
        except RequestRefused as fault:
            raise EngineUnusable(f"it does not embed: {fault}") from None


class MessageTurn(Turn):
    """A sequence whose message is read."""

    def __init__(self, sequence: Sequence, served: ServedModel, *, names: FieldNames) -> None:
        super().__init__(sequence, served)
        self._names = names
        self._reader = MessageReader()
        self._usage: Usage | None = None
        self._finish_reason = ""
        self._num_tokens = self._num_reasoning = self._num_bytes = 0

    @property
    def can_go_on(self) -> bool:
        return self.sequence.first_token_at is None

    def refusal(self, fault: RequestRefused) -> DomainError:
        """What an engine does not accept is most likely something of the request."""
        request, limit = self.sequence.request, self._served.context_tokens
        if fault.is_too_long and limit:
            return ContextLengthExceeded(
                field="messages", prompt_tokens=request.estimated_tokens, context_tokens=limit
            )
        problem = "they are too long for the engine" if fault.is_too_long else _REFUSED
        return InvalidField(field="messages", problem=problem)

    async def run(self, endpoint: Endpoint) -> None:
        self._leave_queue()
        limit = self._names.limit
        try:
            await self._attempt(endpoint, limit)
        except RequestRefused as fault:
            if fault.unknown_field != limit or limit == _NEW_LIMIT:
                raise
            self._names.limit = _NEW_LIMIT
            await self._attempt(endpoint, _NEW_LIMIT)

    async def _attempt(self, endpoint: Endpoint, limit: str) -> None:
        self._reader, self._usage, self._finish_reason = MessageReader(), None, ""
        try:
            path, body = chat_completion(self.sequence.request, self._served.model, limit)
            await self._ask(endpoint, path, body, self._read, _REFUSED_STATUSES)
        except EngineLost:
            if not self._finish_reason:  # else only its counts are missing
                raise
        if not self.is_finished:
            if not self._finish_reason:
                raise EngineLost("its stream ended before the answer did")
            self._finish()

    def _read(self, data: bytes) -> bool:
        if self.is_finished:
            return False
        event = self._reader.read(data)
        self._start(0)
        self._usage = event.usage or self._usage
        self._finish_reason = event.finish_reason or self._finish_reason
        if event.part is not None:
            self._append(event.part)
        if event.is_last:
            if not self._finish_reason:
                raise AnswerInvalid("it ended its answer without a finish_reason")
            self._finish()
        return self.is_finished and not event.is_last

    def _append(self, part: MessagePart) -> None:
        request, served, now = self.sequence.request, self._served, self._touch()
        self._num_tokens += 1
        self._num_reasoning += bool(part.reasoning)
        served.on_token(request.project)
        served.counters.output += 1
        served.emit(Delta(request.sequence_id, (), (), (), now, (part,), 1))
        texts = (part.reasoning, part.content, *(each.arguments for each in part.calls))
        self._num_bytes += sum(len(text.encode()) for text in texts)
        if self._num_bytes > request.max_tokens * _MAX_TOKEN_BYTES > 0:
            self._finish_reason, self._usage = "length", None
            self._finish()

    def _finish(self) -> None:
        request, served, told = self.sequence.request, self._served, self._usage
        used = told or Usage(request.estimated_tokens, self._num_tokens, self._num_reasoning)
        is_cut = self._finish_reason == "length"
        finished = Finished(
            request.sequence_id,
            FinishReason.LENGTH if is_cut else FinishReason.STOP,
            None,
            None,
            used.output,
            self._end(),
            num_reasoning_tokens=used.reasoning,
            usage=ToldUsage(used.prompt, told is None),
        )
        served.emit(finished)
