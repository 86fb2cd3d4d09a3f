"""What the tenancy test knows of runs: one has ended, another one waits for its caller for ever."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from corral.control.v1 import run_pb2
from corral.control.v1 import run_service_pb2 as pb
from corral.control.v1.run_service_pb2_grpc import RunServiceStub
from corral.control.v1.tool_pb2 import FunctionTool, Tool
from google.protobuf.message import Message

from svc_kit.rpc.client import translate_errors
from tests.support.control import Client
from tests.support.threads import ThreadClient, saying

Ids = Mapping[str, str]
Call = Callable[[Ids], Sequence[Message]]

RUN_ANSWERS = {
    "CreateRun": "FailedPrecondition",
    "CancelRun": "FailedPrecondition",
    "SubmitToolOutputs": "FailedPrecondition",
}
"""What a good call is answered with: its thread is busy, or its run has ended."""


async def create_run(client: Client, canary: str) -> Ids:
    """A run that has ended, and a thread with one that waits for the output of a function."""
    assistant = await ThreadClient(client).new_assistant(name=canary)
    options = pb.RunOptions(
        assistant_id=assistant.id, instructions=canary, metadata={"canary": canary}
    )
    ended = await _carried_out(client, options, canary)
    options.tools.tools.append(Tool(function=FunctionTool(name=canary)))
    busy = await _carried_out(client, options, canary)
    named: dict[str, Any] = {"thread_id": ended.thread_id, "run_id": ended.id}
    with translate_errors():
        steps = await RunServiceStub(client.channel).ListRunSteps(
            pb.ListRunStepsRequest(**named), metadata=client.metadata
        )
    return {
        "run": ended.id,
        "run_thread": ended.thread_id,
        "run_step": steps.steps[0].id,
        "run_assistant": assistant.id,
        "busy_thread": busy.thread_id,
    }


async def _carried_out(client: Client, options: pb.RunOptions, text: str) -> run_pb2.Run:
    """A run on a thread of its own that nobody works on any more."""
    stub = RunServiceStub(client.channel)
    asked = pb.CreateThreadAndRunRequest(run=options, messages=[saying(text)])
    with translate_errors():
        run = (await stub.CreateThreadAndRun(asked, metadata=client.metadata)).run
        named: dict[str, Any] = {"thread_id": run.thread_id, "run_id": run.id}
        async for _ in stub.WatchRun(pb.WatchRunRequest(**named), metadata=client.metadata):
            pass
    return run


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
        "GetRunStep": lambda ids: [pb.GetRunStepRequest(**_named(ids), step_id=ids["run_step"])],
        "ListRunSteps": lambda ids: [pb.ListRunStepsRequest(**_named(ids))],
        "WatchRun": lambda ids: [pb.WatchRunRequest(**_named(ids))],
    }


def _named(ids: Ids) -> dict[str, Any]:
    return {"thread_id": ids["run_thread"], "run_id": ids["run"]}
