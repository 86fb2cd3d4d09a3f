"""Errors of responses and conversations."""

from svc_kit.errors.kinds import FailedPrecondition, InvalidArgument, NotFound


class PreviousResponseNotFound(InvalidArgument):
    """Previous response with id '{response}' not found."""

    response: str
    field: str = "previous_response_id"


class ToolCallMissing(InvalidArgument):
    """No tool call found for {kind} call output with call_id {call}."""

    call: str
    kind: str = "function"
    """Or "custom tool"."""
    field: str = "input"


class ToolOutputMissing(InvalidArgument):
    """No tool output found for function call {call}."""

    call: str
    field: str = "input"


class SealInvalid(InvalidArgument):
    """The encrypted content of '{field}' could not be verified. Send it unchanged, to the server
    and project that created it."""

    field: str


class WebsocketConnectionLimitReached(FailedPrecondition):
    """The WebSocket connection reached its limit of {limit_s} seconds. Open a new connection."""

    limit_s: int


class ConversationLocked(FailedPrecondition):
    """The conversation '{conversation}' is locked by the response '{response}'. Retry when that
    response has ended."""

    conversation: str
    response: str
    field: str = "conversation"


class ResponseNotCancellable(FailedPrecondition):
    """Cannot cancel a synchronous response."""

    response: str


class PreviousResponseUnfinished(FailedPrecondition):
    """The previous response '{response}' is {state}. Retry when it has completed."""

    response: str
    state: str
    """"queued" or "in_progress"."""
    field: str = "previous_response_id"


class ConversationNotFound(NotFound):
    """Conversation with id '{conversation}' not found."""

    conversation: str
    field: str = "conversation_id"


class ItemNotFound(NotFound):
    """Item with id '{item}' not found."""

    item: str
    field: str = "item_id"


class ResponseNotFound(NotFound):
    """Response with id '{response}' not found."""

    response: str
    field: str = "response_id"
