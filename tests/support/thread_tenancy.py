"""Assistants, threads, messages and runs for the tenancy test. One run has ended, another one waits
for tool outputs."""

from collections.abc import Mapping, Sequence
from typing import Any

from corral.control.v1 import assistant_service_pb2, message_pb2, run_pb2, thread_service_pb2
from corral.control.v1 import run_service_pb2 as pb
from corral.control.v1.run_service_pb2_grpc import RunServiceStub
from corral.control.v1.tool_pb2 import FunctionTool, Tool

from svc_kit.rpc.client import translate_errors
from tests.support.control import Client
from tests.support.threads import ThreadClient, make_new_message

Ids = Mapping[str, str]
Calls = Mapping[str, Sequence[Mapping[str, Any]]]


async def create_assistant(client: Client, canary: str) -> Ids:
    assistant = await ThreadClient(client).create_assistant(name=canary, instructions=canary)
    return {"assistant": assistant.id}


async def observe_assistant(client: Client, ids: Ids) -> object:
    threads = ThreadClient(client)
    request = assistant_service_pb2.ListAssistantsRequest()
    listed = await threads.call(threads.assistants.ListAssistants, request)
    return await threads.get_assistant(ids["assistant"]), listed


async def create_thread(client: Client, canary: str) -> Ids:
    file = await client.create(canary.encode(), filename=canary)
    threads = ThreadClient(client)
    thread = await threads.create_thread(metadata={"canary": canary})
    attached = message_pb2.Attachment(file_id=file.id)
    message = await threads.add_message(thread.id, canary, attachments=[attached])
    return {"thread": thread.id, "message": message.id, "attached": file.id}


async def observe_thread(client: Client, ids: Ids) -> object:
    threads = ThreadClient(client)
    request = thread_service_pb2.ListThreadsRequest()
    listed = await threads.call(threads.threads.ListThreads, request)
    return await threads.get_thread(ids["thread"]), await threads.page(ids["thread"]), listed


_WITH_FILE = {
    "role": "ITEM_ROLE_USER",
    "parts": [{"text": {"text": "x"}}, {"image": {"file_id": "{attached}"}}],
    "attachments": [{"file_id": "{attached}"}],
}
THREAD_IDS = {"thread_id": "thread", "message_id": "message"}

ASSISTANT_CALLS: Calls = {
    "CreateAssistant": [{"assistant": {"model": "demo"}}],
    "UpdateAssistant": [{"assistant": {"id": "{assistant}", "name": "x"}}],
}
THREAD_CALLS: Calls = {
    "CreateThread": [{"messages": [_WITH_FILE]}],
    "UpdateThread": [{"thread": {"id": "{thread}", "metadata": {"x": "y"}}}],
}
MESSAGE_CALLS: Calls = {
    "CreateMessage": [{"thread_id": "{thread}", "message": _WITH_FILE}],
    "UpdateMessage": [
        {"message": {"id": "{message}", "thread_id": "{thread}", "metadata": {"x": "y"}}}
    ],
}


# ---- runs

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
    steps = await client.call(RunServiceStub(client.channel).ListRunSteps, request)
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
    run = (await client.call(stub.CreateThreadAndRun, request)).run
    watch = pb.WatchRunRequest(thread_id=run.thread_id, run_id=run.id)
    with translate_errors():
        async for _ in stub.WatchRun(watch, metadata=client.metadata):
            pass
    return run


async def observe_run(client: Client, ids: Ids) -> object:
    """Read the ended run, its steps and the list of runs."""
    stub = RunServiceStub(client.channel)
    run: Any = {"thread_id": ids["run_thread"], "run_id": ids["run"]}
    return [
        await client.call(stub.GetRun, pb.GetRunRequest(**run)),
        await client.call(stub.ListRuns, pb.ListRunsRequest(thread_id=ids["run_thread"])),
        await client.call(stub.ListRunSteps, pb.ListRunStepsRequest(**run)),
    ]


RUN_IDS = {"thread_id": "run_thread", "run_id": "run", "step_id": "run_step"}
_RUN = {"thread_id": "{run_thread}", "run_id": "{run}"}
_OPTIONS = {"assistant_id": "{run_assistant}"}

RUN_CALLS: Calls = {
    "CreateRun": [{"thread_id": "{busy_thread}", "run": _OPTIONS}],
    "CreateThreadAndRun": [{"run": _OPTIONS}],
    "UpdateRun": [{**_RUN, "metadata": {"x": "y"}}],
    "SubmitToolOutputs": [{**_RUN, "outputs": [{"call_id": "call", "output": "x"}]}],
}
