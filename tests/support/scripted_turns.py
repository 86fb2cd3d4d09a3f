"""A scripted model: a `TurnClient` without a network that produces one token at a time.

The output depends on the request alone, so a repeated turn has the same output and a resumed turn
continues, as with the real service.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from corral.inference.v1.chat_pb2 import ToolCallDelta
from corral.inference.v1.inference_service_pb2 import ChatDelta

from control_svc.inference.turns import (
    FinishReason,
    Started,
    TurnEvent,
    TurnRequest,
    TurnRole,
    TurnUsage,
)
from control_svc.jobs.model import EngineDied
from svc_kit.errors import DomainError, EngineRestarting

FIRST_TOKEN_ID = 1000


@dataclass(frozen=True)
class Script:
    """Output of a turn: a delta for each token, without its id. An engine in text mode has no
    ids."""

    deltas: Sequence[ChatDelta]
    reason: FinishReason = FinishReason.STOP
    prompt_tokens: int = 10
    cached_tokens: int = 0
    ignored: tuple[str, ...] = ()
    has_ids: bool = True

    @property
    def token_ids(self) -> list[int]:
        if not self.has_ids:
            return []
        return [FIRST_TOKEN_ID + index for index in range(len(self.deltas))]

    def held_logprobs(self, num_tokens: int) -> list[bytes]:
        """Those that are held back behind `num_tokens`."""
        held: list[bytes] = []
        for delta in self.deltas[:num_tokens]:
            held += [each.SerializeToString() for each in delta.held_logprobs]
            held = held[max(0, len(held) - delta.num_held) :]
        return held

    def usage(self, num_tokens: int) -> TurnUsage:
        """Usage of a turn that ended after `num_tokens`."""
        reasoning = sum(bool(delta.reasoning) for delta in self.deltas[:num_tokens])
        return TurnUsage(self.prompt_tokens, self.cached_tokens, num_tokens, reasoning)


def text_script(text: str, *, reasoning: str = "") -> Script:
    """Reasoning and an answer; each word is a token."""
    thought = [ChatDelta(reasoning=word) for word in _words(reasoning)]
    return Script([*thought, *(ChatDelta(content=word) for word in _words(text))])


def holding_script(text: str, num_held: int) -> Script:
    """A text in which the log probabilities of that many tokens are always held back."""
    script = text_script(text)
    for number, delta in enumerate(script.deltas):
        delta.held_logprobs.add(chosen={"token_id": number})
        delta.num_held = min(number + 1, num_held)
    return script


def call_script(name: str, arguments: str, *, call_id: str = "call_1", text: str = "") -> Script:
    """A text and a tool call, whose arguments are split into tokens."""
    size = max(1, len(arguments) // 3)
    pieces = [arguments[first : first + size] for first in range(0, len(arguments), size)]
    first = ChatDelta(tool_calls=[ToolCallDelta(id=call_id, name=name)])
    rest = [ChatDelta(tool_calls=[ToolCallDelta(arguments_json=piece)]) for piece in pieces]
    words = [ChatDelta(content=word) for word in _words(text)]
    return Script([*words, first, *rest], FinishReason.TOOL_CALLS)


def in_order(*scripts: Script) -> Callable[[TurnRequest], Script]:
    """Choose the n-th script for a prompt with n answers; the last script is repeated."""

    def choose(request: TurnRequest) -> Script:
        answers = sum(message.role is TurnRole.ASSISTANT for message in request.messages)
        return scripts[min(answers, len(scripts) - 1)]

    return choose


async def _no_wait(_request: TurnRequest, _num_tokens: int) -> None:
    """Return immediately."""


@dataclass
class ScriptedTurns:
    choose: Callable[[TurnRequest], Script]
    failures: list[int | DomainError] = field(default_factory=list)
    """Failures of the next calls: the number of tokens after which the engine dies, or an error
    that is raised at once. Calls beyond the list succeed."""
    before_token: Callable[[TurnRequest, int], Awaitable[None]] = _no_wait
    """Awaited before each token, with its index in the turn."""
    requests: list[TurnRequest] = field(default_factory=list)
    """Requests of all calls."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a call ends."""

    async def run(self, request: TurnRequest) -> AsyncGenerator[TurnEvent, None]:
        self.requests.append(request)
        script = self.choose(request)
        resumed = len(request.token_ids)
        assert list(request.token_ids) == script.token_ids[:resumed]
        assert list(request.held_logprobs) == script.held_logprobs(resumed)
        failure = self.failures.pop(0) if self.failures else None
        if isinstance(failure, DomainError):
            raise failure
        try:
            async for event in self._events(request, script, failure):
                yield event
        finally:
            self.ended.set()

    async def _events(
        self, request: TurnRequest, script: Script, dies_after: int | None
    ) -> AsyncGenerator[TurnEvent, None]:
        model, tokens = request.model or "scripted", (script.prompt_tokens, script.cached_tokens)
        yield Started(model, *tokens, script.ignored)
        limit = len(script.deltas) if request.max_tokens is None else request.max_tokens
        end = min(len(script.deltas), limit)
        resumed = len(request.token_ids)
        for index in range(resumed, end):
            if dies_after is not None and index - resumed >= dies_after:
                raise EngineDied(EngineRestarting(phase="running"))
            await self.before_token(request, index)
            delta = ChatDelta(token_ids=script.token_ids[index : index + 1])
            delta.MergeFrom(script.deltas[index])
            yield delta
        is_complete = end == len(script.deltas)
        yield script.reason if is_complete else FinishReason.LENGTH
        yield script.usage(end)


def _words(text: str) -> list[str]:
    """The words of a text; each but the first begins with a space."""
    first, *others = text.split(" ")
    return [first, *(f" {word}" for word in others)] if text else []
