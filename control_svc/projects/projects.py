"""Projects: the tenants that own objects and keys. Projects of keys in the settings need no row."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Final

import sqlalchemy as sa
from corral.control.v1 import project_service_pb2 as pb
from sqlalchemy.orm import Mapped, mapped_column

from control_svc.audit.log import record_call
from control_svc.base.idempotency import IdempotencyRecord, find_or_record
from control_svc.base.pagination import Page, Window, apply_window
from control_svc.base.resource import OperatorMethods
from control_svc.base.validation import (
    PROJECT_ID_PATTERN,
    check_project_id,
)
from control_svc.db.tables import Instant, Key, Table, read_row
from control_svc.db.transaction import (
    Clock,
    CrossProjectQueries,
    CrossProjectTransaction,
    DeleteHook,
    cross_project_read,
    cross_project_write,
)
from svc_kit.auth.principal import DEFAULT_PROJECT
from svc_kit.errors import (
    InvalidField,
    MissingField,
    ProjectArchived,
    ProjectExists,
    ProjectNotFound,
)
from svc_kit.rpc.message_mapper import MessageMapper


@dataclass(frozen=True, kw_only=True)
class Project:
    """A tenant."""

    id: str
    display_name: str
    created_at: datetime
    archived_at: datetime | None = None

    def check_active(self) -> None:
        """Raise ProjectArchived if the project is archived."""
        if self.archived_at is not None:
            raise ProjectArchived(project=self.id)

    def archive(self, now: datetime) -> "Project":
        """Archive the project; archiving it again changes nothing. Raises InvalidField."""
        if self.id == DEFAULT_PROJECT:
            problem = "it is the project of callers without a key and cannot be archived"
            raise InvalidField(field="project_id", problem=problem)
        return self if self.archived_at is not None else replace(self, archived_at=now)


@dataclass(frozen=True, kw_only=True)
class NewProject:
    id: str
    display_name: str = ""
    request_id: str = ""

    def check(self) -> None:
        """Validate the request. Raises MissingField or InvalidField."""
        if not self.id:
            raise MissingField(field="project_id")
        if not PROJECT_ID_PATTERN.fullmatch(self.id):
            problem = (
                'it must have 1 to 63 lower-case letters, digits, ".", "_" and "-", and start with'
                " a letter or digit"
            )
            raise InvalidField(field="project_id", problem=problem)


class ProjectRow(Table):
    """A project. Objects have no foreign key to it, since projects of the settings have no row."""

    __tablename__ = "projects"

    id: Mapped[str] = mapped_column(Key, primary_key=True)
    display_name: Mapped[str] = mapped_column(sa.Text)
    created_at: Mapped[datetime] = mapped_column(Instant)
    archived_at: Mapped[datetime | None] = mapped_column(Instant)


class ProjectQueries(CrossProjectQueries):
    async def add(self, project: Project) -> None:
        """Insert a new project. Raises ProjectExists."""
        if not await self.add_if_missing(project):
            raise ProjectExists(project=project.id)

    async def add_if_missing(self, project: Project) -> bool:
        """Insert a project unless its id is taken, and return whether it was inserted."""
        if await self._session.get(ProjectRow, project.id) is not None:
            return False
        await self._session.execute(sa.insert(ProjectRow).values(**asdict(project)))
        return True

    async def get(self, project_id: str, *, locked: bool = False) -> Project:
        """Return a project, locked on request. Raises ProjectNotFound."""
        project = await self.find(project_id, locked=locked)
        if project is None:
            raise ProjectNotFound(project=project_id)
        return project

    async def find(self, project_id: str, *, locked: bool = False) -> Project | None:
        """Return a project, locked on request; None if there is none with this id."""
        row = await self._session.get(ProjectRow, project_id, with_for_update=locked)
        return None if row is None else read_row(Project, row)

    async def page(self, window: Window, *, with_archived: bool) -> list[Project]:
        """List the projects of a window, by id."""
        query = sa.select(ProjectRow)
        if not with_archived:
            query = query.where(ProjectRow.archived_at.is_(None))
        rows = await self._session.scalars(apply_window(query, ProjectRow.id, window))
        return [read_row(Project, row) for row in rows]

    async def update(self, project: Project) -> None:
        """Update `archived_at` of a locked project."""
        await self._session.execute(
            sa.update(ProjectRow)
            .where(ProjectRow.id == project.id)
            .values(archived_at=project.archived_at)
        )


CREATE = "CreateProject"
_NEW_PROJECT: Final = MessageMapper(
    NewProject, pb.CreateProjectRequest, renamed={"id": "project_id"}
)
_PROJECT: Final = MessageMapper(Project, pb.Project, only_message=["state"])


@dataclass(frozen=True)
class Projects(OperatorMethods[Project]):
    service = pb.DESCRIPTOR.services_by_name["ProjectService"]
    message, noun, plural = _PROJECT, "a project", "projects"

    clock: Clock
    on_archive: Sequence[DeleteHook] = ()

    def to_message(self, value: Project) -> pb.Project:
        return _PROJECT.to_message(value, state=_state(is_archived=value.archived_at is not None))

    @cross_project_write
    async def prepare(self, tx: CrossProjectTransaction) -> None:
        """Create the project of callers without a key, unless it exists."""
        await ProjectQueries(tx).add_if_missing(self._new(NewProject(id=DEFAULT_PROJECT)))

    @cross_project_write
    async def CreateProject(
        self, tx: CrossProjectTransaction, request: pb.CreateProjectRequest
    ) -> Project:
        """Create a project.

        Raises MissingField, TooLong, InvalidField, ProjectExists or RequestIdReused.
        """
        new = _NEW_PROJECT.from_message(request)
        new.check()
        project = self._new(new)
        record = IdempotencyRecord.of(CREATE, new.request_id, project.id, project.created_at, new)
        # Stored under one project, so that a request id is unique over all projects.
        if await find_or_record(tx.of(DEFAULT_PROJECT), record):
            return await ProjectQueries(tx).get(project.id)
        await ProjectQueries(tx).add(project)
        await record_call(tx, project.id)
        return project

    @cross_project_read
    async def GetProject(
        self, tx: CrossProjectTransaction, request: pb.GetProjectRequest
    ) -> Project:
        """Return a project. Raises MissingField or ProjectNotFound."""
        check_project_id(request.project_id)
        return await ProjectQueries(tx).get(request.project_id)

    @cross_project_read
    async def VerifyProject(
        self, tx: CrossProjectTransaction, request: pb.VerifyProjectRequest
    ) -> pb.VerifyProjectResponse:
        """Return whether callers of a project are accepted: not if it is archived."""
        project = await ProjectQueries(tx).find(request.project_id)
        is_archived = project is not None and project.archived_at is not None
        return pb.VerifyProjectResponse(state=_state(is_archived=is_archived))

    @cross_project_read
    async def ListProjects(
        self, tx: CrossProjectTransaction, request: pb.ListProjectsRequest
    ) -> Page[Project]:
        """List projects by id. Raises OutOfRange or InvalidField."""
        with_archived = request.show_archived
        window = self.window(request, "projects", str(with_archived))
        return window.page(await ProjectQueries(tx).page(window, with_archived=with_archived))

    @cross_project_write
    async def ArchiveProject(
        self, tx: CrossProjectTransaction, request: pb.ArchiveProjectRequest
    ) -> Project:
        """Archive a project. Raises MissingField, InvalidField or ProjectNotFound."""
        check_project_id(request.project_id)
        project = await ProjectQueries(tx).get(request.project_id, locked=True)
        archived = project.archive(self.clock())
        await ProjectQueries(tx).update(archived)
        for hook in self.on_archive:
            await hook(tx.of(project.id), project.id)
        await record_call(tx, project.id)
        return archived

    def _new(self, new: NewProject) -> Project:
        return Project(
            id=new.id,
            display_name=new.display_name or new.id,
            created_at=self.clock(),
        )


def _state(*, is_archived: bool) -> pb.Project.State:
    return pb.Project.STATE_ARCHIVED if is_archived else pb.Project.STATE_ACTIVE
