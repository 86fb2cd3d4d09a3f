"""One turn, read from the model: its deltas become items, and the narrator hears of them."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

from control_svc.domain.agent import PROMPT_LIMIT, Narrator
from control_svc.domain.drafts import TurnDraft
from control_svc.domain.turns import (
    Delta,
    Done,
    Finished,
    FinishReason,
    Started,
    TurnEvent,
    TurnUsage,
)
from svc_kit.errors import ContextLengthExceeded, UpstreamUnavailable


class Stopped(Exception):
    """The work was cancelled."""


class RunningTurn:
    """A turn, from its start or from where it was broken off."""

    def __init__(
        self,
        number: int,
        draft: TurnDraft,
        narrator: Narrator,
        cancelled: asyncio.Event,
        num_resumed: int,
    ) -> None:
        """`num_resumed` tokens were sampled before."""
        self.draft = draft
        self.usage: TurnUsage | None = None
        """Once the model has told it."""
        self._number = number
        self._narrator = narrator
        self._cancelled = cancelled
        self._num_tokens = num_resumed
        self._started = Started("", 0, 0)
        self._reason: FinishReason | None = None
        self._waiting: asyncio.Timeout | None = None

    @property
    def usage_so_far(self) -> TurnUsage:
        """What a turn has cost that is broken off."""
        started = self._started
        return TurnUsage(started.prompt_tokens, started.cached_tokens, self._num_tokens, 0)

    async def run(
        self, events: AsyncGenerator[TurnEvent, None], prompt_limit: int | None
    ) -> FinishReason:
        """Read the turn to its end.

        Raises Stopped once the work is cancelled, ContextLengthExceeded for a prompt beyond the
        limit, and what the model's service answers.
        """
        watching = asyncio.create_task(self._watch())
        try:
            async with aclosing(events):
                while (event := await self._next(events)) is not None:
                    await self._take(event, prompt_limit)
        finally:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching
        if self._reason is None:
            raise UpstreamUnavailable(service="inference")
        if self._reason is not FinishReason.LENGTH:
            await self._narrator.tell(self._number, list(self.draft.close()), ())
        return self._reason

    async def _watch(self) -> None:
        """Break off the wait for the next event, and nothing else: what is being kept is kept."""
        await self._cancelled.wait()
        if self._waiting is not None:
            self._waiting.reschedule(0)

    async def _next(self, events: AsyncGenerator[TurnEvent, None]) -> TurnEvent | None:
        if self._cancelled.is_set():
            raise Stopped
        try:
            async with asyncio.timeout(None) as self._waiting:
                return await anext(events, None)
        except TimeoutError:
            raise Stopped from None
        finally:
            self._waiting = None

    async def _take(self, event: TurnEvent, prompt_limit: int | None) -> None:
        match event:
            case Started():
                self._started = event
                _check_prompt(event, prompt_limit)
                await self._narrator.turn_started(self._number, event)
            case Delta():
                self._num_tokens += len(event.token_ids)
                said = list(self.draft.take(event))
                await self._narrator.tell(self._number, said, event.token_ids)
            case Finished(reason=reason):
                self._reason = reason
            case Done(usage=usage):
                self.usage = usage


def _check_prompt(started: Started, limit: int | None) -> None:
    if limit is not None and started.prompt_tokens > limit:
        raise ContextLengthExceeded(
            field=PROMPT_LIMIT, prompt_tokens=started.prompt_tokens, context_tokens=limit
        )
