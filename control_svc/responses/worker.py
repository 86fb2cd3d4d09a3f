"""The job handler of responses: reads the context, prepares the agent loop and stores the end."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from control_svc.agent.model import (
    LoopLimits,
    LoopResult,
    LoopSettings,
    LoopWork,
    Outcome,
    Progress,
)
from control_svc.agent.recorder import EventSink, TransactionSink, read_open_turn
from control_svc.agent.worker import LoopWorker
from control_svc.db.transaction import Clock, Transaction
from control_svc.items.model import FileSearchCall, Item, ItemFilter, ItemStatus
from control_svc.items.queries import TimelineQueries
from control_svc.jobs.handler import JobContext
from control_svc.jobs.model import Claim, JobPriority
from control_svc.responses.compaction import Compactor
from control_svc.responses.content_cipher import ContentCipher
from control_svc.responses.context import ResponseContext, prompt_items, read_history
from control_svc.responses.events import restore_drafts
from control_svc.responses.model import IncompleteReason, Response, ResponseError, ResponseState
from control_svc.responses.queries import ResponseQueries
from control_svc.responses.recorder import FinishResponse, ResponseRecorder
from control_svc.responses.tools import NO_ITEMS, PreparedItems, ResponseTools
from control_svc.tools.model import ResponseFormat, ToolChoice
from svc_kit.errors import (
    ContextLengthExceeded,
    DomainError,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ResponseNotFound,
)

KIND: Final = "response"
"""Job kind."""


@dataclass(frozen=True)
class StartState:
    items: Sequence[Item]
    """The history, followed by `own`."""
    own: Sequence[Item]
    """Input items and output items of the response."""
    keep_for: str = ""
    """As in `LoopSettings`; empty for a response that is not stored."""
    priority: JobPriority = JobPriority.INTERACTIVE


@dataclass(frozen=True)
class ResponseWorker(LoopWorker[ResponseRecorder]):
    """Handler of the jobs that run stored responses; `execute` runs the others too."""

    kind = KIND
    compactor: Compactor
    cipher: ContentCipher
    tools: ResponseTools
    clock: Clock

    async def start(self, claim: Claim, context: JobContext) -> bool:
        """Whether the response has not ended and was not deleted."""
        found = await self.transactions.of(claim.project).read(
            lambda tx: _find_running(tx, claim.subject, locked=False)
        )
        return found is not None

    async def restore(
        self, tx: Transaction, object_id: str, sink: EventSink, *, locked: bool = False
    ) -> ResponseRecorder | None:
        response = await _find_running(tx, object_id, locked=locked)
        if response is None:
            return None
        return await read_recorder(tx, response, sink, self.cipher)

    async def prepare(
        self, recorder: ResponseRecorder, start: StartState | None = None
    ) -> LoopWork:
        """Prepare the MCP tools and the loop. `start` is None for a stored response."""
        if start is None:
            start = await self.transactions.of(recorder.project).read(
                lambda tx: _read_start(tx, recorder.response)
            )
        work = self.work(recorder, start)
        known = [*start.items, *await work.context.items()]  # summaries may contain MCP items
        new = await self.tools.prepare(recorder, known, start.own)
        return self.work(recorder, start, new) if any(new) else work

    def work(
        self, recorder: ResponseRecorder, start: StartState, new: PreparedItems = NO_ITEMS
    ) -> LoopWork:
        """Decrypt the items and list the tools. `new` are items that were just added."""
        project, response = recorder.project, recorder.response
        items = prompt_items(project, response, start.items, self.cipher)
        new_items = [*new.tool_lists, *new.calls]
        own_ids = {item.id for item in (*start.own, *new_items)}
        known = [*start.items, *items, *new.tool_lists]
        return LoopWork(
            settings=loop_settings(project, response, start),
            context=ResponseContext(
                [*items, *new_items], own_ids, recorder, self.counter, self.compactor
            ),
            hosted=self.tools.hosted(response.settings.tools, known),
            progress=_progress(recorder, new.calls),
        )

    async def end(self, recorder: ResponseRecorder, result: LoopResult) -> None:
        """End the response, unless it was cancelled, which has ended it."""
        now = self.clock()
        match result.outcome:
            case Outcome.CANCELLED:
                return
            case Outcome.ANSWERED | Outcome.ACTION_REQUIRED:
                await recorder.end(result.turn, lambda each, usage: each.complete(usage, now))
            case _:
                reason = IncompleteReason.MAX_OUTPUT_TOKENS
                await recorder.end(result.turn, lambda each, usage: each.reach_limit(usage, reason))

    async def fail(self, recorder: ResponseRecorder, error: DomainError) -> None:
        """End a response with an error and its output so far."""
        response_error = _to_response_error(recorder.response, error)
        await recorder.end(
            recorder.interrupted_turn(),
            lambda each, usage: each.fail(usage if any(usage) else None, response_error),
        )


async def _find_running(tx: Transaction, response_id: str, *, locked: bool) -> Response | None:
    """Return the response of a job; None if it has ended or was deleted."""
    queries = ResponseQueries(tx)
    try:
        response = await (queries.lock(response_id) if locked else queries.get(response_id))
    except ResponseNotFound:
        return None
    return None if response.state.is_final else response


async def read_recorder(
    tx: Transaction, response: Response, sink: EventSink, cipher: ContentCipher
) -> ResponseRecorder:
    """Return a recorder that continues with the recorded output of a response."""
    created = await TimelineQueries(tx).read(
        response.id, item_filter=ItemFilter(origin=response.id)
    )
    output = [placed.item for placed in created]
    turn = response.work.num_turns
    open_turn = await read_open_turn(tx, response.id, turn, restore_drafts)
    return ResponseRecorder(tx.project, response, output, sink, cipher, open_turn)


async def end_response(
    tx: Transaction, response: Response, cipher: ContentCipher, finish: FinishResponse
) -> None:
    """End a locked response with its output so far. Its job must be locked."""
    sink = TransactionSink(tx, response.id)
    recorder = await read_recorder(tx, response, sink, cipher)
    await recorder.end(recorder.interrupted_turn(), finish)


async def _read_start(tx: Transaction, response: Response) -> StartState:
    """Read all items, and those of a stored response itself."""
    history = await read_history(tx, response.id)
    own = await TimelineQueries(tx).read(response.id)
    return StartState(history.items, [placed.item for placed in own], history.keep_for)


def _to_response_error(response: Response, error: DomainError) -> ResponseError:
    is_refusal = (
        response.state is ResponseState.QUEUED
        and not response.settings.background
        and isinstance(error, InvalidArgument | NotFound | FailedPrecondition)
    )
    if isinstance(error, ContextLengthExceeded):
        code = "context_length_exceeded"
    elif isinstance(error, InvalidArgument):
        code = "invalid_prompt"
    else:
        code = "server_error"
    return ResponseError(
        code=code,
        message=error.message,
        param=error.field or "",
        reason=error.reason,
        metadata=error.metadata,
        is_refusal=is_refusal,
    )


def loop_settings(project: str, response: Response, start: StartState) -> LoopSettings:
    """Return the settings of all turns of a response."""
    settings = response.settings
    return LoopSettings(
        project=project,
        label=response.id,
        model=response.model,
        instructions=settings.instructions or "",
        tools=settings.tools,
        choice=settings.choice or ToolChoice(),
        parallel_calls=settings.parallel_tool_calls,
        format=settings.format or ResponseFormat(),
        options=settings.options,
        effort=settings.effort,
        seed=response.seed,
        limits=LoopLimits(
            completion_tokens=settings.max_output_tokens, hosted_calls=settings.max_tool_calls
        ),
        priority=start.priority,
        keep_for=start.keep_for,
        item_names={item.id: f"input[{index}]" for index, item in enumerate(start.own)},
    )


def _progress(recorder: ResponseRecorder, approved_calls: Sequence[Item]) -> Progress:
    work, output = recorder.response.work, recorder.output
    searches = [item.content for item in output if isinstance(item.content, FileSearchCall)]
    passages = (search.first + len(search.results) for search in searches)
    return Progress(
        work=work,
        token_ids=list(recorder.open_turn.token_ids),
        held_logprobs=recorder.open_turn.held,
        drafts=list(recorder.open_turn.drafts),
        open_calls=[
            item
            for item in output
            if item.status is ItemStatus.IN_PROGRESS and item not in approved_calls
        ],
        approved_calls=list(approved_calls),
        num_passages=max(passages, default=0),
    )
