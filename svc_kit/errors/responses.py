"""Errors of responses and conversations."""

from svc_kit.errors.kinds import FailedPrecondition, InvalidArgument, NotFound


class PreviousResponseNotFound(InvalidArgument):
    """Previous response with id '{response}' not found."""

    reason = "PREVIOUS_RESPONSE_NOT_FOUND"
    response: str
    field: str = "previous_response_id"
    """What named the response."""


class ToolCallMissing(InvalidArgument):
    """No tool call found for function call output with call_id {call}."""

    reason = "TOOL_CALL_MISSING"
    call: str
    field: str = "input"
    """What holds the output."""


class ToolOutputMissing(InvalidArgument):
    """No tool output found for function call {call}."""

    reason = "TOOL_OUTPUT_MISSING"
    call: str
    field: str = "input"
    """What ought to hold the output."""


class SealInvalid(InvalidArgument):
    """The encrypted content of '{field}' could not be verified: it must come from this server and
    project, unchanged."""

    reason = "SEAL_INVALID"
    field: str


class WebsocketConnectionLimitReached(FailedPrecondition):
    """The WebSocket has reached its limit of {limit_s} seconds. Open a new one to continue."""

    reason = "WEBSOCKET_CONNECTION_LIMIT_REACHED"
    limit_s: int


class ConversationLocked(FailedPrecondition):
    """The conversation '{conversation}' is being written to by the response '{response}'. Try again
    once that has ended."""

    reason = "CONVERSATION_LOCKED"
    conversation: str
    response: str
    field: str = "conversation"
    """What named the conversation."""


class ResponseNotCancellable(FailedPrecondition):
    """Cannot cancel a synchronous response."""

    reason = "RESPONSE_NOT_CANCELLABLE"
    response: str


class PreviousResponseUnfinished(FailedPrecondition):
    """The previous response '{response}' is {state}. Wait until it has completed."""

    reason = "PREVIOUS_RESPONSE_UNFINISHED"
    response: str
    state: str
    """"queued" or "in_progress"."""
    field: str = "previous_response_id"
    """What named the response."""


class ConversationNotFound(NotFound):
    """Conversation with id '{conversation}' not found."""

    reason = "CONVERSATION_NOT_FOUND"
    conversation: str
    field: str = "conversation_id"
    """What named the conversation."""


class ItemNotFound(NotFound):
    """Item with id '{item}' not found."""

    reason = "ITEM_NOT_FOUND"
    item: str
    field: str = "item_id"
    """What named the item."""


class ResponseNotFound(NotFound):
    """Response with id '{response}' not found."""

    reason = "RESPONSE_NOT_FOUND"
    response: str
    field: str = "response_id"
    """What named the response."""
