"""What becomes of a batch's lines: the lines of its output and error files."""

from dataclasses import dataclass
from typing import Any, Final

import orjson

from control_svc.domain.batches import NO_TOKENS, LineState, TokenUsage

_ID: Final = "batch_req_"
_UNRUN: Final = {
    LineState.EXPIRED: ("batch_expired", "The batch's window closed before this request ran."),
    LineState.CANCELLED: ("batch_cancelled", "The batch was cancelled before this request ran."),
    LineState.ABANDONED: ("batch_failed", "The batch failed before this request ran."),
}


@dataclass(frozen=True, slots=True)
class PendingLine:
    """A line that has not ended."""

    number: int
    order: bytes
    request: bytes
    engine_deaths: int = 0
    """How many engines died while they had it."""


@dataclass(frozen=True, slots=True)
class LineResult:
    """How a line ended; `text` is its line of the output or error file."""

    number: int
    state: LineState
    text: bytes
    usage: TokenUsage = NO_TOKENS


@dataclass(frozen=True, slots=True)
class EndedLine:
    """A line of a batch that has closed; `text` is None where it never ran."""

    number: int
    state: LineState
    request: bytes
    text: bytes | None


def line_id(batch_id: str, number: int) -> str:
    """The id of a line, the same whenever it is asked for."""
    return f"{_ID}{batch_id.partition('_')[2]}{number:05x}"


def answered(
    batch_id: str, number: int, custom_id: str, status: int, request_id: str, body: Any
) -> bytes:
    """The line of a request that was answered, well or with an error of HTTP."""
    response = {"status_code": status, "request_id": request_id, "body": body}
    return _line(batch_id, number, custom_id, response=response)


def unanswered(batch_id: str, number: int, request: bytes, code: str, message: str) -> bytes:
    """The line of a request that has no answer."""
    custom_id = orjson.loads(request)["custom_id"]
    return _line(batch_id, number, custom_id, error={"code": code, "message": message})


def text_of(batch_id: str, line: EndedLine) -> bytes:
    """The line of its file."""
    if line.text is not None:
        return line.text
    code, message = _UNRUN[line.state]
    return unanswered(batch_id, line.number, line.request, code, message)


def _line(
    batch_id: str,
    number: int,
    custom_id: str,
    *,
    response: dict[str, Any] | None = None,
    error: dict[str, str] | None = None,
) -> bytes:
    return orjson.dumps(
        {
            "id": line_id(batch_id, number),
            "custom_id": custom_id,
            "response": response,
            "error": error,
        }
    )
