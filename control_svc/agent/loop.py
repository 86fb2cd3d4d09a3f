"""The agent loop of runs and responses: call the model, carry out hosted tools, repeat.

It ends when the model answers, calls a function of the client, or meets a limit. It reads items
through a `Context` and reports through a `Recorder`; it knows no rows and no API events.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from control_svc.agent.drafts import Draft, DraftKind, TurnDraft
from control_svc.agent.file_search import first_number
from control_svc.agent.model import (
    NO_USAGE,
    PROMPT_LIMIT,
    Context,
    HostedCall,
    HostedTool,
    LoopResult,
    LoopSettings,
    Outcome,
    Progress,
    Recorder,
    TurnResult,
)
from control_svc.agent.turn import ToolSet, TurnCancelled, TurnReader, tokens_left, turn_request
from control_svc.base.ids import IdSource
from control_svc.inference.turns import FinishReason, TurnClient
from control_svc.items.model import Content, FileSearchCall, Item, ItemStatus, McpApprovalRequest
from svc_kit.errors import ContextLengthExceeded, FeatureUnsupported

MAX_TURNS: Final = 64
"""The most turns of one object: a model that searches for ever ends there."""


class AgentLoop:
    """Runs the turns of objects, any number of them at a time."""

    def __init__(self, turns: TurnClient, ids: IdSource, clock: Callable[[], datetime]) -> None:
        self._turns = turns
        self._ids = ids
        self._clock = clock

    async def run(
        self,
        settings: LoopSettings,
        context: Context,
        hosted: Sequence[HostedTool],
        recorder: Recorder,
        progress: Progress,
        cancelled: asyncio.Event,
    ) -> LoopResult:
        """Run until the end, or until `cancelled` is set. Raises LeaseLost, errors that another
        attempt would repeat, and retryable errors; the next attempt continues from the recorded
        progress.
        """
        work = _Work(settings, context, hosted, recorder, progress, cancelled, self._turns)
        return await _Attempt(work, self._ids, self._clock).run()


@dataclass(frozen=True)
class _Work:
    """One object, and what it is worked on with."""

    settings: LoopSettings
    context: Context
    hosted: Sequence[HostedTool]
    recorder: Recorder
    progress: Progress
    cancelled: asyncio.Event
    turns: TurnClient


class _Attempt:
    """One object, from its progress to its end."""

    def __init__(self, work: _Work, ids: IdSource, clock: Callable[[], datetime]) -> None:
        self._work = work
        self._ids = ids
        self._clock = clock
        self._toolbox = ToolSet(work.settings.tools, work.hosted)
        self._items: list[Item] = []

    async def run(self) -> LoopResult:
        """Until the end."""
        self._items = await self._work.context.items()
        progress = self._work.progress
        try:
            await self._carry_out(progress.open_calls, is_resumed=True)
            await self._carry_out(progress.allowed_calls, is_resumed=False)
            while not progress.awaits_client:
                if (limit := self._limit()) is not None:
                    return LoopResult(outcome=limit)
                await self._prepare()
                turn, outcome = await self._turn()
                calls = [item for item in turn.items if item.status is ItemStatus.IN_PROGRESS]
                if outcome is not None and not calls:
                    return LoopResult(outcome=outcome, turn=turn)
                await self._keep(turn, awaits_client=outcome is Outcome.ACTION_REQUIRED)
                await self._carry_out(calls, is_resumed=False)
        except TurnCancelled:
            return LoopResult(outcome=Outcome.CANCELLED)
        return LoopResult(outcome=Outcome.ACTION_REQUIRED)

    def _limit(self) -> Outcome | None:
        """What leaves no room for another turn; one that is open is always ended."""
        progress = self._work.progress
        if progress.is_in_turn:
            return None
        if progress.num_turns >= MAX_TURNS:
            return Outcome.MAX_TURNS
        if tokens_left(self._work.settings, progress) == 0:
            return Outcome.MAX_COMPLETION_TOKENS
        return None

    # ---- turns

    async def _prepare(self) -> None:
        """Select the items of the next turn; an open turn continues with its own."""
        work = self._work
        if not work.progress.is_in_turn:
            request = turn_request(work.settings, work.progress, self._toolbox, self._items)
            self._items = await work.context.before_turn(request, self._items)

    async def _turn(self) -> tuple[TurnResult, Outcome | None]:
        """The next turn; its outcome is None where only hosted calls follow."""
        try:
            return await self._fitting_turn()
        except ContextLengthExceeded as error:
            if error.field == PROMPT_LIMIT:
                return self._nothing(), Outcome.MAX_PROMPT_TOKENS
            raise

    async def _fitting_turn(self) -> tuple[TurnResult, Outcome | None]:
        """Start the next turn, with fewer items if the prompt is too long: first for the model's
        context, then for the object's own limit.
        """
        limits: set[str] = set()
        while True:
            try:
                return await self._one_turn()
            except ContextLengthExceeded as error:
                if error.field in limits or not await self._shorten(error):
                    raise
                limits.add(error.field)

    async def _shorten(self, error: ContextLengthExceeded) -> bool:
        """Whether fewer items are shown now. What a turn has begun with stays."""
        work = self._work
        if work.progress.token_ids:
            return False
        request = turn_request(work.settings, work.progress, self._toolbox, self._items)
        shorter = await work.context.shortened(request, self._items, error)
        if shorter is not None:
            self._items = shorter
        return shorter is not None

    async def _one_turn(self) -> tuple[TurnResult, Outcome | None]:
        work, progress = self._work, self._work.progress
        draft = TurnDraft(progress.drafts, self._toolbox.callees, self._ids.new, self._clock)
        turn = TurnReader(
            progress.num_turns, draft, work.recorder, work.cancelled, len(progress.token_ids)
        )
        request = turn_request(work.settings, progress, self._toolbox, self._items)
        try:
            reason = await turn.run(work.turns.run(request), self._prompt_limit())
        except TurnCancelled:
            return self._ended(turn, is_whole=False), Outcome.CANCELLED
        is_whole = reason is not FinishReason.LENGTH
        outcome = self._outcome(draft.drafts) if is_whole else Outcome.MAX_COMPLETION_TOKENS
        return self._ended(turn, is_whole=is_whole), outcome

    def _prompt_limit(self) -> int | None:
        most, progress = self._work.settings.limits.prompt_tokens, self._work.progress
        if most is None or progress.token_ids:
            return None
        return max(0, most - progress.usage.prompt_tokens)

    def _outcome(self, drafts: Sequence[Draft]) -> Outcome | None:
        """Of a turn that ended by itself."""
        kinds = {draft.kind for draft in drafts}
        if kinds & {DraftKind.FUNCTION, DraftKind.CUSTOM}:
            return Outcome.ACTION_REQUIRED
        if DraftKind.HOSTED not in kinds:
            return Outcome.ANSWERED
        intents = [self._intent(draft) for draft in drafts if draft.kind is DraftKind.HOSTED]
        if any(isinstance(intent, McpApprovalRequest) for intent in intents):
            return Outcome.ACTION_REQUIRED
        return None

    def _ended(self, turn: TurnReader, *, is_whole: bool) -> TurnResult:
        drafts = turn.draft.drafts
        return TurnResult(
            number=self._work.progress.num_turns,
            items=tuple(self._item(draft, turn_is_whole=is_whole) for draft in drafts),
            usage=turn.usage or turn.usage_so_far,
            num_hosted_calls=sum(draft.kind is DraftKind.HOSTED for draft in drafts),
        )

    def _nothing(self) -> TurnResult:
        """A turn that was not begun."""
        return TurnResult(number=self._work.progress.num_turns, items=(), usage=NO_USAGE)

    def _item(self, draft: Draft, *, turn_is_whole: bool) -> Item:
        """What a draft became. The calls of a turn that was broken off are not carried out."""
        is_whole = turn_is_whole or draft.is_done
        item = draft.item(ItemStatus.COMPLETED if is_whole else ItemStatus.INCOMPLETE)
        if draft.kind is not DraftKind.HOSTED:
            return item
        intent = self._intent(draft)
        if not self._toolbox.hosted[draft.name].runs(intent):
            return item.ended(intent, item.status)
        status = ItemStatus.IN_PROGRESS if turn_is_whole else ItemStatus.INCOMPLETE
        return item.ended(intent, status)

    def _intent(self, draft: Draft) -> Content:
        call = HostedCall(draft.call_id, draft.name, draft.text)
        return self._toolbox.hosted[draft.name].intent(call)

    # ---- what follows a turn

    async def _keep(self, turn: TurnResult, *, awaits_client: bool) -> None:
        await self._work.recorder.turn_ended(turn, awaits_client=awaits_client)
        progress = self._work.progress
        progress.take(turn)
        progress.awaits_client = awaits_client
        self._items += turn.items

    async def _carry_out(self, calls: Sequence[Item], *, is_resumed: bool) -> None:
        """Carry hosted calls out, one after the other. Raises Stopped before the next one."""
        for call in calls:
            if self._work.cancelled.is_set():
                raise TurnCancelled
            result = await self._result(call, is_resumed=is_resumed)
            if isinstance(result, FileSearchCall):
                result = self._numbered(result)
            ended = call.ended(result)
            await self._work.recorder.call_ended(ended)
            self._items = [ended if item.id == call.id else item for item in self._items]

    def _numbered(self, found: FileSearchCall) -> FileSearchCall:
        """A search whose passages have numbers of their own."""
        progress = self._work.progress
        first = max(first_number(self._items), progress.num_passages)
        progress.num_passages = first + len(found.results)
        return replace(found, first=first)

    async def _result(self, call: Item, *, is_resumed: bool) -> Content:
        tool = next((tool for tool in self._work.hosted if tool.runs(call.content)), None)
        if tool is None:
            raise FeatureUnsupported(feature=f"the tool of {call.kind}, which is gone")
        if is_resumed and not tool.is_repeatable:
            return tool.abandoned(call)
        await self._work.recorder.call_started(call)
        return await tool.run(self._work.settings.project, call)
