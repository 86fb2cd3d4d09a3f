"""Engines that take and write token ids: vLLM, SGLang and llama-server.

An attempt sends the prompt and the output so far, so that it goes on where the last one ended:
after the loss of an engine, and after tokens that end a reasoning, which no engine can be told to
write. Text, stop texts, reasoning and counts are ours and do not see the seam.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from collections.abc import Sequence as SequenceOf
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final

from inference_svc.engine.constraint import Constraint
from inference_svc.engine.events import ChosenLogprob, Delta, FinishReason, Logprob
from inference_svc.engine.sequence import Sequence
from inference_svc.engine_client.continuation import continuation, may_continue
from inference_svc.output_format import OutputFormat, OutputFormatKind
from inference_svc.upstream.embedding_turn import EmbeddingRoute, EmbeddingTurn
from inference_svc.upstream.endpoint import Endpoint
from inference_svc.upstream.endpoints import Examined
from inference_svc.upstream.engine_api import (
    UNKNOWN,
    AnswerReader,
    Chunk,
    EngineApi,
    EngineInfo,
    Generation,
    TokenLogprob,
)
from inference_svc.upstream.faults import (
    AnswerInvalid,
    EngineLost,
    EngineUnusable,
    RequestFailed,
    RequestRefused,
)
from inference_svc.upstream.llama_server import LlamaServer
from inference_svc.upstream.pieces import PieceIndex, VocabularyPieces
from inference_svc.upstream.probe import (
    Ask,
    Identity,
    Prober,
    VocabularySample,
    detect,
    find_vector_size,
)
from inference_svc.upstream.sglang import Sglang
from inference_svc.upstream.target import UpstreamTarget, UpstreamVocabulary
from inference_svc.upstream.upstream_turn import ServedModel, Turn
from inference_svc.upstream.vllm import Vllm
from svc_kit.errors import (
    DecodeFailed,
    DomainError,
    EngineRestarting,
    FeatureUnsupported,
    GrammarInvalid,
)

log = logging.getLogger(__name__)
OpenVocabulary = Callable[[str], Awaitable[UpstreamVocabulary]]
TOKEN_KINDS: Final[Mapping[str, Ask]] = {
    "llama_server": LlamaServer.info,
    "vllm": Vllm.info,
    "sglang": Sglang.info,
}
_LOAD_PAUSE_S: Final = 60.0
"""Between two attempts to load an adapter that the engine did not load."""
_UNTOLD_LOGPROB: Final = -9999.0
"""OpenAI's value for a token whose probability is not told."""


class TokenMode:
    """The engines of a name. `open_vocabulary` opens that of the model when the first of them is
    asked, and gets where this one says that its tokenizer is. It may raise `EngineFault`."""

    default_context = 4096

    def __init__(self, target: UpstreamTarget, open_vocabulary: OpenVocabulary) -> None:
        self._target = target
        self._open_vocabulary = open_vocabulary
        kinds = TOKEN_KINDS.items()
        self._kinds = {kind: ask for kind, ask in kinds if target.kind in ("auto", kind)}
        self._opening = asyncio.Lock()
        self._vocabulary: UpstreamVocabulary | None = None
        self._sample: VocabularySample | None = None
        self._apis: dict[str, EngineApi] = {}
        self._load_at: dict[tuple[str, str], float] = {}
        """When an adapter that was not loaded is tried again, by URL and name."""

    async def examine(self, endpoint: Endpoint) -> Examined:
        kind, info = await detect(endpoint, self._kinds, self._target)
        async with self._opening:
            if self._vocabulary is None:
                self._vocabulary = await self._open_vocabulary(info.tokenizer)
            vocabulary = self._vocabulary
            if self._sample is None:
                self._sample = await asyncio.to_thread(VocabularySample, vocabulary)
            sample = self._sample
            if kind not in self._apis:
                self._apis[kind] = await asyncio.to_thread(_make_api, kind, vocabulary)
            api = self._apis[kind]
        if self._target.adapter_folder:
            info = await self._load_adapters(endpoint, api, info)
        check = partial(sample.check, endpoint, api, info.model)
        await check()
        size = await find_vector_size(endpoint, info.model, vocabulary)
        identity = Identity(api.name, info.model, info.revision, size, sample.digest)
        prober = Prober(endpoint, api, info, vocabulary, size)
        turn = partial(TokenTurn, api=api, pieces=VocabularyPieces(vocabulary))
        embed = partial(EmbeddingTurn, route=EmbeddingRoute(), size=size) if size else None
        return Examined(api, info, identity, prober.features, turn, embed, vocabulary.size, check)

    async def _load_adapters(
        self, endpoint: Endpoint, api: EngineApi, info: EngineInfo
    ) -> EngineInfo:
        """Let an engine load what it lacks of the adapters; return what it then tells. What it does
        not load is missing as without the setting. Raises `EngineFault`."""
        target, now = self._target, time.monotonic()
        if not api.adapter_route:
            raise EngineUnusable("it loads no adapters at run time: remove adapter_folder")
        missing = [(endpoint.url, name) for name in target.adapters if name not in info.adapters]
        due = [each for each in missing if self._load_at.get(each, 0.0) <= now]
        for each in due:
            path = f"{target.adapter_folder}/{each[1]}"
            try:
                await endpoint.post(api.adapter_route, {"lora_name": each[1], "lora_path": path})
            except (RequestRefused, RequestFailed, AnswerInvalid, EngineUnusable) as fault:
                self._load_at[each] = now + _LOAD_PAUSE_S
                log.warning("%s has not loaded the adapter %s: %s", endpoint.url, path, fault)
        return await api.info(endpoint, target) if due else info


