"""SQL of batches and batch lines."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, astuple
from datetime import datetime
from typing import Any, Final, NamedTuple

import orjson
import sqlalchemy as sa
from sqlalchemy.sql import ColumnElement

from control_svc.base.ids import BATCH
from control_svc.base.object_queries import ObjectQueries
from control_svc.batches.lines import EndedLine, LineResult, PendingLine
from control_svc.batches.model import (
    FINAL_STATES,
    NO_TOKENS,
    Batch,
    BatchEndpoint,
    BatchState,
    LineCounts,
    LineProblem,
    LineState,
    TokenUsage,
)
from control_svc.batches.tables import BatchLineRow, BatchRow
from control_svc.db.cleanup import ROWS_AT_ONCE, Deleted
from control_svc.db.tables import read_row, row_values
from control_svc.db.transaction import CrossProjectTransaction, Queries
from control_svc.jobs.model import DEAD_KEPT_FOR, JobState
from control_svc.jobs.queries import JobRow
from svc_kit.errors import BatchNotFound, DomainError


class ReadLimit(NamedTuple):
    """Limits on the lines that one query returns. A line over `num_bytes` is returned alone."""

    num_lines: int
    num_bytes: int

    def count(self, sizes: Sequence[int]) -> int:
        """Number of leading lines that fit, from their sizes in bytes."""
        total = 0
        for count, size in enumerate(sizes[: self.num_lines]):
            total += size
            if count and total > self.num_bytes:
                return count
        return min(len(sizes), self.num_lines)


READ_LIMIT: Final = ReadLimit(32, 8 << 20)

_TOKENS = ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")


class BatchQueries(ObjectQueries[BatchRow, Batch]):
    table = BatchRow
    prefix = BATCH

    def _not_found(self, object_id: str) -> DomainError:
        return BatchNotFound(batch=object_id)

    def _values(self, value: Batch) -> dict[str, Any]:
        return {
            **row_values(BatchRow, value),
            **row_values(BatchRow, value.counts),
            **row_values(BatchRow, value.usage),
            "attached": orjson.dumps(dict(value.metadata)),
            "problems": orjson.dumps([astuple(problem) for problem in value.problems]),
        }

    def _object(self, row: BatchRow) -> Batch:
        return read_row(
            Batch,
            row,
            endpoint=BatchEndpoint(row.endpoint),
            state=BatchState(row.state),
            metadata=orjson.loads(row.attached),
            problems=tuple(LineProblem(*problem) for problem in orjson.loads(row.problems)),
            counts=read_row(LineCounts, row),
            usage=read_row(TokenUsage, row),
        )


_PENDING = (
    BatchLineRow.number,
    BatchLineRow.place,
    BatchLineRow.request,
    BatchLineRow.engine_deaths,
)
_ENDED = (BatchLineRow.number, BatchLineRow.state, BatchLineRow.request, BatchLineRow.result)


class BatchLineQueries(Queries):
    """Queries on batch lines in one transaction, which has locked the batch's job."""

    async def add(self, batch_id: str, lines: Sequence[PendingLine]) -> None:
        """Insert validated lines."""
        rows = [
            {
                "batch_id": batch_id,
                "number": line.number,
                "place": line.sort_key,
                "request": line.request,
                "state": LineState.PENDING.value,
                "engine_deaths": 0,
                **asdict(NO_TOKENS),
            }
            for line in lines
        ]
        await self._insert(BatchLineRow, *rows)

    async def delete(self, batch_id: str, limit: int) -> int:
        """Delete at most `limit` lines of a batch. Returns how many were deleted."""
        numbers = sa.select(BatchLineRow.number).where(*self._in_batch(batch_id)).limit(limit)
        deleted = await self._session.scalars(
            sa.delete(BatchLineRow)
            .where(*self._in_batch(batch_id), BatchLineRow.number.in_(numbers))
            .returning(BatchLineRow.number)
        )
        return len(deleted.all())

    async def list_pending(
        self, batch_id: str, after: PendingLine | None, limit: ReadLimit
    ) -> list[PendingLine]:
        """List the next lines to run, in the order in which they run."""
        position = sa.tuple_(BatchLineRow.place, BatchLineRow.number)
        query = (
            sa.select(*_PENDING)
            .where(*self._in_batch(batch_id), BatchLineRow.state == LineState.PENDING.value)
            .order_by(BatchLineRow.place, BatchLineRow.number)
        )
        if after is not None:
            query = query.where(position > sa.tuple_(after.sort_key, after.number))
        rows = await self._fetch(query, sa.func.length(BatchLineRow.request), limit)
        return [PendingLine(*row) for row in rows]

    async def save_results(self, batch_id: str, results: Sequence[LineResult]) -> None:
        """Store the results of pending lines."""
        connection = await self._session.connection()
        await connection.execute(
            sa.update(BatchLineRow.__table__)  # type: ignore[arg-type]  # typed for any selectable
            .where(*self._in_batch(batch_id), BatchLineRow.number == sa.bindparam("line"))
            .values({name: sa.bindparam(f"new_{name}") for name in ("state", "result", *_TOKENS)}),
            [
                {
                    "line": result.number,
                    "new_state": result.state.value,
                    "new_result": result.text,
                    **{f"new_{name}": value for name, value in asdict(result.usage).items()},
                }
                for result in results
            ],
        )

    async def filter_pending(self, batch_id: str, numbers: Collection[int]) -> set[int]:
        pending = await self._session.scalars(
            sa.select(BatchLineRow.number).where(
                *self._in_batch(batch_id),
                BatchLineRow.number.in_(numbers),
                BatchLineRow.state == LineState.PENDING.value,
            )
        )
        return set(pending)

    async def set_engine_deaths(self, batch_id: str, deaths: Mapping[int, int]) -> None:
        """Set how many engines died while they ran a line, by line number."""
        connection = await self._session.connection()
        await connection.execute(
            sa.update(BatchLineRow.__table__)  # type: ignore[arg-type]  # typed for any selectable
            .where(*self._in_batch(batch_id), BatchLineRow.number == sa.bindparam("line"))
            .values(engine_deaths=sa.bindparam("deaths")),
            [{"line": line, "deaths": count} for line, count in deaths.items()],
        )

    async def close(self, batch_id: str, state: LineState) -> None:
        """Set the final state of the pending lines."""
        await self._session.execute(
            sa.update(BatchLineRow)
            .where(*self._in_batch(batch_id), BatchLineRow.state == LineState.PENDING.value)
            .values(state=state.value)
        )

    async def reopen(self, batch_id: str) -> int:
        """Make abandoned lines pending again. Returns how many there were."""
        reopened = await self._session.scalars(
            sa.update(BatchLineRow)
            .where(*self._in_batch(batch_id), BatchLineRow.state == LineState.ABANDONED.value)
            .values(state=LineState.PENDING.value)
            .returning(BatchLineRow.number)
        )
        return len(reopened.all())

    async def list_ended(
        self, batch_id: str, *, completed: bool, after: int, limit: ReadLimit
    ) -> list[EndedLine]:
        """List the next lines that completed, or that did not, in the order of the file."""
        is_completed = BatchLineRow.state == LineState.COMPLETED.value
        query = (
            sa.select(*_ENDED)
            .where(*self._in_batch(batch_id), BatchLineRow.number > after)
            .where(is_completed if completed else ~is_completed)
            .order_by(BatchLineRow.number)
        )
        size = sa.func.length(BatchLineRow.request) + sa.func.coalesce(
            sa.func.length(BatchLineRow.result), 0
        )
        return [
            EndedLine(number, LineState(state), request, result)
            for number, state, request, result in await self._fetch(query, size, limit)
        ]

    async def _fetch(
        self, query: sa.Select[*tuple[Any, ...]], size: ColumnElement[int], limit: ReadLimit
    ) -> Sequence[sa.Row[*tuple[Any, ...]]]:
        """Fetch the first rows of a query that fit the limit. Reads the sizes first."""
        sizes = await self._session.scalars(
            query.with_only_columns(size, maintain_column_froms=True).limit(limit.num_lines)
        )
        return (await self._session.execute(query.limit(limit.count(sizes.all())))).all()

    def _in_batch(self, batch_id: str) -> tuple[ColumnElement[bool], ...]:
        return (self._mine(BatchLineRow), BatchLineRow.batch_id == batch_id)


