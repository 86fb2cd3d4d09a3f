"""Snapshot commands in flight, a future for each."""

import asyncio
from collections.abc import Callable
from itertools import count
from typing import overload

from inference_svc.engine.request import (
    Command,
    DropCachedPrefixes,
    FileCommand,
    RestoreSnapshot,
    SaveSnapshot,
)
from inference_svc.engine_client.messages import SnapshotDone
from inference_svc.snapshots.snapshot import Snapshot
from inference_svc.snapshots.store import FolderUse
from svc_kit.errors import DomainError


class SnapshotTracker:
    """The commands that are not answered yet, and what the folder held with the last answer. `send`
    reaches the engine, where `check_up` raises nothing."""

    def __init__(self, send: Callable[[Command], None], check_up: Callable[[], None]) -> None:
        self.use = FolderUse(0, 0)
        self._send = send
        self._check_up = check_up
        self._ids = count()
        self._waiting: dict[int, asyncio.Future[Snapshot | int]] = {}

    @overload
    async def run(self, command: SaveSnapshot | RestoreSnapshot) -> Snapshot: ...

    @overload
    async def run(self, command: DropCachedPrefixes) -> int: ...

    async def run(self, command: FileCommand) -> Snapshot | int:
        """What the engine answers; the job's id is given here. Raises `EngineRestarting`, or the
        `DomainError` that the engine answers with.

        Who stops waiting stops nothing: a file is whole or not there.
        """
        self._check_up()
        job_id = next(self._ids)
        done: asyncio.Future[Snapshot | int] = asyncio.get_running_loop().create_future()
        self._waiting[job_id] = done
        numbered: FileCommand = command._replace(job_id=job_id)
        self._send(numbered)
        try:
            return await done
        finally:
            del self._waiting[job_id]

    def deliver(self, answer: SnapshotDone) -> None:
        """Take an answer of the engine."""
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
        """End everything; the engine is gone."""
        for done in self._waiting.values():
            if not done.done():
                done.set_exception(error)
