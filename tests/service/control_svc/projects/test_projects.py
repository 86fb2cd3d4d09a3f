"""Projects, with several control processes on the same database."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from corral.control.v1.project_service_pb2 import GetProjectRequest

from control_svc.base.pagination import PageTokens
from control_svc.db.engine import Database, open_database
from control_svc.projects.projects import ProjectRow, Projects
from tests.support.control import SetClock
from tests.support.jobs import open_test_database


def make_projects(database: Database) -> Projects:
    return Projects(database.across_projects, PageTokens(b"secret"), SetClock())


async def test_two_processes_create_the_default_project(tmp_path: Path, postgres_url: str) -> None:
    """The other process commits after this one has queried the project; both succeed."""

    def prepare_elsewhere() -> None:
        async def prepare() -> None:
            async with open_database(postgres_url, tmp_path / "other") as other:
                await make_projects(other).prepare()

        thread = threading.Thread(target=asyncio.run, args=(prepare(),))
        thread.start()
        thread.join()

    async with open_test_database(tmp_path, postgres_url) as database:
        pending = [prepare_elsewhere]

        def after_query(*arguments: Any) -> None:
            if ProjectRow.__tablename__ in arguments[2] and pending:
                pending.pop()()

        sa.event.listen(database.writer.sync_engine, "after_cursor_execute", after_query)
        await make_projects(database).prepare()

        default = await make_projects(database).GetProject(GetProjectRequest(project_id="default"))
        assert default.display_name == "default"
