"""What a stream of Chat or Generate has delivered, from which another replica can go on.

That is the output tokens of each choice, the log probabilities that its chat holds back, and the
number of prompt tokens that were sent with theirs. The other replica replays samplers, grammar and
parser over the tokens. Token ids are always requested, and the client gets them only if it has
asked for them. Output is delivered together with its tokens, so that what follows has no seam.
"""

from collections import deque
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Final

from corral.inference.v1 import generation_pb2
from corral.inference.v1.inference_service_pb2 import ChatRequest

from svc_kit.rpc.prefix_key import Generation

KEPT_BYTES: Final = 4 * 1024 * 1024
"""A larger request is not kept while its answer is streamed."""
_IDS_OPTION: Final = "output.token_ids"


@dataclass
class _Choice:
    token_ids: list[int] = field(default_factory=list)
    held_logprobs: deque[Any] = field(default_factory=deque)
    """Of the last tokens, which may be content."""
    withheld: list[Any] = field(default_factory=list)
    """Deltas whose tokens, or end of the choice, have not arrived."""
    is_finished: bool = False


class GenerationProgress:
    """The state of one generation over all its attempts."""

    def __init__(self, request: Generation) -> None:
        self.is_started = False
        """Whether anything was delivered."""
        self.obstacle = _obstacle(request)
        """Why no other replica can go on behind what was delivered; empty if one can. After the
        first message of an attempt: why that one cannot, and must be ended."""
        self._request: Any = request
        self._wants_ids = request.options.output.token_ids
        is_chat = isinstance(request, ChatRequest)
        self._holds_logprobs = is_chat and request.options.output.HasField("top_logprobs")
        self._choices = {index: _Choice() for index in range(max(1, request.options.num_choices))}
        for each in request.options.resume:
            if each.index in self._choices:
                choice = self._choices[each.index]
                choice.token_ids += each.output_token_ids
                choice.held_logprobs += each.held_logprobs
        self._accepted: generation_pb2.Accepted | None = None
        self._started: generation_pb2.Started | None = None
        self._num_delivered = 0
        self._num_prompt_tokens = 0
        self._num_repeated = 0  # prompt tokens that this attempt sends again
        self._is_restarted = False
        if not self.obstacle:
            self._request = deepcopy(request)
            self._request.options.output.token_ids = True

    def next_request(self) -> Any:
        """The request of the next attempt, unless it may not be made."""
        options = self._request.options
        if self._accepted is not None:
            options.sampling.seed = self._accepted.seed
            options.stopping.max_tokens = self._accepted.max_tokens
            self._num_repeated = self._num_prompt_tokens
            del options.resume[:]
            for index, choice in self._choices.items():
                choice.withheld.clear()
                if choice.token_ids:
                    options.resume.add(
                        index=index,
                        output_token_ids=choice.token_ids,
                        held_logprobs=choice.held_logprobs,
                    )
        return self._request

    def advance(self, message: Any) -> Sequence[Any]:
        """Note a message of an attempt; return the messages to deliver."""
        messages = (message,) if self.obstacle else self._due(message)
        if self.obstacle:
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
            self._is_restarted = self._started is not None
            self._started = self._started or message.started
            return () if self._is_restarted else (message,)
        if kind == "prompt_tokens":
            return self._prompt_tokens(message)
        if kind == "done" and self._started is not None:
            message.done.usage.cached_tokens = self._started.cached_tokens
            message.done.usage.cache_source = self._started.cache_source
            if self._is_restarted:  # it is of the last replica, which has cached other prompts
                message.done.usage.ClearField("divergence")
        return (message,)

    def _accept(self, message: Any) -> Sequence[Any]:
        accepted, ignored = message.accepted, message.accepted.ignored_options
        first = self._accepted or accepted
        if _IDS_OPTION in ignored:
            self.obstacle = "its engine is used in text mode, which has no token ids"
            if not self._wants_ids:
                ignored.remove(_IDS_OPTION)
        elif _differ(first.model_digest, accepted.model_digest):
            self.obstacle = "another replica has other weights of the model"
        elif _differ(first.input_digest, accepted.input_digest):
            self.obstacle = (
                "another replica has another prompt, as from a picture or a date that has changed,"
                " other adapters, or other defaults of the sampling"
            )
        elif more := {*ignored} - {*first.ignored_options}:
            self.obstacle = f"another replica ignores {', '.join(sorted(more))}"
        elif self._holds_logprobs and not accepted.input_digest:
            self.obstacle = "a replica of an earlier release loses log probabilities"
        if self._accepted is not None:
            return ()
        self._accepted = accepted
        return (message,)

    def _prompt_tokens(self, message: Any) -> Sequence[Any]:
        tokens = message.prompt_tokens.tokens
        num_repeated = min(self._num_repeated, len(tokens))
        self._num_repeated -= num_repeated
        del tokens[:num_repeated]
        self._num_prompt_tokens += len(tokens)
        return (message,) if tokens else ()

    def _delta(self, choice: _Choice, message: Any) -> Sequence[Any]:
        if choice.is_finished:
            return ()
        choice.withheld.append(message)
        delta = message.delta
        if not delta.num_tokens:
            return ()
        choice.token_ids += delta.token_ids
        if self._holds_logprobs:
            self._update_held(choice.held_logprobs, delta)
        if not self._wants_ids:
            delta.ClearField("token_ids")
            if self._holds_logprobs:
                delta.ClearField("held_logprobs")
                delta.ClearField("num_held")
        return self._release(choice)

    @staticmethod
    def _update_held(held: deque[Any], delta: Any) -> None:
        held += delta.held_logprobs
        while len(held) > delta.num_held:
            held.popleft()

    def _finished(self, choice: _Choice, message: Any) -> Sequence[Any]:
        if choice.is_finished:
            return ()
        choice.is_finished = True
        return (*self._release(choice), message)

    @staticmethod
    def _release(choice: _Choice) -> Sequence[Any]:
        released, choice.withheld = choice.withheld, []
        return released


def has_snapshot(request: Generation) -> bool:
    return any(each.snapshot_id for each in request.options.resume)


def _differ(first: str, other: str) -> bool:
    """Whether two digests differ; one that is empty is not known."""
    return len({first, other} - {""}) > 1


def _obstacle(request: Generation) -> str:
    """Why an answer to a request can only be given by one replica; empty if by others too."""
    if has_snapshot(request):
        return "the snapshot from which it goes on is on one replica"
    if request.ByteSize() > KEPT_BYTES:
        return "requests of more than 4 MiB are not kept"
    return ""
