"""Runs and their steps as OpenAI's objects."""

from collections.abc import Sequence
from typing import Annotated, Final, Literal, NotRequired

from corral.control.v1 import item_pb2, run_pb2, tool_pb2
from typing_extensions import TypedDict

from dialects.openai.assistants.objects import FileSearchType
from dialects.openai.assistants.tools import (
    AnswerFormatObject,
    ToolObject,
    format_object,
    tool_objects,
)
from dialects.openai.errors import ASSISTANT_PARAMS
from dialects.openai.resources.vector_stores import TextChunk
from dialects.openai.shared.objects import (
    CachedTokens,
    ReasoningTokens,
    by_callers_names,
    incomplete_details,
)
from dialects.openai.shared.tools import TOOL_MODES, ToolMode
from dialects.shared.wire import From, declared, seconds, writer

RunStatus = Literal[
    "queued",
    "in_progress",
    "requires_action",
    "cancelling",
    "cancelled",
    "failed",
    "completed",
    "incomplete",
    "expired",
]
StepStatus = Literal["in_progress", "cancelled", "failed", "completed", "expired"]
_END_STATES: Final = frozenset(
    (
        *(run_pb2.Run.STATE_CANCELLED, run_pb2.Run.STATE_FAILED, run_pb2.Run.STATE_COMPLETED),
        *(run_pb2.Run.STATE_INCOMPLETE, run_pb2.Run.STATE_EXPIRED),
    )
)


def _ended(state: int) -> From:
    """The end time in the field of the state at the end, as in `failed_at`."""

    def read(owner: run_pb2.Run | run_pb2.RunStep) -> int | None:
        has_ended = owner.state == state and owner.HasField("end_time")
        return owner.end_time.seconds if has_ended else None

    return From(".", read)


class FunctionArguments(TypedDict):
    name: str
    arguments: Annotated[str, From("arguments_json")]


class RequiredCall(TypedDict):
    id: Annotated[str, From("call_id")]
    type: Literal["function"]
    function: Annotated[FunctionArguments, From(".")]


class RequiredOutputs(TypedDict):
    tool_calls: list[RequiredCall]


class RequiredAction(TypedDict):
    """What a run waits for."""

    type: Literal["submit_tool_outputs"]
    submit_tool_outputs: RequiredOutputs


_required_call = writer(item_pb2.FunctionCallItem, RequiredCall)


def _required_action(calls: Sequence[item_pb2.FunctionCallItem]) -> RequiredAction:
    tool_calls = [_required_call(call) for call in calls]
    return {"type": "submit_tool_outputs", "submit_tool_outputs": {"tool_calls": tool_calls}}


class RunError(TypedDict):
    """Why a run or a step failed."""

    code: str
    message: str


class IncompleteRun(TypedDict):
    """Why a run is incomplete."""

    reason: Literal["max_completion_tokens", "max_prompt_tokens"]


def _total_tokens(usage: run_pb2.RunUsage) -> int:
    return usage.prompt_tokens + usage.completion_tokens


