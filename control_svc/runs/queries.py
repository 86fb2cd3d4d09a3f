"""Tables, documents and SQL of runs and their steps."""

from typing import Final

import orjson
from pydantic import ConfigDict, TypeAdapter
from sqlalchemy import (
    ForeignKeyConstraint,
    Index,
    LargeBinary,
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
from control_svc.db.tables import Key, Project, Table
from control_svc.db.transaction import Transaction
from control_svc.event_log.queries import StreamRow
from control_svc.runs.events import RunEvent
from control_svc.runs.model import Run, RunSettings
from control_svc.runs.steps import RunStep, StepState
from svc_kit.errors import RunNotFound, RunStepNotFound


class RunRow(Table):
    """A run. Its state is a column for operators; the document has it too."""

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
    settings: Mapped[bytes] = mapped_column(LargeBinary)  # written once, they may be large
    document: Mapped[bytes] = mapped_column(LargeBinary)


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
    document: Mapped[bytes] = mapped_column(LargeBinary)


_BYTES: Final = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
# Unions: pydantic takes no configuration for a dataclass from outside.
_RUN: Final[TypeAdapter[Run | None]] = TypeAdapter(Run | None, config=_BYTES)
_SETTINGS: Final[TypeAdapter[RunSettings | None]] = TypeAdapter(RunSettings | None, config=_BYTES)
_STEP: Final[TypeAdapter[RunStep]] = TypeAdapter(RunStep)
_EVENT: Final[TypeAdapter[RunEvent]] = TypeAdapter(RunEvent, config=_BYTES)


def settings_document(settings: RunSettings) -> bytes:
    """What never changes of a run."""
    return _SETTINGS.dump_json(settings)


def run_document(run: Run) -> bytes:
    """What may change of a run."""
    return _RUN.dump_json(run, exclude={"settings"})


def run_of(settings: bytes, document: bytes) -> Run:
    """The run of both documents."""
    known = {**orjson.loads(document), "settings": _SETTINGS.validate_json(settings)}
    run = _RUN.validate_python(known)
    if run is None:
        raise TypeError("a run's document is null")
    return run


def step_document(step: RunStep) -> bytes:
    """The document of a step."""
    return _STEP.dump_json(step)


def step_of(document: bytes) -> RunStep:
    """The step of a document."""
    return _STEP.validate_json(document)


class RunEventDocuments:
    """Events of runs as the log keeps them."""

    def encode(self, event: RunEvent) -> bytes:
        """An event for the log."""
        return _EVENT.dump_json(event)

    def decode(self, data: bytes) -> RunEvent:
        """An event of the log."""
        return _EVENT.validate_json(data)


async def delete_streams_of_thread(tx: Transaction, project: str, thread_id: str) -> None:
    """Delete the event streams of a thread's runs; the runs themselves go with the thread."""
    runs = select(RunRow.id).where(RunRow.project == project, RunRow.thread_id == thread_id)
    await tx.session.execute(
        delete(StreamRow).where(StreamRow.project == project, StreamRow.id.in_(runs))
    )


_Found = Select[bytes, bytes]


class RunQueries:
    """SQL of runs. Lock order: the job first, then the run, then its thread or stream."""

    def __init__(self, tx: Transaction) -> None:
        self._session = tx.session

    async def add(self, project: str, run: Run) -> None:
        """Keep a new run."""
        values = {"project": project, "id": run.id, "thread_id": run.thread_id}
        await self._session.execute(
            insert(RunRow).values(
                **values, settings=settings_document(run.settings), **_changing(run)
            )
        )

    async def get(self, project: str, thread_id: str, run_id: str) -> Run:
        """Raises RunNotFound, also for a run of another thread."""
        found = await self._one(_select(project), run_id)
        if found.thread_id != thread_id:
            raise RunNotFound(run=run_id)
        return found

    async def lock(self, project: str, run_id: str) -> Run:
        """As `get` by id, locked until the end of the transaction. Raises RunNotFound."""
        return await self._one(_select(project).with_for_update(), run_id)

    async def page(self, project: str, thread_id: str, window: Window) -> list[Run]:
        """The thread's runs of a window."""
        query = _select(project).where(RunRow.thread_id == thread_id)
        rows = (await self._session.execute(apply_window(query, RunRow.id, window))).all()
        return [run_of(*row) for row in restore_order(rows, window)]

    async def update(self, project: str, run: Run) -> None:
        """Keep what has changed of a locked run; its settings never do."""
        await self._session.execute(
            update(RunRow)
            .where(RunRow.project == project, RunRow.id == run.id)
            .values(_changing(run))
        )

    async def _one(self, query: _Found, run_id: str) -> Run:
        if not is_id(run_id, RUN):  # not asked for: a database may refuse its characters
            raise RunNotFound(run=run_id)
        row: Row[bytes, bytes] | None = (
            await self._session.execute(query.where(RunRow.id == run_id))
        ).one_or_none()
        if row is None:
            raise RunNotFound(run=run_id)
        return run_of(*row)


class RunStepQueries:
    """SQL of steps. Changes need the lock of the run."""

    def __init__(self, tx: Transaction) -> None:
        self._session = tx.session

    async def add(self, project: str, step: RunStep) -> None:
        """Keep a new step."""
        values = {"project": project, "run_id": step.run_id, "id": step.id}
        await self._session.execute(
            insert(RunStepRow).values(
                **values, state=step.state.value, document=step_document(step)
            )
        )

    async def get(self, project: str, run_id: str, step_id: str) -> RunStep:
        """Raises RunStepNotFound."""
        if not is_id(step_id, STEP):
            raise RunStepNotFound(step=step_id)
        query = _steps(project, run_id).where(RunStepRow.id == step_id)
        document = (await self._session.execute(query)).scalar_one_or_none()
        if document is None:
            raise RunStepNotFound(step=step_id)
        return step_of(document)

    async def open(self, project: str, run_id: str) -> list[RunStep]:
        """Those that have not ended, in order."""
        query = _steps(project, run_id).where(RunStepRow.state == StepState.IN_PROGRESS.value)
        found = await self._session.scalars(query.order_by(RunStepRow.id))
        return [step_of(document) for document in found]

    async def page(self, project: str, run_id: str, window: Window) -> list[RunStep]:
        """The run's steps of a window."""
        query = apply_window(_steps(project, run_id), RunStepRow.id, window)
        documents = (await self._session.scalars(query)).all()
        return [step_of(document) for document in restore_order(documents, window)]

    async def update(self, project: str, step: RunStep) -> None:
        """Keep what has changed of a step."""
        await self._session.execute(
            update(RunStepRow)
            .where(
                RunStepRow.project == project,
                RunStepRow.run_id == step.run_id,
                RunStepRow.id == step.id,
            )
            .values(state=step.state.value, document=step_document(step))
        )


def _select(project: str) -> _Found:
    return select(RunRow.settings, RunRow.document).where(RunRow.project == project)


def _steps(project: str, run_id: str) -> Select[bytes]:
    return select(RunStepRow.document).where(
        RunStepRow.project == project, RunStepRow.run_id == run_id
    )


def _changing(run: Run) -> dict[str, object]:
    return {"state": run.state.value, "document": run_document(run)}
