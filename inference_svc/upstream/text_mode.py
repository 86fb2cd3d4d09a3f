"""Engines without token ids: messages go there as they are, and come parsed (`openai`).

Of what they honour, only log probabilities are probed, by an answer of one token. An answer that
was shown in part cannot go on at another engine. Tokens are counted by the engine; until it has
told them, or if it does not, each event counts as one.
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
from inference_svc.upstream.faults import (
    AnswerInvalid,
    EngineLost,
    EngineUnusable,
    RequestFailed,
    RequestRefused,
)
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
_LOGPROBS: Final = (20, 5, 1)
"""Alternatives of a token that are tried; services have limits of their own."""
_REFUSED: Final = "the engine does not accept this request; the log of the service has its reason"


@dataclass(slots=True)
class FieldNames:
    """The name of the limit of tokens. Newer models of OpenAI refuse the old one, which most others
    know alone."""

    limit: str = "max_tokens"

    def learn(self, fault: RequestRefused, sent: str) -> bool:
        """Whether a request that was refused with the name `sent` may be sent with the new one."""
        if fault.unknown_field != sent or sent == _NEW_LIMIT:
            return False
        self.limit = _NEW_LIMIT
        return True


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
            if self._target.embeds:
                return replace(FEATURES, generates=False, vector_size=size)
            return replace(FEATURES, max_logprobs=await self._max_logprobs(endpoint, info.model))

        return Examined(self._api, info, identity, features, turn, embed)

    async def _max_logprobs(self, endpoint: Endpoint, model: str) -> int | None:
        """The alternatives of a token that an engine tells, None without log probabilities."""
        for count in _LOGPROBS:
            try:
                has_logprobs = await self._tells_logprobs(endpoint, model, count)
            except RequestRefused:
                continue
            except (RequestFailed, AnswerInvalid):
                return None
            return count if has_logprobs else None
        return None

    async def _tells_logprobs(self, endpoint: Endpoint, model: str, count: int) -> bool:
        limit, reader = self._names.limit, MessageReader(count)
        messages = [{"role": "user", "content": _PROBE_TEXT}]
        fields = {"messages": messages, "max_tokens": 1}
        path, body = chat_completion(fields, model, limit, count)

        def read(data: bytes) -> bool:
            return reader.read(data).is_last

        try:
            await endpoint.stream(path, body, read, lambda _: None, _REFUSED_STATUSES)
        except RequestRefused as fault:
            if not self._names.learn(fault, limit):
                raise
            return await self._tells_logprobs(endpoint, model, count)
        return reader.has_logprobs

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
        self._reader = MessageReader(sequence.request.top_logprobs)
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
            if not self._names.learn(fault, limit):
                raise
            await self._attempt(endpoint, self._names.limit)

    async def _attempt(self, endpoint: Endpoint, limit: str) -> None:
        request = self.sequence.request
        self._reader = MessageReader(request.top_logprobs)
        self._usage, self._finish_reason = None, ""
        try:
            path, body = chat_completion(
                request.chat or {}, self._served.model, limit, request.top_logprobs
            )
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
