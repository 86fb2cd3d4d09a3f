"""WatchRun over gRPC."""

import asyncio
from pathlib import Path

from corral.control.v1 import run_service_pb2 as pb
from corral.control.v1.run_service_pb2_grpc import RunServiceStub

from control_svc.inference.turns import TurnRequest
from svc_kit.errors.status import REQUEST_ID_KEY
from tests.support.control import run_control
from tests.support.response_client import make_model_parts
from tests.support.scripted_turns import ScriptedTurns, text_script
from tests.support.threads import ThreadClient, make_new_message


async def test_a_follower_after_the_newest_event_is_accepted_at_once(tmp_path: Path) -> None:
    """Before the next event, so that a client knows that it is connected."""
    gate = asyncio.Event()

    async def wait(_request: TurnRequest, _index: int) -> None:
        await gate.wait()

    model = make_model_parts(ScriptedTurns(lambda _: text_script("Hello"), before_token=wait))
    async with run_control(tmp_path, None, model=model) as control:
        assistant = await ThreadClient(control.client).create_assistant()
        stub = RunServiceStub(control.client.channel)
        request = pb.CreateThreadAndRunRequest(
            messages=[make_new_message("Hi")], run=pb.RunOptions(assistant_id=assistant.id)
        )
        run = (await stub.CreateThreadAndRun(request)).run
        newest = 0
        async for event in stub.WatchRun(
            pb.WatchRunRequest(thread_id=run.thread_id, run_id=run.id)
        ):
            newest = event.number
            if event.event.run_changed.what == "in_progress":
                break
        follow = pb.WatchRunRequest(thread_id=run.thread_id, run_id=run.id, after=newest)
        call = stub.WatchRun(follow)
        metadata = await call.initial_metadata()
        gate.set()
        numbers = [event.number async for event in call]

    assert REQUEST_ID_KEY in dict(metadata)
    assert numbers == list(range(newest + 1, newest + 1 + len(numbers)))
    assert numbers
