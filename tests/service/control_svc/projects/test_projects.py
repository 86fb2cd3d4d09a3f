"""Projects in the database, with other control processes beside this one."""

import asyncio
import threading
from pathlib import Path
from typing import Any

from sqlalchemy import event

from control_svc.base.pagination import PageTokens
from control_svc.db.engine import Database, open_database
from control_svc.projects.projects import ProjectRow, Projects
from tests.support.control import SetClock
from tests.support.jobs import a_database


def projects_of(database: Database) -> Projects:
    """The service of projects over a database."""
    return Projects(database.transactions, PageTokens(b"secret"), SetClock())


async def test_two_processes_create_the_default_project_at_once(
    tmp_path: Path, postgres_url: str
) -> None:
    """The other process commits right after this one looked for the project: both start."""

    def prepare_elsewhere() -> None:
        async def prepare() -> None:
            async with open_database(postgres_url, tmp_path / "other") as other:
                await projects_of(other).prepare()

        thread = threading.Thread(target=asyncio.run, args=(prepare(),))
        thread.start()
        thread.join()

    async with a_database(tmp_path, postgres_url) as database:
        engine = database.writer.sync_engine

        waiting = [prepare_elsewhere]

        def after_query(*arguments: Any) -> None:
            if ProjectRow.__tablename__ in arguments[2] and waiting:
                waiting.pop()()

        event.listen(engine, "after_cursor_execute", after_query)
        await projects_of(database).prepare()

        default = await projects_of(database).get("default")
        assert default.display_name == "default"