class RunUsage(TypedDict):
    """The token counts of a run or a step."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: Annotated[int, From(".", _total_tokens)]
    prompt_token_details: Annotated[CachedTokens, From(".")]
    completion_tokens_details: Annotated[ReasoningTokens, From(".")]


_usage = writer(run_pb2.RunUsage, RunUsage)


def _run_usage(run: run_pb2.Run) -> RunUsage | None:
    return _usage(run.usage) if run.state in _END_STATES else None


def _step_usage(step: run_pb2.RunStep) -> RunUsage | None:
    return None if step.state == run_pb2.RunStep.STATE_IN_PROGRESS else _usage(step.usage)


def _truncation_type(truncation: run_pb2.RunTruncation) -> Literal["auto", "last_messages"]:
    return "last_messages" if truncation.HasField("last_messages") else "auto"


class TruncationStrategy(TypedDict):
    """Which messages a run may leave out."""

    type: Annotated[Literal["auto", "last_messages"], From(".", _truncation_type)]
    last_messages: int | None


class FunctionName(TypedDict):
    name: str


class FunctionChoice(TypedDict):
    """The function that a run must call."""

    type: Literal["function"]
    function: FunctionName


RunToolChoice = ToolMode | FunctionChoice | FileSearchType


def _choice(choice: tool_pb2.ToolSelection) -> RunToolChoice:
    if not choice.is_one or not choice.allowed_names:
        return TOOL_MODES[choice.mode]
    name = choice.allowed_names[0]
    if name == "file_search":
        return {"type": "file_search"}
    return {"type": "function", "function": {"name": name}}


class Run(TypedDict):
    id: str
    object: Literal["thread.run"]
    created_at: Annotated[int, seconds("create_time")]
    thread_id: str
    assistant_id: str
    status: Annotated[RunStatus, From("state")]
    required_action: Annotated[RequiredAction | None, From("required_calls", _required_action)]
    last_error: Annotated[RunError | None, From("error")]
    expires_at: Annotated[int | None, seconds("expire_time")]
    started_at: Annotated[int | None, seconds("start_time")]
    cancelled_at: Annotated[int | None, _ended(run_pb2.Run.STATE_CANCELLED)]
    failed_at: Annotated[int | None, _ended(run_pb2.Run.STATE_FAILED)]
    completed_at: Annotated[int | None, _ended(run_pb2.Run.STATE_COMPLETED)]
    incomplete_details: Annotated[IncompleteRun | None, From(".", incomplete_details)]
    model: str
    instructions: str
    tools: Annotated[list[ToolObject], From(write=tool_objects)]
    metadata: dict[str, str]
    usage: Annotated[RunUsage | None, From(".", _run_usage)]
    temperature: Annotated[float | None, From("options.sampling.temperature")]
    top_p: Annotated[float | None, From("options.sampling.top_p")]
    max_prompt_tokens: int | None
    max_completion_tokens: int | None
    truncation_strategy: Annotated[TruncationStrategy, From("truncation")]
    tool_choice: Annotated[RunToolChoice, From(write=_choice)]
    parallel_tool_calls: bool
    response_format: Annotated[AnswerFormatObject, From(".", format_object)]
    reasoning_effort: str | None
    ignored_parameters: NotRequired[Annotated[list[str], by_callers_names(ASSISTANT_PARAMS)]]


class CreatedMessage(TypedDict):
    """The message that a step writes."""

    message_id: str


class MessageCreation(TypedDict):
    """A step that writes a message."""

    type: Literal["message_creation"]
    message_creation: CreatedMessage


class StepSearchResult(TypedDict):
    """A file that a search found; its content only if it was asked for."""

    file_id: str
    file_name: str
    score: float
    content: NotRequired[list[TextChunk]]


class StepSearchResults(TypedDict):
    """What a search found."""

    results: list[StepSearchResult]


class StepFileSearch(TypedDict):
    id: str
    type: Literal["file_search"]
    file_search: StepSearchResults


class AnsweredFunction(FunctionArguments):
    output: str | None


class StepFunctionCall(TypedDict):
    id: Annotated[str, From("call_id")]
    type: Literal["function"]
    function: AnsweredFunction


class ToolCalls(TypedDict):
    type: Literal["tool_calls"]
    tool_calls: list[StepFunctionCall | StepFileSearch]


def _result(result: item_pb2.FileSearchResult) -> StepSearchResult:
    return {
        "file_id": result.file_id,
        "file_name": result.filename,
        "score": result.score,
        "content": [{"type": "text", "text": result.text}],
    }


_function_call = writer(run_pb2.StepCall, StepFunctionCall)


def _step_call(call: run_pb2.StepCall) -> StepFunctionCall | StepFileSearch:
    if call.WhichOneof("call") != "file_search":
        return _function_call(call)
    results = [_result(each) for each in call.file_search.results]
    return {"id": call.call_id, "type": "file_search", "file_search": {"results": results}}


def _step_type(step: run_pb2.RunStep) -> Literal["message_creation", "tool_calls"]:
    return "message_creation" if step.message_id else "tool_calls"


def _step_details(step: run_pb2.RunStep) -> MessageCreation | ToolCalls:
    if step.message_id:
        return {"type": "message_creation", "message_creation": {"message_id": step.message_id}}
    return {
        "type": "tool_calls",
        "tool_calls": [_step_call(call) for call in step.tool_calls.calls],
    }


class RunStep(TypedDict):
    id: str
    object: Literal["thread.run.step"]
    created_at: Annotated[int, seconds("create_time")]
    run_id: str
    assistant_id: str
    thread_id: str
    type: Annotated[Literal["message_creation", "tool_calls"], From(".", _step_type)]
    status: Annotated[StepStatus, From("state")]
    cancelled_at: Annotated[int | None, _ended(run_pb2.RunStep.STATE_CANCELLED)]
    completed_at: Annotated[int | None, _ended(run_pb2.RunStep.STATE_COMPLETED)]
    expired_at: Annotated[int | None, _ended(run_pb2.RunStep.STATE_EXPIRED)]
    failed_at: Annotated[int | None, _ended(run_pb2.RunStep.STATE_FAILED)]
    last_error: Annotated[RunError | None, From("error")]
    step_details: Annotated[MessageCreation | ToolCalls, From(".", _step_details)]
    usage: Annotated[RunUsage | None, From(".", _step_usage)]
    metadata: Annotated[dict[str, str], From(".", lambda _: {})]


run_object = writer(run_pb2.Run, Run)
_step_with_results = writer(run_pb2.RunStep, RunStep)


@declared
def step_object(step: run_pb2.RunStep, *, with_results: bool = False) -> RunStep:
    """A step. `with_results` includes the content of search results."""
    written = _step_with_results(step)
    details = written["step_details"]
    if not with_results and details["type"] == "tool_calls":
        for call in details["tool_calls"]:
            if call["type"] == "file_search":
                for result in call["file_search"]["results"]:
                    del result["content"]
    return written


def poll_after_ms(run: Run, now_s: float) -> int:
    """The suggested polling interval: 5 % of the run's age, between 100 and 1000 ms."""
    age_ms = max(0.0, now_s - run["created_at"]) * 1000
    return int(min(1000.0, max(100.0, age_ms / 20)))
