"""Streams of events: their writers and their followers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

from control_svc.config import ControlSettings
from control_svc.storage.database import Database
from control_svc.usecases.stream_committing import GroupCommitter
from control_svc.usecases.stream_following import GroupReader, StreamFollowers
from control_svc.usecases.stream_tails import Tails
from control_svc.usecases.streaming import Followers, StreamWriters
from svc_kit.metrics import StreamMetrics


@dataclass(frozen=True)
class Streams:
    """What writes and reads the streams of a process."""

    writers: StreamWriters
    followers: Followers


@asynccontextmanager
async def streaming(
    settings: ControlSettings, database: Database, metrics: StreamMetrics
) -> AsyncIterator[Streams]:
    """Streams that are committed and read meanwhile."""
    tails = Tails()
    committer = GroupCommitter(
        database.transactions, tails, metrics, lease=timedelta(seconds=settings.jobs.lease_s)
    )
    reader = GroupReader(database.transactions, metrics)
    followers = StreamFollowers(
        reader, tails, database.notices, metrics, settings.jobs.poll_interval_s
    )
    running = [asyncio.create_task(committer.run()), asyncio.create_task(reader.run())]
    try:
        yield Streams(committer, followers)
    finally:
        for task in running:
            task.cancel()
        await asyncio.wait(running)
