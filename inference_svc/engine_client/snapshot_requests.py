"""Tracks pending commands that are not requests, with a future for each."""

import asyncio
from collections.abc import Callable
from itertools import count
from typing import overload

from inference_svc.engine.request import (
    ArchivePrefixes,
    Command,
    DropCachedPrefixes,
    FileCommand,
    Flush,
    RestoreSnapshot,
    SaveSnapshot,
    ShareCores,
)
from inference_svc.engine_client.messages import SnapshotDone
from inference_svc.snapshots.snapshot import Snapshot
from inference_svc.snapshots.store import FolderUsage
from svc_kit.errors import DomainError

UNSET_ID = -1
"""The id of a command before `SnapshotTracker.run` numbers it."""


class SnapshotTracker:
    """Commands without an answer; `use` is the usage of the snapshot folder as of the last
    answer. `check_open` raises if the engine is down."""

    def __init__(self, send: Callable[[Command], None], check_open: Callable[[], None]) -> None:
        self.use = FolderUsage(0, 0)
        self._send = send
        self._check_open = check_open
        self._ids = count()
        self._waiting: dict[int, asyncio.Future[Snapshot | int]] = {}

    @overload
    async def run(self, command: SaveSnapshot | RestoreSnapshot) -> Snapshot: ...

    @overload
    async def run(
        self, command: DropCachedPrefixes | ArchivePrefixes | Flush | ShareCores
    ) -> int: ...

    async def run(self, command: FileCommand | Flush | ShareCores) -> Snapshot | int:
        """Send a command with a new job id and return the answer. Raises `EngineRestarting`, or the
        `DomainError` of the answer.

        Cancelling the call does not cancel the command.
        """
        self._check_open()
        job_id = next(self._ids)
        done: asyncio.Future[Snapshot | int] = asyncio.get_running_loop().create_future()
        self._waiting[job_id] = done
        numbered: FileCommand | Flush | ShareCores = command._replace(job_id=job_id)
        self._send(numbered)
        try:
            return await done
        finally:
            del self._waiting[job_id]

    def deliver(self, answer: SnapshotDone) -> None:
        """Complete the command that this answers."""
        if answer.use is not None:
            self.use = answer.use
        done = self._waiting.get(answer.job_id)
        if done is None or done.done():
            return
        if isinstance(answer.outcome, DomainError):
            done.set_exception(answer.outcome)
        else:
            done.set_result(answer.outcome)

    def fail_all(self, error: DomainError) -> None:
        """Fail all commands, because the engine has ended."""
        for done in self._waiting.values():
            if not done.done():
                done.set_exception(error)
