"""What a stream of Chat or Generate has delivered, from which another replica can go on.

Token ids are always requested, and the client gets them only if it has asked for them. Output is
delivered together with its tokens, so that what the other replica sends follows without a seam.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Final

from corral.inference.v1 import generation_pb2
from corral.inference.v1.inference_service_pb2 import ChatRequest

from svc_kit.rpc.prefix_key import Generation

_KEPT_BYTES: Final = 4 * 1024 * 1024
"""A larger request is not kept while its answer is streamed."""
_IDS_OPTION: Final = "output.token_ids"


@dataclass
class _Choice:
    token_ids: list[int] = field(default_factory=list)
    withheld: list[Any] = field(default_factory=list)
    """Deltas whose tokens, or end of the choice, have not arrived."""
    is_finished: bool = False


class GenerationProgress:
    """The state of one generation over all its attempts."""

    def __init__(self, request: Generation) -> None:
        self.is_started = False
        """Whether anything was delivered."""
        self.is_resumable = _is_resumable(request)
        """Whether another replica can go on behind what was delivered."""
        self.met_other_model = False
        """Whether the last attempt was accepted by a model with other weights: it must be ended."""
        self._request: Any = request
        self._wants_ids = request.options.output.token_ids
        self._choices = {index: _Choice() for index in range(max(1, request.options.num_choices))}
        for each in request.options.resume:
            if each.index in self._choices:
                self._choices[each.index].token_ids += each.output_token_ids
        self._accepted: generation_pb2.Accepted | None = None
        self._started: generation_pb2.Started | None = None
        self._num_delivered = 0
        if self.is_resumable:
            self._request = deepcopy(request)
            self._request.options.output.token_ids = True

    def next_request(self) -> Any:
        """The request of the next attempt, unless it may not be made."""
        options = self._request.options
        if self._accepted is not None:
            options.sampling.seed = self._accepted.seed
            del options.resume[:]
            for index, choice in self._choices.items():
                choice.withheld.clear()
                if choice.token_ids:
                    options.resume.add(index=index, output_token_ids=choice.token_ids)
        return self._request

    def advance(self, message: Any) -> Sequence[Any]:
        """Note a message of an attempt; return the messages to deliver."""
        messages = self._due(message) if self.is_resumable else (message,)
        if not self.is_resumable:
            self._request = type(self._request)()  # which may be large
        for each in messages:
            each.sequence_number = self._num_delivered
            self._num_delivered += 1
            self.is_started = True
        return messages

    def _due(self, message: Any) -> Sequence[Any]:
        kind = message.WhichOneof("event")
        if kind == "delta":
            return self._delta(self._choices[message.delta.index], message)
        if kind == "finished":
            return self._finished(self._choices[message.finished.index], message)
        if kind == "accepted":
            return self._accept(message)
        if kind == "started":
            is_first = self._started is None
            self._started = self._started or message.started
            return (message,) if is_first else ()
        if kind == "done" and self._started is not None:
            message.done.usage.cached_tokens = self._started.cached_tokens
            message.done.usage.cache_source = self._started.cache_source
        return (message,)

    def _accept(self, message: Any) -> Sequence[Any]:
        if self._accepted is not None:
            digests = {self._accepted.model_digest, message.accepted.model_digest}
            self.met_other_model = len(digests - {""}) > 1
            return ()
        ignored = message.accepted.ignored_options
        if _IDS_OPTION in ignored:  # an engine in text mode has none
            self.is_resumable = False
            if not self._wants_ids:
                ignored.remove(_IDS_OPTION)
        self._accepted = message.accepted
        return (message,)

    def _delta(self, choice: _Choice, message: Any) -> Sequence[Any]:
        if choice.is_finished:
            return ()
        choice.withheld.append(message)
        delta = message.delta
        if not delta.num_tokens:
            return ()
        choice.token_ids += delta.token_ids
        if not self._wants_ids:
            delta.ClearField("token_ids")
        return self._release(choice)

    def _finished(self, choice: _Choice, message: Any) -> Sequence[Any]:
        if choice.is_finished:
            return ()
        choice.is_finished = True
        return (*self._release(choice), message)

    @staticmethod
    def _release(choice: _Choice) -> Sequence[Any]:
        released, choice.withheld = choice.withheld, []
        return released


def _is_resumable(request: Generation) -> bool:
    """Log probabilities of the prompt are sent once, and those of a chat lag behind its tokens; a
    snapshot is on one replica."""
    options = request.options
    is_chat = isinstance(request, ChatRequest)
    return not (
        options.output.HasField("prompt_logprobs")
        or (is_chat and options.output.HasField("top_logprobs"))
        or any(each.snapshot_id for each in options.resume)
        or request.ByteSize() > _KEPT_BYTES
    )