async def requeue_late_jobs(
    tx: CrossProjectTransaction, now: datetime, kind: str, closing_kind: str
) -> Sequence[str]:
    """Change the kind of queued jobs whose batch is past its deadline, and return their ids."""
    late = sa.select(BatchRow.project, BatchRow.id).where(
        BatchRow.state.in_([BatchState.VALIDATING.value, BatchState.IN_PROGRESS.value]),
        BatchRow.expires_at <= now,
    )
    queued = (
        sa.select(JobRow.project, JobRow.id)
        .where(
            JobRow.state == JobState.QUEUED,
            JobRow.kind == kind,
            sa.tuple_(JobRow.project, JobRow.subject).in_(late),
        )
        .with_for_update(skip_locked=True)
    )
    requeued = await tx.session.scalars(
        sa.update(JobRow)
        .where(sa.tuple_(JobRow.project, JobRow.id).in_(queued))
        .values(kind=closing_kind, run_after=now)
        .returning(JobRow.id)
    )
    return requeued.all()


async def delete_ended_lines(
    tx: CrossProjectTransaction, now: datetime, limit: int = ROWS_AT_ONCE
) -> Deleted:
    """Delete lines of batches that have ended. A step of the sweeper.

    Lines of a batch that failed without output files are kept as long as its dead job, because
    retrying that job needs them.
    """
    line = sa.tuple_(BatchLineRow.project, BatchLineRow.batch_id, BatchLineRow.number)
    some = (
        sa.select(BatchLineRow.project, BatchLineRow.batch_id, BatchLineRow.number)
        .join(
            BatchRow,
            (BatchRow.project == BatchLineRow.project) & (BatchRow.id == BatchLineRow.batch_id),
        )
        .where(
            BatchRow.state.in_([state.value for state in FINAL_STATES]),
            sa.or_(
                BatchRow.state != BatchState.FAILED.value,
                BatchRow.output_file_id.is_not(None),
                BatchRow.error_file_id.is_not(None),
                BatchRow.failed_at < now - DEAD_KEPT_FOR,
            ),
        )
        .limit(limit)
        .with_for_update(skip_locked=True, of=BatchLineRow)
        .cte()  # evaluated once, see `delete_some`
    )
    deleted = await tx.session.scalars(
        sa.delete(BatchLineRow).where(line.in_(sa.select(some))).returning(BatchLineRow.number)
    )
    return Deleted(len(deleted.all()))
