"""Tables, stored documents and SQL of runs and their steps."""

from typing import Final

import orjson
from pydantic import ConfigDict, TypeAdapter
from sqlalchemy import (
    ForeignKeyConstraint,
    Index,
    Row,
    Select,
    String,
    delete,
    insert,
    select,
    update,
)
from sqlalchemy.orm import Mapped, mapped_column

from control_svc.base.ids import RUN, STEP, is_id
from control_svc.base.pagination import Window, apply_window, restore_order
from control_svc.db.documents import Document
from control_svc.db.tables import Key, Project, Table
from control_svc.db.transaction import Transaction
from control_svc.event_log.queries import StreamRow
from control_svc.runs.model import Run, RunSettings
from control_svc.runs.steps import RunStep, StepState
from svc_kit.errors import RunNotFound, RunStepNotFound


class RunRow(Table):
    """A run. The document contains the state too; the column is for operators."""

    __tablename__ = "runs"
    __table_args__ = (
        ForeignKeyConstraint(
            ["project", "thread_id"], ["threads.project", "threads.id"], ondelete="CASCADE"
        ),
        Index(None, "project", "thread_id", "id"),
    )

    project: Mapped[str] = mapped_column(Project, primary_key=True)
    id: Mapped[str] = mapped_column(Key, primary_key=True)
    thread_id: Mapped[str] = mapped_column(Key)
    state: Mapped[str] = mapped_column(String(16))
    settings: Mapped[Document]  # written once; may be large
    document: Mapped[Document]


class RunStepRow(Table):
    """A step of a run."""

    __tablename__ = "run_steps"
    __table_args__ = (
        ForeignKeyConstraint(
            ["project", "run_id"], ["runs.project", "runs.id"], ondelete="CASCADE"
        ),
    )

    project: Mapped[str] = mapped_column(Project, primary_key=True)
    run_id: Mapped[str] = mapped_column(Key, primary_key=True)
    id: Mapped[str] = mapped_column(Key, primary_key=True)
    state: Mapped[str] = mapped_column(String(16))
    document: Mapped[Document]


_BYTES: Final = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
# Unions, because pydantic does not accept `config` for a dataclass.
_RUN: Final[TypeAdapter[Run | None]] = TypeAdapter(Run | None, config=_BYTES)
_SETTINGS: Final[TypeAdapter[RunSettings | None]] = TypeAdapter(RunSettings | None, config=_BYTES)
_STEP: Final[TypeAdapter[RunStep]] = TypeAdapter(RunStep)


def settings_document(settings: RunSettings) -> bytes:
    """Serialize the settings of a run, which do not change."""
    return _SETTINGS.dump_json(settings)


def run_document(run: Run) -> bytes:
    """Serialize the other fields of a run."""
    return _RUN.dump_json(run, exclude={"settings"})


def decode_run(settings: bytes, document: bytes) -> Run:
    """Deserialize a run from its two documents."""
    fields = {**orjson.loads(document), "settings": _SETTINGS.validate_json(settings)}
    run = _RUN.validate_python(fields)
    if run is None:
        raise TypeError("the document of a run is null")
    return run


def step_document(step: RunStep) -> bytes:
    """Serialize a step."""
    return _STEP.dump_json(step)


def decode_step(document: bytes) -> RunStep:
    """Deserialize a step."""
    return _STEP.validate_json(document)


async def delete_streams_of_thread(tx: Transaction, project: str, thread_id: str) -> None:
    """Delete the event streams of a thread's runs. A foreign key deletes the runs."""
    runs = select(RunRow.id).where(RunRow.project == project, RunRow.thread_id == thread_id)
    await tx.session.execute(
        delete(StreamRow).where(StreamRow.project == project, StreamRow.id.in_(runs))
    )


_RunSelect = Select[bytes, bytes]