def already_open(vocabulary: UpstreamVocabulary) -> OpenVocabulary:
    """For a vocabulary that does not depend on what engines tell."""

    async def open_vocabulary(_: str) -> UpstreamVocabulary:
        return vocabulary

    return open_vocabulary


def _make_api(kind: str, vocabulary: UpstreamVocabulary) -> EngineApi:
    if kind == "llama_server":
        return LlamaServer(PieceIndex(vocabulary))
    return Vllm() if kind == "vllm" else Sglang()


class TokenTurn(Turn):
    """A sequence whose tokens are read."""

    def __init__(
        self, sequence: Sequence, served: ServedModel, *, api: EngineApi, pieces: VocabularyPieces
    ) -> None:
        super().__init__(sequence, served)
        self._api = api
        self._pieces = pieces
        self._reader: AnswerReader | None = None
        self._num_left = 0
        self._must_force = self._has_replayed = False

    @property
    def can_go_on(self) -> bool:
        # An engine begins a constraint at the first new token.
        request = self.sequence.request
        if request.constraint is None or self.sequence.num_output == len(request.resumed):
            return True
        form = request.constraint.form
        return form is not None and self._served.takes_gbnf and may_continue(form)

    def refusal(self, fault: RequestRefused) -> DomainError:
        request = self.sequence.request
        if request.constraint is None or not fault.may_be_content:
            return DecodeFailed(request_id=request.request_id)
        if self.sequence.num_output:
            return self._cannot_go_on(request.constraint)
        problem = "the engine does not accept it"
        return GrammarInvalid(field=request.constraint.field, problem=problem)

    async def run(self, endpoint: Endpoint) -> None:
        self._begin()
        while not self.is_finished:
            if self._force():
                return
            constraint = await self._constraint()
            if not self.is_finished:
                await self._attempt(endpoint, constraint)

    def _begin(self) -> None:
        """Leave the queue, and replay the resumed tokens, once."""
        sequence = self.sequence
        self._leave_queue()
        if self._has_replayed:
            return
        self._has_replayed = True
        for token in sequence.request.resumed:
            if sequence.output.add(token, self._pieces).is_end:
                self._start(0)
                self._finish(FinishReason.STOP)
                return
        if sequence.num_output and self._num_allowed <= 0:
            self._start(0)
            self._finish(FinishReason.LENGTH)

    @property
    def _num_allowed(self) -> int:
        """The output tokens that may still come."""
        sequence = self.sequence
        room = self._served.context_tokens - len(sequence.tokens)
        return min(sequence.request.max_tokens - sequence.num_output, room)

    async def _constraint(self) -> Constraint | None:
        """The constraint of what is still to be written. Finishes the sequence if that is nothing.
        Raises a `DomainError` if it cannot be written."""
        sequence, request = self.sequence, self.sequence.request
        constraint = request.constraint
        if constraint is None or constraint.form is None or not sequence.num_output:
            return constraint
        form, rest = constraint.form, None
        with suppress(UnicodeDecodeError):  # half of a character
            rest = await asyncio.to_thread(continuation, form, self._output.decode())
        if rest is None:
            raise self._cannot_go_on(constraint)
        if not rest:
            self._start(0)
            self._finish(FinishReason.STOP)
        return Constraint("", form.field, OutputFormat(OutputFormatKind.GBNF, rest, form.field))

    def _cannot_go_on(self, constraint: Constraint) -> DomainError:
        if self.sequence.num_output > len(self.sequence.request.resumed):
            return EngineRestarting(phase="running")
        return FeatureUnsupported(feature=f"'resume' with '{constraint.field}' after this output")

    @property
    def _output(self) -> bytes:
        tokens = self.sequence.tokens[len(self.sequence.request.prompt) :]
        return b"".join(self._pieces.piece(each, special=False) for each in tokens)

    async def _attempt(self, endpoint: Endpoint, constraint: Constraint | None) -> None:
        served, sequence = self._served, self.sequence
        self._num_left = self._num_allowed
        is_whole = constraint is sequence.request.constraint
        generation = Generation(
            sequence.request if is_whole else replace(sequence.request, constraint=constraint),
            served.model,
            sequence.tokens,
            self._num_left,
            max(sequence.request.min_tokens - sequence.num_output, 0),
            served.takes_grammars and is_whole,
            self._adapters(endpoint),
        )
        self._reader = self._api.reader(generation)
        path, body = self._api.body(generation)
        await self._ask(endpoint, path, body, self._read)
        if not self.is_finished and not self._must_force:
            raise EngineLost("its stream ended before the answer did")

    def _adapters(self, endpoint: Endpoint) -> SequenceOf[tuple[str | int, float]]:
        scales = {each.digest: each.scale for each in self.sequence.request.adapters}
        if missing := scales.keys() - endpoint.adapters.keys():
            raise EngineLost(f"it has no adapter {min(missing)!r}")
        return [(each, scales.get(name, 0.0)) for name, each in endpoint.adapters.items()]

    def _read(self, data: bytes) -> bool:
        if self._reader is None:
            return False
        chunk = self._reader.read(data)
        if self.is_finished:
            return bool(chunk.tokens)  # the rest of an answer that has ended has none
        self._check(chunk)
        self._start(chunk.cached_tokens)
        if chunk.tokens:
            self._append(chunk.tokens, chunk.logprobs)
            if self.is_finished or self._must_force:
                return not (chunk.is_end or self._is_last(chunk.tokens[-1]))
        if chunk.is_end:
            self._finish(FinishReason.LENGTH if chunk.at_limit else FinishReason.STOP)
        return False

    def _is_last(self, token: int) -> bool:
        """Whether the engine ends after this token by itself."""
        return self._num_allowed <= 0 or self._pieces.is_eog(token)

    def _check(self, chunk: Chunk) -> None:
        size = self._pieces.size
        for token in chunk.tokens:
            if not 0 <= token < size:
                raise AnswerInvalid(f"its token {token} is not in the vocabulary of {size} tokens")

    def _append(self, tokens: SequenceOf[int], logprobs: SequenceOf[TokenLogprob]) -> None:
        """Append output tokens up to the one that ends the sequence, is the last one allowed, or
        after which the reasoning must end."""
        sequence, served = self.sequence, self._served
        request, now = sequence.request, self._touch()
        texts, added_logprobs, reason, count = [], [], None, 0
        for index, token in enumerate(tokens):
            count += 1
            sequence.tokens.append(token)
            served.on_token(request.project)
            added = sequence.output.add(token, self._pieces)
            texts.append(added.text)
            if request.top_logprobs is not None:
                told = logprobs[index] if index < len(logprobs) else UNKNOWN
                added_logprobs.append(self._logprob(token, told, added.piece))
            if added.is_end:
                reason = FinishReason.STOP
            elif self._num_allowed <= 0:
                reason = FinishReason.LENGTH
            elif sequence.output.reasoning.forced is not None:
                self._must_force = True
            if reason is not None or self._must_force:
                break
        served.counters.output += count
        sequence_id = request.sequence_id
        served.emit(
            Delta(sequence_id, tuple(texts), tuple(tokens[:count]), tuple(added_logprobs), now)
        )
        if reason is not None:
            self._finish(reason)

    def _force(self) -> bool:
        """Append the tokens that end the reasoning; returns whether the sequence is finished."""
        self._must_force = False
        while (token := self.sequence.output.reasoning.forced) is not None:
            self._start(0)
            self._append((token,), ())
            self._must_force = False
            if self.is_finished:
                return True
        return self.is_finished

    def _logprob(self, token: int, told: TokenLogprob, text: bytes) -> ChosenLogprob:
        piece = self._pieces.piece
        size = self._pieces.size
        value = _UNTOLD_LOGPROB if told is UNKNOWN else told.logprob
        top = tuple(
            Logprob(each, piece(each, special=True), logprob)
            for each, logprob in told.top
            if 0 <= each < size
        )
        count = self.sequence.request.top_logprobs
        chosen = Logprob(token, piece(token, special=True), value)
        return ChosenLogprob(chosen, top[:count], text=text)

    def _finish(self, reason: FinishReason) -> None:
        sequence = self.sequence
        text, finished = sequence.output.finish(reason, sequence.num_output, self._end())
        if text:
            now = time.monotonic()
            self._served.emit(Delta(finished.sequence_id, (text,), (), (), now))
        self._served.emit(finished)
