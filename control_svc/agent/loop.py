"""The agent loop of runs and responses: call the model, execute hosted tools, repeat.

It ends when the model answers, calls a client function, or reaches a limit. It reads items through
a `Context` and reports to a `TurnRecorder`; it accesses no rows and no API events.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from control_svc.agent.drafts import Draft, DraftKind, TurnDraft
from control_svc.agent.file_search import next_passage_number
from control_svc.agent.model import (
    NO_USAGE,
    PROMPT_LIMIT,
    HostedCall,
    LoopResult,
    LoopWork,
    Outcome,
    TurnResult,
)
from control_svc.agent.recorder import TurnRecorder
from control_svc.agent.tool_span import result_attributes, tool_attributes, tool_name
from control_svc.agent.turn import ToolSet, TurnCancelled, TurnReader, tokens_left, turn_request
from control_svc.base.ids import IdSource
from control_svc.db.transaction import Clock
from control_svc.inference.turns import FinishReason, TurnClient, TurnRequest
from control_svc.items.model import Content, FileSearchCall, Item, ItemStatus, McpApprovalRequest
from svc_kit.errors import ContextLengthExceeded, FeatureUnsupported
from svc_kit.tracing.span import current_span, running_span

MAX_TURNS: Final = 64
"""Maximum number of turns; stops a model that calls hosted tools endlessly."""


@dataclass(frozen=True)
class AgentLoop:
    """Runs the turns of runs and responses. Holds no state of a single run."""

    turns: TurnClient
    ids: IdSource
    clock: Clock

    async def run(
        self, work: LoopWork, recorder: TurnRecorder, cancelled: asyncio.Event
    ) -> LoopResult:
        """Run until the end, or until `cancelled` is set.

        Raises LeaseLost, permanent errors, and retryable errors; after the latter, the next attempt
        continues from the recorded progress.
        """
        return await _Attempt(self, work, recorder, cancelled).run()


class _Attempt:
    """One attempt to continue a run or response from its progress to its end."""

    def __init__(
        self, loop: AgentLoop, work: LoopWork, recorder: TurnRecorder, cancelled: asyncio.Event
    ) -> None:
        self._loop = loop
        self._work = work
        self._recorder = recorder
        self._cancelled = cancelled
        self._tools = ToolSet(work.settings, work.hosted)
        self._items: list[Item] = []

    async def run(self) -> LoopResult:
        """Run turns and hosted calls until the end."""
        self._items = await self._work.context.items()
        progress = self._work.progress
        try:
            await self._execute(progress.open_calls, is_resumed=True)
            await self._execute(progress.approved_calls, is_resumed=False)
            while not progress.work.awaits_client:
                if (limit := self._limit_reached()) is not None:
                    return LoopResult(outcome=limit)
                await self._prepare()
                turn, outcome = await self._run_turn()
                calls = [item for item in turn.items if item.status is ItemStatus.IN_PROGRESS]
                if outcome is not None and not calls:
                    return LoopResult(outcome=outcome, turn=turn)
                await self._commit(turn, awaits_client=outcome is Outcome.ACTION_REQUIRED)
                await self._execute(calls, is_resumed=False)
        except TurnCancelled:
            return LoopResult(outcome=Outcome.CANCELLED)
        return LoopResult(outcome=Outcome.ACTION_REQUIRED)

    def _limit_reached(self) -> Outcome | None:
        """The limit that forbids another turn; a turn that is open is always completed."""
        progress = self._work.progress
        if progress.is_in_turn:
            return None
        if progress.work.num_turns >= MAX_TURNS:
            return Outcome.MAX_TURNS
        if tokens_left(self._work.settings, progress) == 0:
            return Outcome.MAX_COMPLETION_TOKENS
        return None

    # ---- turns

    async def _prepare(self) -> None:
        """Select the items of the next turn. An open turn keeps its items."""
        work = self._work
        if not work.progress.is_in_turn:
            self._items = await work.context.before_turn(self._request(), self._items)

    async def _run_turn(self) -> tuple[TurnResult, Outcome | None]:
        """Run the next turn. Its outcome is None if only hosted calls follow."""
        try:
            return await self._fitting_turn()
        except ContextLengthExceeded as error:
            if error.field == PROMPT_LIMIT:
                return self._empty_turn(), Outcome.MAX_PROMPT_TOKENS
            raise

    async def _fitting_turn(self) -> tuple[TurnResult, Outcome | None]:
        """Run the next turn, with fewer items if the prompt exceeds the model's context or the
        object's own limit. Items are removed at most once for each of the two.
        """
        limits: set[str] = set()
        while True:
            try:
                return await self._attempt_turn()
            except ContextLengthExceeded as error:
                if error.field in limits or not await self._shorten(error):
                    raise
                limits.add(error.field)

    async def _shorten(self, error: ContextLengthExceeded) -> bool:
        """Remove items from the prompt; return False if none can be removed or the turn started."""
        work = self._work
        if work.progress.token_ids:
            return False
        shorter = await work.context.shortened(self._request(), self._items, error)
        if shorter is not None:
            self._items = shorter
        return shorter is not None

    async def _attempt_turn(self) -> tuple[TurnResult, Outcome | None]:
        loop, progress = self._loop, self._work.progress
        if progress.drafts and not progress.token_ids:
            raise FeatureUnsupported(feature="'resume' with an engine in text mode")
        draft = TurnDraft(progress.drafts, self._tools.targets, loop.ids.new, loop.clock)
        turn = TurnReader(progress.work.num_turns, draft, self._recorder, self._cancelled)
        try:
            reason = await turn.run(loop.turns.run(self._request()), self._prompt_limit())
        except TurnCancelled:
            return self._turn_result(turn, is_complete=False), Outcome.CANCELLED
        is_complete = reason is not FinishReason.LENGTH
        outcome = self._outcome(draft.drafts) if is_complete else Outcome.MAX_COMPLETION_TOKENS
        return self._turn_result(turn, is_complete=is_complete), outcome

    def _request(self) -> TurnRequest:
        """The request for the next turn, or for the rest of the open one."""
        work = self._work
        return turn_request(work.settings, work.progress, self._tools, self._items)

    def _prompt_limit(self) -> int | None:
        limit, progress = self._work.settings.limits.prompt_tokens, self._work.progress
        if limit is None or progress.token_ids:
            return None
        return max(0, limit - progress.work.usage.prompt_tokens)

    def _outcome(self, drafts: Sequence[Draft]) -> Outcome | None:
        """The outcome of a turn that the model finished."""
        kinds = {draft.kind for draft in drafts}
        if kinds & {DraftKind.FUNCTION, DraftKind.CUSTOM}:
            return Outcome.ACTION_REQUIRED
        if DraftKind.HOSTED not in kinds:
            return Outcome.ANSWERED
        intents = [self._intent(draft) for draft in drafts if draft.kind is DraftKind.HOSTED]
        if any(isinstance(intent, McpApprovalRequest) for intent in intents):
            return Outcome.ACTION_REQUIRED
        return None

    def _turn_result(self, turn: TurnReader, *, is_complete: bool) -> TurnResult:
        drafts = turn.draft.drafts
        return TurnResult(
            number=self._work.progress.work.num_turns,
            items=tuple(self._item(draft, turn_is_complete=is_complete) for draft in drafts),
            usage=turn.usage or self._recorder.usage,
            num_hosted_calls=sum(draft.kind is DraftKind.HOSTED for draft in drafts),
        )

    def _empty_turn(self) -> TurnResult:
        """The result of a turn that was refused before it started."""
        return TurnResult(number=self._work.progress.work.num_turns, items=(), usage=NO_USAGE)

    def _item(self, draft: Draft, *, turn_is_complete: bool) -> Item:
        """The item of a draft. Calls of an interrupted turn are not executed."""
        is_complete = turn_is_complete or draft.is_done or draft.is_whole_call
        item = draft.item(ItemStatus.COMPLETED if is_complete else ItemStatus.INCOMPLETE)
        item = replace(item, origin=self._work.settings.label)
        if draft.kind is not DraftKind.HOSTED:
            return item
        intent = self._intent(draft)
        if not self._tools.hosted[draft.name].handles(intent):
            return item.with_content(intent, item.status)
        status = ItemStatus.IN_PROGRESS if turn_is_complete else ItemStatus.INCOMPLETE
        return item.with_content(intent, status)

    def _intent(self, draft: Draft) -> Content:
        call = HostedCall(draft.call_id, draft.name, draft.text)
        return self._tools.hosted[draft.name].intent(call)

    # ---- after a turn

    async def _commit(self, turn: TurnResult, *, awaits_client: bool) -> None:
        await self._recorder.turn_ended(turn, awaits_client=awaits_client)
        self._work.progress.add_turn(turn, awaits_client=awaits_client)
        self._items += turn.items

    async def _execute(self, calls: Sequence[Item], *, is_resumed: bool) -> None:
        """Execute hosted calls one after the other. Raises TurnCancelled before the next one."""
        for call in calls:
            if self._cancelled.is_set():
                raise TurnCancelled
            result = await self._result(call, is_resumed=is_resumed)
            if isinstance(result, FileSearchCall):
                result = self._numbered(result)
            ended = call.with_content(result)
            await self._recorder.call_ended(ended)
            self._items = [ended if item.id == call.id else item for item in self._items]

    def _numbered(self, search: FileSearchCall) -> FileSearchCall:
        """The search with numbers for its passages that no earlier passage has."""
        progress = self._work.progress
        first = max(next_passage_number(self._items), progress.num_passages)
        progress.num_passages = first + len(search.results)
        return replace(search, first=first)

    async def _result(self, call: Item, *, is_resumed: bool) -> Content:
        tool = next((tool for tool in self._work.hosted if tool.handles(call.content)), None)
        if tool is None:
            raise FeatureUnsupported(feature=f"the tool of the {call.kind}, which was removed")
        if is_resumed and not tool.is_repeatable:
            return tool.abandon(call)
        await self._recorder.call_started(call)
        with running_span(current_span().child(f"execute_tool {tool_name(call)}")) as span:
            span.set(tool_attributes(call))
            result = await tool.run(self._work.settings.project, call)
            if span.is_recording:
                span.set(result_attributes(result, with_content=span.records_content))
            return result