class RunQueries:
    """SQL of runs. Lock order: job, run, then thread or stream."""

    def __init__(self, tx: Transaction) -> None:
        self._session = tx.session

    async def add(self, project: str, run: Run) -> None:
        """Insert a run."""
        row = insert(RunRow).values(
            project=project,
            id=run.id,
            thread_id=run.thread_id,
            settings=settings_document(run.settings),
            **_mutable_values(run),
        )
        await self._session.execute(row)

    async def get(self, project: str, thread_id: str, run_id: str) -> Run:
        """Raises RunNotFound, also for a run of another thread."""
        run = await self._one(_select_runs(project), run_id)
        if run.thread_id != thread_id:
            raise RunNotFound(run=run_id)
        return run

    async def find(self, project: str, run_id: str, *, locked: bool = False) -> Run:
        """Return a run of any thread. Raises RunNotFound."""
        query = _select_runs(project)
        return await self._one(query.with_for_update() if locked else query, run_id)

    async def lock(self, project: str, run_id: str) -> Run:
        """Like `find`, and lock the row until the end of the transaction."""
        return await self.find(project, run_id, locked=True)

    async def page(self, project: str, thread_id: str, window: Window) -> list[Run]:
        """The runs of a window of a thread."""
        query = _select_runs(project).where(RunRow.thread_id == thread_id)
        rows = (await self._session.execute(apply_window(query, RunRow.id, window))).all()
        return [decode_run(*row) for row in restore_order(rows, window)]

    async def update(self, project: str, run: Run) -> None:
        """Store the changed fields of a locked run; its settings do not change."""
        await self._session.execute(
            update(RunRow)
            .where(RunRow.project == project, RunRow.id == run.id)
            .values(_mutable_values(run))
        )

    async def _one(self, query: _RunSelect, run_id: str) -> Run:
        row: Row[bytes, bytes] | None = None
        if is_id(run_id, RUN):  # databases reject some characters
            query = query.where(RunRow.id == run_id)
            row = (await self._session.execute(query)).one_or_none()
        if row is None:
            raise RunNotFound(run=run_id)
        return decode_run(*row)


class RunStepQueries:
    """SQL of steps. Changes require the lock of the run."""

    def __init__(self, tx: Transaction) -> None:
        self._session = tx.session

    async def add(self, project: str, step: RunStep) -> None:
        """Insert a step."""
        row = insert(RunStepRow).values(
            project=project,
            run_id=step.run_id,
            id=step.id,
            state=step.state.value,
            document=step_document(step),
        )
        await self._session.execute(row)

    async def get(self, project: str, run_id: str, step_id: str) -> RunStep:
        """Raises RunStepNotFound."""
        document: bytes | None = None
        if is_id(step_id, STEP):  # databases reject some characters
            query = _select_steps(project, run_id).where(RunStepRow.id == step_id)
            document = (await self._session.execute(query)).scalar_one_or_none()
        if document is None:
            raise RunStepNotFound(step=step_id)
        return decode_step(document)

    async def in_progress(self, project: str, run_id: str) -> list[RunStep]:
        """The steps that have not ended, in order."""
        query = _select_steps(project, run_id)
        query = query.where(RunStepRow.state == StepState.IN_PROGRESS.value)
        documents = await self._session.scalars(query.order_by(RunStepRow.id))
        return list(map(decode_step, documents))

    async def page(self, project: str, run_id: str, window: Window) -> list[RunStep]:
        """The steps of a window of a run."""
        query = apply_window(_select_steps(project, run_id), RunStepRow.id, window)
        documents = (await self._session.scalars(query)).all()
        return list(map(decode_step, restore_order(documents, window)))

    async def update(self, project: str, step: RunStep) -> None:
        """Store the changed fields of a step."""
        await self._session.execute(
            update(RunStepRow)
            .where(
                RunStepRow.project == project,
                RunStepRow.run_id == step.run_id,
                RunStepRow.id == step.id,
            )
            .values(state=step.state.value, document=step_document(step))
        )


def _select_runs(project: str) -> _RunSelect:
    return select(RunRow.settings, RunRow.document).where(RunRow.project == project)


def _select_steps(project: str, run_id: str) -> Select[bytes]:
    return select(RunStepRow.document).where(
        RunStepRow.project == project, RunStepRow.run_id == run_id
    )


def _mutable_values(run: Run) -> dict[str, object]:
    return {"state": run.state.value, "document": run_document(run)}
