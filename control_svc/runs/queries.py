"""Tables, stored documents and SQL of runs and their steps."""

from dataclasses import replace
from typing import Any, Final

import orjson
import sqlalchemy as sa
from pydantic import ConfigDict, TypeAdapter
from sqlalchemy.orm import Mapped, mapped_column

from control_svc.base.ids import RUN, STEP, is_id
from control_svc.base.object_queries import ObjectQueries
from control_svc.base.pagination import Window, apply_window, restore_order
from control_svc.db.documents import Document
from control_svc.db.tables import Key, ObjectRow, OwnedRow
from control_svc.db.transaction import Queries, Transaction
from control_svc.event_log.queries import StreamRow
from control_svc.runs.model import Run, RunSettings
from control_svc.runs.steps import RunStep, StepState
from svc_kit.errors import DomainError, RunNotFound, RunStepNotFound


class RunRow(ObjectRow):
    """A run. The document contains the state too; the column is for operators."""

    __tablename__ = "runs"
    __table_args__ = (
        sa.ForeignKeyConstraint(
            ["project", "thread_id"], ["threads.project", "threads.id"], ondelete="CASCADE"
        ),
        sa.Index(None, "project", "thread_id", "id"),
    )

    thread_id: Mapped[str] = mapped_column(Key)
    state: Mapped[str] = mapped_column(sa.String(16))
    settings: Mapped[Document]  # written once; may be large
    document: Mapped[Document]
    ignored_parameters: Mapped[str] = mapped_column(sa.Text, server_default=sa.text("'[]'"))  # JSON


class RunStepRow(OwnedRow):
    __tablename__ = "run_steps"
    __table_args__ = (
        sa.ForeignKeyConstraint(
            ["project", "run_id"], ["runs.project", "runs.id"], ondelete="CASCADE"
        ),
    )

    run_id: Mapped[str] = mapped_column(Key, primary_key=True)
    id: Mapped[str] = mapped_column(Key, primary_key=True)
    state: Mapped[str] = mapped_column(sa.String(16))
    document: Mapped[Document]


_BYTES: Final = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
# Unions, because pydantic does not accept `config` for a dataclass.
_RUN: Final[TypeAdapter[Run | None]] = TypeAdapter(Run | None, config=_BYTES)
_SETTINGS: Final[TypeAdapter[RunSettings | None]] = TypeAdapter(RunSettings | None, config=_BYTES)
_STEP: Final[TypeAdapter[RunStep]] = TypeAdapter(RunStep)


def run_document(run: Run) -> bytes:
    """Serialize a run without its settings, which do not change."""
    return _RUN.dump_json(run, exclude={"settings", "ignored_parameters"})


def decode_run(settings: bytes, document: bytes) -> Run:
    """Deserialize a run from its two documents."""
    fields = {**orjson.loads(document), "settings": _SETTINGS.validate_json(settings)}
    run = _RUN.validate_python(fields)
    if run is None:
        raise TypeError("the document of a run is null")
    return run


async def delete_streams_of_thread(tx: Transaction, thread_id: str) -> None:
    """Delete the event streams of a thread's runs. A foreign key deletes the runs."""
    await RunQueries(tx).delete_streams(thread_id)


class RunQueries(ObjectQueries[RunRow, Run]):
    """SQL of runs. Lock order: job, then run and thread. A worker that writes events locks its
    stream between job and run, which is safe because it has the job."""

    table = RunRow
    prefix = RUN

    async def get_in_thread(self, thread_id: str, run_id: str) -> Run:
        """Like `get`; raises RunNotFound also for a run of another thread."""
        run = await self.get(run_id)
        if run.thread_id != thread_id:
            raise self._not_found(run_id)
        return run

    async def page_of_thread(self, thread_id: str, window: Window) -> list[Run]:
        return await self.page(window, RunRow.thread_id == thread_id)

    async def delete_streams(self, thread_id: str) -> None:
        """Delete the event streams of a thread's runs."""
        runs = sa.select(RunRow.id).where(self._mine(RunRow), RunRow.thread_id == thread_id)
        await self._session.execute(self._delete(StreamRow, StreamRow.id.in_(runs)))

    def _not_found(self, object_id: str) -> DomainError:
        return RunNotFound(run=object_id)

    def _constants(self, value: Run) -> dict[str, Any]:
        settings = _SETTINGS.dump_json(value.settings)
        return {"id": value.id, "thread_id": value.thread_id, "settings": settings}

    def _values(self, value: Run) -> dict[str, Any]:
        return {
            "state": value.state.value,
            "document": run_document(value),
            "ignored_parameters": orjson.dumps(value.ignored_parameters).decode(),
        }

    def _object(self, row: RunRow) -> Run:
        run = decode_run(row.settings, row.document)
        return replace(run, ignored_parameters=tuple(orjson.loads(row.ignored_parameters)))


class RunStepQueries(Queries):
    """SQL of steps. Changes require the lock of the run."""

    async def add(self, step: RunStep) -> None:
        key = {"run_id": step.run_id, "id": step.id}
        await self._insert(RunStepRow, {**key, **_step_values(step)})

    async def get(self, run_id: str, step_id: str) -> RunStep:
        """Raises RunStepNotFound."""
        document: bytes | None = None
        if is_id(step_id, STEP):  # databases reject some characters
            query = self._select_steps(run_id).where(RunStepRow.id == step_id)
            document = (await self._session.execute(query)).scalar_one_or_none()
        if document is None:
            raise RunStepNotFound(step=step_id)
        return _STEP.validate_json(document)

    async def in_progress(self, run_id: str) -> list[RunStep]:
        """The steps that have not ended, in order."""
        query = self._select_steps(run_id)
        query = query.where(RunStepRow.state == StepState.IN_PROGRESS.value)
        documents = await self._session.scalars(query.order_by(RunStepRow.id))
        return list(map(_STEP.validate_json, documents))

    async def page(self, run_id: str, window: Window) -> list[RunStep]:
        query = apply_window(self._select_steps(run_id), RunStepRow.id, window)
        documents = (await self._session.scalars(query)).all()
        return list(map(_STEP.validate_json, restore_order(documents, window)))

    async def update(self, step: RunStep) -> None:
        """Store the changed fields of a step."""
        is_step = (RunStepRow.run_id == step.run_id, RunStepRow.id == step.id)
        await self._session.execute(self._update(RunStepRow, *is_step).values(_step_values(step)))

    def _select_steps(self, run_id: str) -> sa.Select[bytes]:
        return sa.select(RunStepRow.document).where(
            self._mine(RunStepRow), RunStepRow.run_id == run_id
        )


def _step_values(step: RunStep) -> dict[str, Any]:
    return {"state": step.state.value, "document": _STEP.dump_json(step)}
