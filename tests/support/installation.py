"""A control service in this process with its own folder of blobs, and the commands for its data."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from control_svc.app import build, upgrade_database
from control_svc.config import ControlSettings
from control_svc.core import data_folder, database_url
from control_svc.db.engine import Database, open_database
from corral_cli.__main__ import cli
from svc_kit.rpc.client import open_channel
from tests.support.control import Client
from tests.support.jobs import create_sqlite_database
from tests.support.sandbox_jobs import InlineJobs


@dataclass(frozen=True)
class Installation:
    settings: ControlSettings

    @classmethod
    async def make(cls, folder: Path, url: str | None) -> "Installation":
        settings = ControlSettings(
            listen="127.0.0.1:0", management_listen=None, data_dir=folder, database_url=url
        )
        if url is None:
            await create_sqlite_database(data_folder(settings))
        await upgrade_database(settings)
        return cls(settings)

    @property
    def blobs(self) -> Path:
        return data_folder(self.settings) / "blobs"

    @asynccontextmanager
    async def run(self) -> AsyncIterator[Client]:
        """Run its service; yield a client."""
        async with (
            build(self.settings, sandbox=InlineJobs()) as control,
            open_channel(str(control.server.address)) as channel,
        ):
            yield Client(channel)

    @asynccontextmanager
    async def database(self) -> AsyncIterator[Database]:
        """Open its database, while the service does not run."""
        url = database_url(self.settings)
        async with open_database(url, data_folder(self.settings)) as database:
            yield database

    async def corral(self, *arguments: str | Path) -> Result:
        """Run the command on it in a thread."""
        environment = {
            "CORRAL_CONTROL_DATA_DIR": str(self.settings.data_dir),
            "CORRAL_CONTROL_DATABASE_URL": database_url(self.settings),
            "CORRAL_TEST_EXAMPLES": None,  # it is no setting of Corral
        }
        words = [str(argument) for argument in arguments]
        return await asyncio.to_thread(CliRunner().invoke, cli, words, env=environment)

    async def report(self, *arguments: str | Path, code: int = 0) -> dict[str, Any]:
        """Run the command with `--json`; return the object that it prints."""
        result = await self.corral(*arguments, "--json")
        assert result.exit_code == code, (result.output, result.exception)
        printed: dict[str, Any] = json.loads(result.stdout)
        return printed
