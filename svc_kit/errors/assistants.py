"""Errors of assistants, threads, messages and runs."""

from svc_kit.errors.kinds import FailedPrecondition, InvalidArgument, NotFound


class ToolOutputsIncomplete(InvalidArgument):
    """Expected tool outputs for call_ids [{expected}], got [{got}]."""

    reason = "TOOL_OUTPUTS_INCOMPLETE"
    field: str
    expected: str
    got: str


class ThreadBusy(FailedPrecondition):
    """Can't {action} {thread} while a run {run} is active."""

    reason = "THREAD_BUSY"
    thread: str
    run: str
    action: str
    """ "add messages to", "change messages of", "delete messages of", "delete" or "migrate"."""


class RunActive(FailedPrecondition):
    """Thread {thread} already has an active run {run}."""

    reason = "RUN_ACTIVE"
    thread: str
    run: str


class RunNotCancellable(FailedPrecondition):
    """Cannot cancel run with status '{state}'."""

    reason = "RUN_NOT_CANCELLABLE"
    run: str
    state: str


class ToolOutputsNotAccepted(FailedPrecondition):
    """Runs in status "{state}" do not accept tool outputs."""

    reason = "TOOL_OUTPUTS_NOT_ACCEPTED"
    run: str
    state: str


class AssistantNotFound(NotFound):
    """No assistant found with id '{assistant}'."""

    reason = "ASSISTANT_NOT_FOUND"
    assistant: str


class ThreadNotFound(NotFound):
    """No thread found with id '{thread}'."""

    reason = "THREAD_NOT_FOUND"
    thread: str


class MessageNotFound(NotFound):
    """No message found with id '{message_id}'."""

    reason = "MESSAGE_NOT_FOUND"
    message_id: str


class RunNotFound(NotFound):
    """No run found with id '{run}'."""

    reason = "RUN_NOT_FOUND"
    run: str


class RunStepNotFound(NotFound):
    """No run step found with id '{step}'."""

    reason = "RUN_STEP_NOT_FOUND"
    step: str
