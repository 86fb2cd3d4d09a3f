"""SQL of batches and their lines."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, astuple
from typing import Any, Final, NamedTuple

import orjson
from sqlalchemy import Row, Select, bindparam, delete, func, insert, select, tuple_, update
from sqlalchemy.sql import ColumnElement

from control_svc.base.ids import BATCH, is_id
from control_svc.base.pagination import Window
from control_svc.batches.lines import EndedLine, LineResult, NewLine, PendingLine
from control_svc.batches.model import (
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
from control_svc.db.transaction import Transaction
from svc_kit.errors import BatchNotFound


class Portion(NamedTuple):
    """The most that is read at once; of lines that are larger than that, one."""

    num_lines: int
    num_bytes: int

    def of(self, sizes: Sequence[int]) -> int:
        """How many of the first lines it holds, by their bytes."""
        total = 0
        for count, size in enumerate(sizes[: self.num_lines]):
            total += size
            if count and total > self.num_bytes:
                return count
        return min(len(sizes), self.num_lines)


READ_AT_ONCE: Final = Portion(32, 8 << 20)


_TOKENS = ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")
_AS_THEY_ARE = (
    "id",
    "input_file_id",
    "window",
    "output_ttl",
    "model",
    "output_file_id",
    "error_file_id",
    "created_at",
    "expires_at",
    "in_progress_at",
    "finalizing_at",
    "completed_at",
    "failed_at",
    "expired_at",
    "cancelling_at",
    "cancelled_at",
)


class BatchQueries:
    """Batches in one transaction."""

    def __init__(self, tx: Transaction) -> None:
        self._session = tx.session

    async def add(self, project: str, batch: Batch) -> None:
        """Keep a new batch."""
        await self._session.execute(insert(BatchRow).values(project=project, **_values(batch)))

    async def get(self, project: str, batch_id: str) -> Batch:
        """Raises BatchNotFound."""
        return await self._get(project, batch_id, locked=False)

    async def lock(self, project: str, batch_id: str) -> Batch:
        """As `get`, with the batch locked until the end of the transaction."""
        return await self._get(project, batch_id, locked=True)

    async def update(self, project: str, batch: Batch) -> None:
        """Keep what has changed of a locked batch."""
        await self._session.execute(
            update(BatchRow)
            .where(BatchRow.project == project, BatchRow.id == batch.id)
            .values(_values(batch))
        )

    async def page(self, project: str, window: Window) -> list[Batch]:
        """The batches of a window, newest first."""
        query = select(BatchRow).where(BatchRow.project == project).order_by(BatchRow.id.desc())
        if window.after:
            query = query.where(BatchRow.id < window.after)
        return [_batch(row) for row in await self._session.scalars(query.limit(window.limit))]

    async def _get(self, project: str, batch_id: str, *, locked: bool) -> Batch:
        if not is_id(batch_id, BATCH):
            # Not asked for: a database may refuse its characters.
            raise BatchNotFound(batch=batch_id)
        row = await self._session.get(BatchRow, (project, batch_id), with_for_update=locked)
        if row is None:
            raise BatchNotFound(batch=batch_id)
        return _batch(row)


_PENDING = (
    BatchLineRow.number,
    BatchLineRow.place,
    BatchLineRow.request,
    BatchLineRow.engine_deaths,
)
_ENDED = (BatchLineRow.number, BatchLineRow.state, BatchLineRow.request, BatchLineRow.result)


class BatchLineQueries:
    """The lines of batches in one transaction, which holds the batch's job."""

    def __init__(self, tx: Transaction) -> None:
        self._session = tx.session

    async def add(self, project: str, batch_id: str, lines: Sequence[NewLine]) -> None:
        """Keep lines that have been checked."""
        await self._session.execute(
            insert(BatchLineRow),
            [
                {
                    "project": project,
                    "batch_id": batch_id,
                    "number": line.number,
                    "place": line.order,
                    "request": line.request,
                    "state": LineState.PENDING.value,
                    "engine_deaths": 0,
                    **asdict(NO_TOKENS),
                }
                for line in lines
            ],
        )

    async def drop(self, project: str, batch_id: str, limit: int) -> int:
        """Forget lines of a batch; how many there were."""
        some = select(BatchLineRow.number).where(*_of(project, batch_id)).limit(limit)
        dropped = await self._session.scalars(
            delete(BatchLineRow)
            .where(*_of(project, batch_id), BatchLineRow.number.in_(some))
            .returning(BatchLineRow.number)
        )
        return len(dropped.all())

    async def pending(
        self, project: str, batch_id: str, after: PendingLine | None, most: Portion
    ) -> list[PendingLine]:
        """The next lines to run, in their order; `after` None: from the start."""
        place = tuple_(BatchLineRow.place, BatchLineRow.number)
        query = (
            select(*_PENDING)
            .where(*_of(project, batch_id), BatchLineRow.state == LineState.PENDING.value)
            .order_by(BatchLineRow.place, BatchLineRow.number)
        )
        if after is not None:
            query = query.where(place > tuple_(after.order, after.number))
        rows = await self._portion(query, func.length(BatchLineRow.request), most)
        return [PendingLine(*row) for row in rows]

    async def end(self, project: str, batch_id: str, results: Sequence[LineResult]) -> None:
        """Keep how pending lines ended."""
        connection = await self._session.connection()
        await connection.execute(
            update(BatchLineRow.__table__)  # type: ignore[arg-type]  # typed for any selectable
            .where(*_of(project, batch_id), BatchLineRow.number == bindparam("line"))
            .values({name: bindparam(f"new_{name}") for name in ("state", "result", *_TOKENS)}),
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

    async def still_pending(
        self, project: str, batch_id: str, numbers: Collection[int]
    ) -> set[int]:
        """Those of the lines that have not ended."""
        found = await self._session.scalars(
            select(BatchLineRow.number).where(
                *_of(project, batch_id),
                BatchLineRow.number.in_(numbers),
                BatchLineRow.state == LineState.PENDING.value,
            )
        )
        return set(found)

    async def set_deaths(self, project: str, batch_id: str, deaths: Mapping[int, int]) -> None:
        """How many engines have died while they had a line, by its number."""
        connection = await self._session.connection()
        await connection.execute(
            update(BatchLineRow.__table__)  # type: ignore[arg-type]  # typed for any selectable
            .where(*_of(project, batch_id), BatchLineRow.number == bindparam("line"))
            .values(engine_deaths=bindparam("deaths")),
            [{"line": line, "deaths": count} for line, count in deaths.items()],
        )

    async def close(self, project: str, batch_id: str, state: LineState) -> None:
        """End the pending lines: they will not run."""
        await self._session.execute(
            update(BatchLineRow)
            .where(*_of(project, batch_id), BatchLineRow.state == LineState.PENDING.value)
            .values(state=state.value)
        )

    async def reopen(self, project: str, batch_id: str) -> int:
        """Let the lines that a failure of the batch ended be pending again; how many there were."""
        reopened = await self._session.scalars(
            update(BatchLineRow)
            .where(*_of(project, batch_id), BatchLineRow.state == LineState.ABANDONED.value)
            .values(state=LineState.PENDING.value)
            .returning(BatchLineRow.number)
        )
        return len(reopened.all())

    async def ended(
        self, project: str, batch_id: str, *, completed: bool, after: int, most: Portion
    ) -> list[EndedLine]:
        """The next lines that completed, or that did not, in the order of the file."""
        is_completed = BatchLineRow.state == LineState.COMPLETED.value
        query = (
            select(*_ENDED)
            .where(*_of(project, batch_id), BatchLineRow.number > after)
            .where(is_completed if completed else ~is_completed)
            .order_by(BatchLineRow.number)
        )
        size = func.length(BatchLineRow.request) + func.coalesce(
            func.length(BatchLineRow.result), 0
        )
        return [
            EndedLine(number, LineState(state), request, result)
            for number, state, request, result in await self._portion(query, size, most)
        ]

    async def _portion(
        self, query: Select[*tuple[Any, ...]], size: ColumnElement[int], most: Portion
    ) -> Sequence[Row[*tuple[Any, ...]]]:
        """The first rows of a query, as many as fit; sizes are read first."""
        sizes = await self._session.scalars(
            query.with_only_columns(size, maintain_column_froms=True).limit(most.num_lines)
        )
        return (await self._session.execute(query.limit(most.of(sizes.all())))).all()


def _of(project: str, batch_id: str) -> tuple[ColumnElement[bool], ...]:
    return (BatchLineRow.project == project, BatchLineRow.batch_id == batch_id)


def _values(batch: Batch) -> dict[str, Any]:
    return {
        **{name: getattr(batch, name) for name in _AS_THEY_ARE},
        "endpoint": batch.endpoint.value,
        "state": batch.state.value,
        "attached": orjson.dumps(dict(batch.metadata)),
        "problems": orjson.dumps([astuple(problem) for problem in batch.problems]),
        **asdict(batch.counts),
        **asdict(batch.usage),
    }


def _batch(row: BatchRow) -> Batch:
    return Batch(
        **{name: getattr(row, name) for name in _AS_THEY_ARE},
        endpoint=BatchEndpoint(row.endpoint),
        state=BatchState(row.state),
        metadata=orjson.loads(row.attached),
        problems=tuple(LineProblem(*each) for each in orjson.loads(row.problems)),
        counts=LineCounts(row.total, row.completed, row.failed),
        usage=TokenUsage(*(getattr(row, name) for name in _TOKENS)),
    )
