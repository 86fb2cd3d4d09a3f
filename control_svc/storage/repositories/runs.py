"""Queries about runs and their steps."""

from sqlalchemy import Row, Select, insert, select, update

from control_svc.domain.ids import RUN, STEP, is_id
from control_svc.domain.listing import Window
from control_svc.domain.run_steps import RunStep, StepState
from control_svc.domain.runs import Run
from control_svc.storage.models import RunRow, RunStepRow
from control_svc.storage.repositories.windows import in_order, windowed
from control_svc.storage.run_documents import (
    run_document,
    run_of,
    settings_document,
    step_document,
    step_of,
)
from control_svc.storage.unit_of_work import Transaction
from svc_kit.errors import RunNotFound, RunStepNotFound

_Found = Select[bytes, bytes]


class SqlRuns:
    """The rows of runs. Whoever locks a run and its job, its thread or its stream locks the job
    before it, and the others behind it."""

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
        """The run, which until the end of the transaction nobody else changes. Raises
        RunNotFound."""
        return await self._one(_select(project).with_for_update(), run_id)

    async def page(self, project: str, thread_id: str, window: Window) -> list[Run]:
        """The thread's runs of a window."""
        query = _select(project).where(RunRow.thread_id == thread_id)
        rows = (await self._session.execute(windowed(query, RunRow.id, window))).all()
        return [run_of(*row) for row in in_order(rows, window)]

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


class SqlRunSteps:
    """The rows of steps. Whoever changes them has locked the run."""

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
        query = windowed(_steps(project, run_id), RunStepRow.id, window)
        documents = (await self._session.scalars(query)).all()
        return [step_of(document) for document in in_order(documents, window)]

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
