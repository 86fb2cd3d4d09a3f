"""Builders of stream events of the inference service."""

from collections.abc import Sequence
from typing import Any

from corral.inference.v1 import chat_pb2, generation_pb2, inference_service_pb2

from dialects.openai.chat.chat_request import ChatCompletionBody, parse_chat
from dialects.openai.chat.completion_request import CompletionBody, parse_completion
from dialects.openai.envelope import Envelope

ChatEvent = inference_service_pb2.ChatResponse
TextEvent = inference_service_pb2.GenerateResponse


def make_envelope(object_id: str = "chatcmpl-1") -> Envelope:
    return Envelope(id=object_id, created=1700000000, model="asked", system_fingerprint="fp")


def chat_body(**fields: Any) -> ChatCompletionBody:
    messages = [{"role": "user", "content": "hi"}]
    return parse_chat({"model": "asked", "messages": messages, **fields})


def completion_body(**fields: Any) -> CompletionBody:
    return parse_completion({"model": "asked", "prompt": "p", **fields})


def accepted(model: str = "m") -> generation_pb2.Accepted:
    return generation_pb2.Accepted(request_id="r", prompt_tokens=3, model=model)


def chat_accepted(model: str = "m") -> ChatEvent:
    return ChatEvent(accepted=accepted(model))


def text_accepted(model: str = "m") -> TextEvent:
    """The first event of a text completion."""
    return TextEvent(accepted=accepted(model))


def chat_delta(
    content: str = "",
    *,
    index: int = 0,
    reasoning: str = "",
    calls: Sequence[chat_pb2.ToolCallDelta] = (),
    logprobs: Sequence[generation_pb2.ChosenLogprob] = (),
) -> ChatEvent:
    return ChatEvent(
        delta=inference_service_pb2.ChatDelta(
            index=index, content=content, reasoning=reasoning, tool_calls=calls, logprobs=logprobs
        )
    )


def text_delta(
    text: str = "",
    *,
    index: int = 0,
    logprobs: Sequence[generation_pb2.ChosenLogprob] = (),
) -> TextEvent:
    return TextEvent(
        delta=inference_service_pb2.TextDelta(index=index, text=text, logprobs=logprobs)
    )


def finished(
    index: int = 0,
    reason: generation_pb2.FinishReason = generation_pb2.FINISH_REASON_STOP,
) -> generation_pb2.ChoiceFinished:
    return generation_pb2.ChoiceFinished(index=index, reason=reason)


def done(prompt: int = 3, completion: int = 2, **tokens: Any) -> generation_pb2.Done:
    """The last event of a call; `tokens` are the other fields of its usage."""
    usage = generation_pb2.Usage(prompt_tokens=prompt, completion_tokens=completion, **tokens)
    return generation_pb2.Done(usage=usage)


def make_token(
    token: bytes, logprob: float = -0.5, top: Sequence[tuple[bytes, float]] = ()
) -> generation_pb2.ChosenLogprob:
    """A token with its log probability and alternatives."""
    return generation_pb2.ChosenLogprob(
        chosen=generation_pb2.TokenLogprob(token=token, logprob=logprob),
        top=[generation_pb2.TokenLogprob(token=name, logprob=value) for name, value in top],
    )


def event_data(frame: bytes) -> bytes:
    """The data of a server-sent event without a name."""
    assert frame.startswith(b"data: ")
    assert frame.endswith(b"\n\n")
    return frame[6:-2]
