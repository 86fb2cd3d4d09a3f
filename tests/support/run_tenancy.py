"""What the tenancy test knows of runs. There is no model: one run was cancelled before its work
began, another one is never done."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from corral.control.v1 import run_service_pb2 as pb
from corral.control.v1.run_service_pb2_grpc import RunServiceStub
from google.protobuf.message import Message

from svc_kit.rpc_client import translate_errors
from tests.support.control import Client
from tests.support.threads import ThreadClient, saying

Ids = Mapping[str, str]
Call = Callable[[Ids], Sequence[Message]]

RUN_ANSWERS = {
    "CreateRun": "FailedPrecondition",
    "CancelRun": "FailedPrecondition",
    "SubmitToolOutputs": "FailedPrecondition",
    "GetRunStep": "NotFound",
}
"""What a good call is answered with where there is no model: the run never gets that far."""


async def create_run(client: Client, canary: str) -> Ids:
    """A run that has ended, and a thread with one that has not."""
    assistant = await ThreadClient(client).new_assistant(name=canary)
    stub = RunServiceStub(client.channel)
    options = pb.RunOptions(
        assistant_id=assistant.id, instructions=canary, metadata={"canary": canary}
    )
    asked = pb.CreateThreadAndRunRequest(run=options, messages=[saying(canary)])
    with translate_errors():
        ended = (await stub.CreateThreadAndRun(asked, metadata=client.metadata)).run
        named: dict[str, Any] = {"thread_id": ended.thread_id, "run_id": ended.id}
        await stub.CancelRun(pb.CancelRunRequest(**named), metadata=client.metadata)
        async for _ in stub.WatchRun(pb.WatchRunRequest(**named), metadata=client.metadata):
            pass
        busy = (await stub.CreateThreadAndRun(asked, metadata=client.metadata)).run
    return {
        "run": ended.id,
        "run_thread": ended.thread_id,
        "run_assistant": assistant.id,
        "busy_thread": busy.thread_id,
    }


async def observe_run(client: Client, ids: Ids) -> object:
    """The run that has ended, its steps and the list it stands in."""
    stub = RunServiceStub(client.channel)
    thread: dict[str, Any] = {"thread_id": ids["run_thread"]}
    named = {**thread, "run_id": ids["run"]}
    with translate_errors():
        return [
            await stub.GetRun(pb.GetRunRequest(**named), metadata=client.metadata),
            await stub.ListRuns(pb.ListRunsRequest(**thread), metadata=client.metadata),
            await stub.ListRunSteps(pb.ListRunStepsRequest(**named), metadata=client.metadata),
        ]


def run_calls() -> dict[str, Call]:
    """A good call of each RPC of RunService."""
    return {
        "CreateRun": lambda ids: [
            pb.CreateRunRequest(
                thread_id=ids["busy_thread"],
                run=pb.RunOptions(assistant_id=ids["run_assistant"]),
            )
        ],
        "CreateThreadAndRun": lambda ids: [
            pb.CreateThreadAndRunRequest(run=pb.RunOptions(assistant_id=ids["run_assistant"]))
        ],
        "GetRun": lambda ids: [pb.GetRunRequest(**_named(ids))],
        "ListRuns": lambda ids: [pb.ListRunsRequest(thread_id=ids["run_thread"])],
        "UpdateRun": lambda ids: [pb.UpdateRunRequest(**_named(ids), metadata={"x": "y"})],
        "CancelRun": lambda ids: [pb.CancelRunRequest(**_named(ids))],
        "SubmitToolOutputs": lambda ids: [
            pb.SubmitToolOutputsRequest(
                **_named(ids), outputs=[pb.ToolOutput(call_id="call", output="x")]
            )
        ],
        "GetRunStep": lambda ids: [pb.GetRunStepRequest(**_named(ids), step_id="step")],
        "ListRunSteps": lambda ids: [pb.ListRunStepsRequest(**_named(ids))],
        "WatchRun": lambda ids: [pb.WatchRunRequest(**_named(ids))],
    }


def _named(ids: Ids) -> dict[str, Any]:
    return {"thread_id": ids["run_thread"], "run_id": ids["run"]}
