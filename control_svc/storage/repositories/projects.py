"""Queries about projects."""

from dataclasses import asdict

from sqlalchemy import insert, select, update

from control_svc.domain.listing import Window
from control_svc.domain.projects import Project
from control_svc.storage.models import ProjectRow
from control_svc.storage.unit_of_work import Transaction
from svc_kit.errors import ProjectExists, ProjectNotFound


class SqlProjects:
    """Projects in one transaction."""

    def __init__(self, tx: Transaction) -> None:
        self._session = tx.session

    async def add(self, project: Project) -> None:
        """Keep a new project. Raises ProjectExists."""
        if await self._session.get(ProjectRow, project.id) is not None:
            raise ProjectExists(project=project.id)
        await self._session.execute(insert(ProjectRow).values(**asdict(project)))

    async def get(self, project_id: str, *, locked: bool = False) -> Project:
        """Raises ProjectNotFound. Of a locked project nobody else changes the row until the end of
        the transaction."""
        row = await self._session.get(ProjectRow, project_id, with_for_update=locked)
        if row is None:
            raise ProjectNotFound(project=project_id)
        return _project(row)

    async def page(self, window: Window, *, with_archived: bool) -> list[Project]:
        """The projects of a window, which goes by id upwards."""
        query = select(ProjectRow).where(ProjectRow.id > window.after).order_by(ProjectRow.id)
        if not with_archived:
            query = query.where(ProjectRow.archived_at.is_(None))
        return [_project(row) for row in await self._session.scalars(query.limit(window.limit))]

    async def update(self, project: Project) -> None:
        """Keep what has changed of a locked project: whether it is archived."""
        await self._session.execute(
            update(ProjectRow)
            .where(ProjectRow.id == project.id)
            .values(archived_at=project.archived_at)
        )


def _project(row: ProjectRow) -> Project:
    return Project(
        id=row.id,
        display_name=row.display_name,
        created_at=row.created_at,
        archived_at=row.archived_at,
    )
