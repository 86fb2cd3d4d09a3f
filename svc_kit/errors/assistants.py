"""Errors of assistants, threads, messages and runs."""

from svc_kit.errors.kinds import FailedPrecondition, InvalidArgument, NotFound


class ToolOutputsIncomplete(InvalidArgument):
    """Expected tool outputs for call_ids [{expected}], got [{got}]."""

    field: str
    expected: str
    got: str


class ThreadBusy(FailedPrecondition):
    """Can't {action} {thread} while a run {run} is active."""

    thread: str
    run: str
    action: str
    """ "add messages to", "change messages of", "delete messages of", "delete" or "migrate"."""


class RunActive(FailedPrecondition):
    """Thread {thread} already has an active run {run}."""

    thread: str
    run: str


class RunNotCancellable(FailedPrecondition):
    """Cannot cancel run with status '{state}'."""

    run: str
    state: str


class ToolOutputsNotAccepted(FailedPrecondition):
    """Runs in status "{state}" do not accept tool outputs."""

    run: str
    state: str


class AssistantNotFound(NotFound):
    """No assistant found with id '{assistant}'."""

    assistant: str


class ThreadNotFound(NotFound):
    """No thread found with id '{thread}'."""

    thread: str


class MessageNotFound(NotFound):
    """No message found with id '{message_id}'."""

    message_id: str


class RunNotFound(NotFound):
    """No run found with id '{run}'."""

    run: str


class RunStepNotFound(NotFound):
    """No run step found with id '{step}'."""

    step: str
