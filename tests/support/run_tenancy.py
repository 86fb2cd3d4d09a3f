"""Runs for the tenancy test: one has ended, another one waits for tool outputs."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from corral.control.v1 import run_pb2
from corral.control.v1 import run_service_pb2 as pb
from corral.control.v1.run_service_pb2_grpc import RunServiceStub
from corral.control.v1.tool_pb2 import FunctionTool, Tool
from google.protobuf.message import Message

from svc_kit.rpc.client import translate_errors
from tests.support.control import Client
from tests.support.threads import ThreadClient, make_new_message

Ids = Mapping[str, str]
Call = Callable[[Ids], Sequence[Message]]

RUN_ANSWERS = {
    "CreateRun": "FailedPrecondition",
    "CancelRun": "FailedPrecondition",
    "SubmitToolOutputs": "FailedPrecondition",
}
"""Errors of valid requests, because the thread is busy or the run has ended."""


async def create_run(client: Client, canary: str) -> Ids:
    """Create a run that ends, and one that waits for the output of a function."""
    assistant = await ThreadClient(client).create_assistant(name=canary)
    options = pb.RunOptions(
        assistant_id=assistant.id, instructions=canary, metadata={"canary": canary}
    )
    ended = await _execute(client, options, canary)
    options.tools.tools.append(Tool(function=FunctionTool(name=canary)))
    busy = await _execute(client, options, canary)
    request = pb.ListRunStepsRequest(thread_id=ended.thread_id, run_id=ended.id)
    with translate_errors():
        steps = await RunServiceStub(client.channel).ListRunSteps(request, metadata=client.metadata)
    return {
        "run": ended.id,
        "run_thread": ended.thread_id,
        "run_step": steps.steps[0].id,
        "run_assistant": assistant.id,
        "busy_thread": busy.thread_id,
    }


async def _execute(client: Client, options: pb.RunOptions, text: str) -> run_pb2.Run:
    """Create a run with its thread, and wait until it ends or waits for outputs."""
    stub = RunServiceStub(client.channel)
    request = pb.CreateThreadAndRunRequest(run=options, messages=[make_new_message(text)])
    with translate_errors():
        run = (await stub.CreateThreadAndRun(request, metadata=client.metadata)).run
        watch = pb.WatchRunRequest(thread_id=run.thread_id, run_id=run.id)
        async for _ in stub.WatchRun(watch, metadata=client.metadata):
            pass
    return run


async def observe_run(client: Client, ids: Ids) -> object:
    """Read the ended run, its steps and the list of runs."""
    stub = RunServiceStub(client.channel)
    list_runs = pb.ListRunsRequest(thread_id=ids["run_thread"])
    with translate_errors():
        return [
            await stub.GetRun(pb.GetRunRequest(**_run(ids)), metadata=client.metadata),
            await stub.ListRuns(list_runs, metadata=client.metadata),
            await stub.ListRunSteps(pb.ListRunStepsRequest(**_run(ids)), metadata=client.metadata),
        ]


def run_calls() -> dict[str, Call]:
    """A valid request for each RPC of RunService."""
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
        "GetRun": lambda ids: [pb.GetRunRequest(**_run(ids))],
        "ListRuns": lambda ids: [pb.ListRunsRequest(thread_id=ids["run_thread"])],
        "UpdateRun": lambda ids: [pb.UpdateRunRequest(**_run(ids), metadata={"x": "y"})],
        "CancelRun": lambda ids: [pb.CancelRunRequest(**_run(ids))],
        "SubmitToolOutputs": lambda ids: [
            pb.SubmitToolOutputsRequest(
                **_run(ids), outputs=[pb.ToolOutput(call_id="call", output="x")]
            )
        ],
        "GetRunStep": lambda ids: [pb.GetRunStepRequest(**_run(ids), step_id=ids["run_step"])],
        "ListRunSteps": lambda ids: [pb.ListRunStepsRequest(**_run(ids))],
        "WatchRun": lambda ids: [pb.WatchRunRequest(**_run(ids))],
    }


def _run(ids: Ids) -> dict[str, Any]:
    return {"thread_id": ids["run_thread"], "run_id": ids["run"]}
