"""Tests of what the slices add to the service."""

from pathlib import Path

import pytest
from corral.control.v1 import thread_service_pb2 as pb

from control_svc.assistants.model import Thread
from control_svc.assistants.proto import THREAD
from control_svc.base.ids import IdSource
from control_svc.base.pagination import PageTokens
from control_svc.base.resource import Methods, build_service
from control_svc.db.engine import Database
from tests.support.control import SetClock, run_control

STEPS = [
    "delete_expired_files",
    "expire_uploads",
    "expedite_late_batches",
    "delete_ended_lines",
    "clear_expired_store",
    "remove_deleted_files",
    "delete_unused_chunks",
    "delete_streams_ended_before.<locals>.delete_events",
    "delete_expired_responses.<locals>.delete_responses",
    "delete_ended_jobs",
    "delete_old_requests",
    "delete_old_reports",
    "delete_unused_shares",
]


async def test_the_sweeper_runs_the_steps_of_the_slices_in_their_order(tmp_path: Path) -> None:
    """A step that fails ends its round, so that the order decides what is still deleted."""
    async with run_control(tmp_path) as running:
        steps = running.control.sweeper.steps

    assert [getattr(step, "__qualname__", "") for step in steps] == STEPS


async def test_dead_jobs_of_every_kind_can_be_retried(tmp_path: Path) -> None:
    """There is a retry hook for each kind of job that a slice handles."""
    async with run_control(tmp_path) as running:
        slices = running.control.slices

    kinds = {handler.kind for each in slices for handler in each.handlers}
    assert kinds == {kind for each in slices for kind in each.retries}
    assert len(kinds) == 7


class ThreadMethods(Methods[Thread]):
    service = pb.DESCRIPTOR.services_by_name["ThreadService"]
    message, noun, plural = THREAD, "a thread", "threads"


async def test_a_service_without_one_of_its_methods_is_refused(database: Database) -> None:
    """When it is composed, by the name of the RPC."""
    clock = SetClock()
    methods = ThreadMethods(database.transactions, IdSource(clock), PageTokens(b"key"), clock)

    with pytest.raises(TypeError, match="ThreadMethods has no method CreateThread"):
        build_service(methods)
