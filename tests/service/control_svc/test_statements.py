"""The watch over the statements of all tests here finds those that reach other projects, and texts
that are too long."""

from contextlib import suppress

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from control_svc.db.engine import Database
from control_svc.db.transaction import (
    CrossProjectQueries,
    InstallationQueries,
    Queries,
    Transaction,
)
from control_svc.files.tables import FileRow
from control_svc.jobs.queries import JobRow


class CarelessQueries(Queries):
    """Queries that the types do not refuse."""

    async def every(self) -> None:
        """Read the rows of all projects."""
        await self._session.execute(sa.select(FileRow))

    async def of_another(self) -> None:
        await self._session.execute(sa.select(FileRow).where(FileRow.project == "other"))

    async def joined(self) -> None:
        """Read own rows with those of another project."""
        jobs = sa.select(JobRow.id).where(JobRow.project == "other")
        await self._session.execute(self._select(FileRow, FileRow.id.in_(jobs)))

    async def written(self) -> None:
        """Read the rows of another project by plain SQL."""
        await self._session.execute(
            sa.text("SELECT 1 FROM files WHERE project = :project"), {"project": "other"}
        )

    async def own(self) -> None:
        """Read the project's own rows, and those with own keys."""
        await self._session.execute(self._select(FileRow))
        await self._session.get(FileRow, (self._project, "file-1"))


class SharedQueries(InstallationQueries):
    """Queries that may read no rows of projects."""

    async def every(self) -> None:
        """Read the rows of all projects."""
        await self._session.execute(sa.select(FileRow))


class OperatorQueries(CrossProjectQueries):
    """Queries that may read all rows."""

    async def every(self) -> None:
        """Read the rows of all projects."""
        await self._session.execute(sa.select(FileRow))


async def test_statements_that_reach_other_projects_are_found(
    database: Database, statements: list[str]
) -> None:
    """Without a condition, with another's, and in queries that have nothing to do with projects;
    not own ones, and not those across projects.
    """

    async def reach(tx: Transaction) -> None:
        queries = CarelessQueries(tx)
        for query in (queries.every, queries.of_another, queries.joined, queries.written):
            await query()
        await SharedQueries(tx).every()
        await tx.session.execute(sa.select(JobRow))
        await queries.own()

    await database.transactions.of("p").read(reach)
    await database.across_projects.read(lambda tx: OperatorQueries(tx).every())

    found = [each.partition(":")[0] for each in statements]
    statements.clear()
    assert found == [
        "of ['p'], names []",
        "of ['p'], names ['other']",
        "of ['p'], names ['other', 'p']",
        "of ['p'], names ['other']",
        "of [], names []",
        "of ['p'], names []",
    ]


async def test_texts_that_are_longer_than_their_columns_are_found(
    database: Database, statements: list[str]
) -> None:
    """On SQLite, too, which would store them."""

    async def lengthen(tx: Transaction) -> None:
        rows = sa.update(JobRow).where(JobRow.project == "p")
        await tx.session.execute(rows.values(subject="x" * 65, kind="y"))

    with suppress(DBAPIError):  # PostgreSQL refuses it itself
        await database.transactions.of("p").write(lengthen)

    found = [each.partition(":")[0] for each in statements]
    statements.clear()
    assert found == ["jobs.subject has 64 characters, not 65"]
