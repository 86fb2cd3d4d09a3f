"""Mappings of runs and steps to protos."""

from typing import Any, Final

from corral.control.v1 import run_pb2, run_service_pb2

from control_svc.assistants.model import NewThread
from control_svc.assistants.proto import NEW_MESSAGE, THREAD_SETTINGS
from control_svc.inference.generation_options import OPTIONS
from control_svc.runs.model import NewRun, Run, RunSettings
from control_svc.runs.steps import (
    FileSearchStepCall,
    FunctionStepCall,
    MessageCreation,
    RunStep,
    StepCall,
    ToolCalls,
)
from control_svc.tools.proto import FORMAT, RESOURCES, TOOL
from control_svc.vector_stores.proto import NEW_STORE
from svc_kit.rpc.message_mapper import MessageMapper, OneofMapper

_RENAMED: Final = {
    "resources": "tool_resources",
    "format": "response_format",
    "choice": "tool_choice",
    "parallel_calls": "parallel_tool_calls",
}
NEW_RUN: Final = MessageMapper(
    NewRun,
    run_service_pb2.RunOptions,
    renamed=_RENAMED,
    uses=[NEW_MESSAGE, TOOL, RESOURCES, OPTIONS, FORMAT],
    only_domain=["request_id"],
)
NEW_RUN_THREAD: Final = MessageMapper(
    NewThread,
    run_service_pb2.CreateThreadAndRunRequest,
    renamed={"settings": "thread", "new_stores": "new_vector_stores"},
    uses=[THREAD_SETTINGS, NEW_MESSAGE, NEW_STORE],
    only_domain=["request_id"],
    only_message=["run", "request_id"],
)
RUN: Final = MessageMapper(
    Run,
    run_pb2.Run,
    renamed={"calls": "required_calls"},
    flat={
        "settings": MessageMapper(
            RunSettings,
            run_pb2.Run,
            renamed=_RENAMED,
            uses=[TOOL, OPTIONS, FORMAT],
            only_domain=["resources", "seed"],
            is_part=True,
        )
    },
    only_domain=["first_position", "num_turns", "num_hosted_calls", "awaits_client"],
)


class _StepCallMapper(OneofMapper):
    """Each kind of call has a `call_id`, which is beside the oneof."""

    def arguments(self, value: Any) -> dict[str, Any]:
        return {"call_id": value.call_id, **super().arguments(value)}


_CALL: Final = _StepCallMapper(
    StepCall,
    run_pb2.StepCall,
    uses=[
        MessageMapper(FunctionStepCall, run_pb2.FunctionStepCall, only_domain=["call_id"]),
        MessageMapper(FileSearchStepCall, run_pb2.FileSearchStepCall, only_domain=["call_id"]),
    ],
)
STEP: Final = MessageMapper(
    RunStep,
    run_pb2.RunStep,
    uses=[
        OneofMapper(
            MessageCreation | ToolCalls,
            run_pb2.RunStep,
            fields={MessageCreation: "message_id", ToolCalls: "tool_calls"},
            uses=[_CALL],
        )
    ],
)
