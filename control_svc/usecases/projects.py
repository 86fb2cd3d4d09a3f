"""Projects: made, listed and archived by operators."""

from control_svc.domain.listing import Page, PageRequest, PageTokens
from control_svc.domain.ports import Clock
from control_svc.domain.projects import NewProject, Project, check_form
from control_svc.domain.requests import RememberedRequest, fingerprint_of
from control_svc.storage.repositories.projects import SqlProjects
from control_svc.storage.unit_of_work import Transaction, Transactions
from control_svc.usecases.once import earlier
from svc_kit.errors import ProjectNotFound
from svc_kit.principal import DEFAULT_PROJECT

MAX_PAGE = 1000
CREATE = "CreateProject"


class Projects:
    """What operators do with projects."""

    def __init__(self, transactions: Transactions, tokens: PageTokens, clock: Clock) -> None:
        self._transactions = transactions
        self._tokens = tokens
        self._clock = clock

    async def prepare(self) -> None:
        """Make the project that callers without a key belong to, where it is not there yet."""
        default = self._new(NewProject(id=DEFAULT_PROJECT))

        async def ensure(tx: Transaction) -> None:
            try:
                await SqlProjects(tx).get(DEFAULT_PROJECT)
            except ProjectNotFound:
                await SqlProjects(tx).add(default)

        await self._transactions.write(ensure)

    async def create(self, described: NewProject) -> Project:
        """Raises MissingField, TooLong, InvalidField, ProjectExists or RequestIdReused."""
        described.check()
        project = self._new(described)
        request = RememberedRequest(
            method=CREATE,
            request_id=described.request_id,
            fingerprint=fingerprint_of(described),
            resource_id=project.id,
            created_at=project.created_at,
        )

        async def add(tx: Transaction) -> Project:
            # Remembered with one project for all, so that the id of another project meets it too.
            if await earlier(tx, DEFAULT_PROJECT, request):
                return await SqlProjects(tx).get(project.id)
            await SqlProjects(tx).add(project)
            return project

        return await self._transactions.write(add)

    async def get(self, project_id: str) -> Project:
        """Raises MissingField or ProjectNotFound."""
        check_form(project_id)
        return await self._transactions.read(lambda tx: SqlProjects(tx).get(project_id))

    async def page(self, asked: PageRequest, *, with_archived: bool) -> Page[Project]:
        """A page of all projects, by id. Raises OutOfRange or InvalidField."""
        binding = ("projects", str(with_archived))
        window = self._tokens.window(asked, binding, MAX_PAGE)
        found = await self._transactions.read(
            lambda tx: SqlProjects(tx).page(window, with_archived=with_archived)
        )
        return self._tokens.page(found, window, asked, binding)

    async def archive(self, project_id: str) -> Project:
        """Close a project. Raises MissingField, InvalidField or ProjectNotFound."""
        check_form(project_id)
        now = self._clock()

        async def close(tx: Transaction) -> Project:
            archived = (await SqlProjects(tx).get(project_id, locked=True)).archive(now)
            await SqlProjects(tx).update(archived)
            return archived

        return await self._transactions.write(close)

    def _new(self, described: NewProject) -> Project:
        return Project(
            id=described.id,
            display_name=described.display_name or described.id,
            created_at=self._clock(),
        )
