"""A model that says what it is told to: the port of turns without a network, a token at a time.

What it says depends on the request alone, so a turn that is run again says the same, and one that
is resumed goes on where it was, as with the real service.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from control_svc.inference.turns import (
    Delta,
    Done,
    Finished,
    FinishReason,
    Started,
    ToolCallDelta,
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
    """What a turn says: a delta for each token, without its id."""

    deltas: Sequence[Delta]
    reason: FinishReason = FinishReason.STOP
    prompt_tokens: int = 10
    cached_tokens: int = 0

    @property
    def token_ids(self) -> list[int]:
        """The ids of its tokens."""
        return [FIRST_TOKEN_ID + index for index in range(len(self.deltas))]

    def usage(self, num_tokens: int) -> TurnUsage:
        """The tokens of a turn that ended after so many."""
        said = self.deltas[:num_tokens]
        reasoning = sum(bool(delta.reasoning) for delta in said)
        return TurnUsage(self.prompt_tokens, self.cached_tokens, num_tokens, reasoning)


def says(text: str, *, thinks: str = "") -> Script:
    """A thought and an answer, a token for each word."""
    thought = [Delta(reasoning=word) for word in _words(thinks)]
    return Script([*thought, *(Delta(content=word) for word in _words(text))])


def calls(name: str, arguments: str, *, call_id: str = "call_1", text: str = "") -> Script:
    """A text and a tool call, whose arguments come in pieces."""
    size = max(1, len(arguments) // 3)
    pieces = [arguments[first : first + size] for first in range(0, len(arguments), size)]
    first = Delta(calls=(ToolCallDelta(0, call_id, name, ""),))
    rest = [Delta(calls=(ToolCallDelta(0, "", "", piece),)) for piece in pieces]
    said = [Delta(content=word) for word in _words(text)]
    return Script([*said, first, *rest], FinishReason.TOOL_CALLS)


def in_order(*scripts: Script) -> Callable[[TurnRequest], Script]:
    """A script for each answer of a conversation: the first while there is none, and so on."""

    def choose(request: TurnRequest) -> Script:
        answers = sum(message.role is TurnRole.ASSISTANT for message in request.messages)
        return scripts[min(answers, len(scripts) - 1)]

    return choose


async def _at_once(_request: TurnRequest, _num_tokens: int) -> None:
    """No hold."""


@dataclass
class ScriptedTurns:
    """A `TurnClient` that follows scripts."""

    choose: Callable[[TurnRequest], Script]
    troubles: list[int | DomainError] = field(default_factory=list)
    """What befalls the next calls, one each: the engine dies after so many tokens of the call, or
    the call is refused with an error. Calls beyond the list go well."""
    before_token: Callable[[TurnRequest, int], Awaitable[None]] = _at_once
    """Awaited before each token, with the number of those before it in the turn."""
    requests: list[TurnRequest] = field(default_factory=list)
    """All calls."""
    left: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once a call has ended, however it did."""

    async def run(self, request: TurnRequest) -> AsyncGenerator[TurnEvent, None]:
        """The events of a turn."""
        self.requests.append(request)
        script = self.choose(request)
        resumed = len(request.token_ids)
        assert list(request.token_ids) == script.token_ids[:resumed]
        trouble = self.troubles.pop(0) if self.troubles else None
        if isinstance(trouble, DomainError):
            raise trouble
        try:
            async for event in self._events(request, script, trouble):
                yield event
        finally:
            self.left.set()

    async def _events(
        self, request: TurnRequest, script: Script, dies_after: int | None
    ) -> AsyncGenerator[TurnEvent, None]:
        yield Started(request.model or "scripted", script.prompt_tokens, script.cached_tokens)
        limit = len(script.deltas) if request.max_tokens is None else request.max_tokens
        end = min(len(script.deltas), limit)
        resumed = len(request.token_ids)
        for index in range(resumed, end):
            if dies_after is not None and index - resumed >= dies_after:
                raise EngineDied(EngineRestarting(phase="running"))
            await self.before_token(request, index)
            said = script.deltas[index]
            yield Delta(said.content, said.reasoning, said.calls, (script.token_ids[index],))
        is_whole = end == len(script.deltas)
        yield Finished(script.reason if is_whole else FinishReason.LENGTH)
        yield Done(script.usage(end))


def _words(text: str) -> list[str]:
    """The words of a text, each but the first with the space before it."""
    first, *others = text.split(" ")
    return [first, *(f" {word}" for word in others)] if text else []
