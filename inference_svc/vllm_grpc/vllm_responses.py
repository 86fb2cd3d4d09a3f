"""Converts the events of a generation to responses of VllmEngine.

Chunks have what is new of a choice. The last message of a choice has all of it, and is the only one
where the request has not asked for a stream.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from corral.inference.v1 import generation_pb2 as generation
from corral.inference.v1 import inference_service_pb2 as inference
from smg_grpc_proto.generated import vllm_engine_pb2 as pb

_REASONS: Final = {
    generation.FINISH_REASON_STOP: "stop",
    generation.FINISH_REASON_LENGTH: "length",
}


class ResponseWriter:
    """The responses to one request."""

    def __init__(self, request: pb.GenerateRequest) -> None:
        params = request.sampling_params
        self._streams = request.stream
        self._stop_token_ids = frozenset(params.stop_token_ids)
        self._outputs = [pb.GenerateComplete(index=i) for i in range(params.n or 1)]
        self._prompt_tokens = 0
        self._cached_tokens = 0
        self._input_logprobs = pb.InputLogProbs()

    def add(self, event: inference.GenerateResponse) -> Iterator[pb.GenerateResponse]:
        """Convert the next event."""
        match event.WhichOneof("event"):
            case "accepted":
                self._prompt_tokens = event.accepted.prompt_tokens
            case "started":
                self._cached_tokens = event.started.cached_tokens
            case "prompt_tokens":
                _add_prompt(self._input_logprobs, event.prompt_tokens.tokens)
            case "delta" if event.delta.token_ids:
                yield from self._add_tokens(event.delta)
            case "finished":
                yield self._finish(event.finished)

    def abort(self) -> Iterator[pb.GenerateResponse]:
        """End the choices that have not finished."""
        for output in self._outputs:
            if not output.finish_reason:
                yield self._complete(output, "abort")

    def _add_tokens(self, delta: inference.TextDelta) -> Iterator[pb.GenerateResponse]:
        output, logprobs = self._outputs[delta.index], _output_logprobs(delta.logprobs)
        is_first = not output.output_ids
        output.output_ids.extend(delta.token_ids)
        if logprobs is not None:
            output.output_logprobs.MergeFrom(logprobs)
        if self._streams:
            chunk = pb.GenerateStreamChunk(
                token_ids=delta.token_ids,
                prompt_tokens=self._prompt_tokens,
                completion_tokens=len(delta.token_ids),
                cached_tokens=self._cached_tokens,
                output_logprobs=logprobs,
                input_logprobs=self._prompt_logprobs() if is_first else None,
                index=delta.index,
            )
            yield pb.GenerateResponse(chunk=chunk)

    def _finish(self, finished: generation.ChoiceFinished) -> pb.GenerateResponse:
        output = self._outputs[finished.index]
        # vLLM names no token where the text ended by itself.
        if finished.HasField("stop_text"):
            output.matched_stop_str = finished.stop_text
        elif finished.HasField("stop_token_id") and finished.stop_token_id in self._stop_token_ids:
            output.matched_token_id = finished.stop_token_id
        return self._complete(output, _REASONS[finished.reason])

    def _complete(self, output: pb.GenerateComplete, reason: str) -> pb.GenerateResponse:
        output.finish_reason = reason
        output.prompt_tokens = self._prompt_tokens
        output.completion_tokens = len(output.output_ids)
        output.cached_tokens = self._cached_tokens
        if (logprobs := self._prompt_logprobs()) is not None:
            output.input_logprobs.CopyFrom(logprobs)
        return pb.GenerateResponse(complete=output)

    def _prompt_logprobs(self) -> pb.InputLogProbs | None:
        return self._input_logprobs if self._input_logprobs.token_ids else None


def _output_logprobs(tokens: Iterable[generation.ChosenLogprob]) -> pb.OutputLogProbs | None:
    """None without tokens. The alternatives of a token are empty where none are requested."""
    logprobs = pb.OutputLogProbs()
    for token in tokens:
        logprobs.token_ids.append(token.chosen.token_id)
        logprobs.token_logprobs.append(token.chosen.logprob)
        logprobs.top_logprobs.append(_top_logprobs(token.top))
    return logprobs if logprobs.token_ids else None


def _add_prompt(logprobs: pb.InputLogProbs, tokens: Iterable[generation.PromptToken]) -> None:
    for token in tokens:
        value = token.logprob if token.HasField("logprob") else None
        logprobs.token_ids.append(token.token_id)
        logprobs.token_logprobs.append(pb.InputTokenLogProb(value=value))
        logprobs.top_logprobs.append(_top_logprobs(token.top))


def _top_logprobs(tokens: Iterable[generation.TokenLogprob]) -> pb.TopLogProbs:
    logprobs = pb.TopLogProbs()
    for token in tokens:
        logprobs.token_ids.append(token.token_id)
        logprobs.values.append(token.logprob)
    return logprobs
