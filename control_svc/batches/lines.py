"""Lines of a batch: splitting the file, validating a line, and lines of the output files.

Validation covers what makes the file unusable; whether the body of a request is valid is decided
when it runs.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

import orjson

from control_svc.base.validation import check_text
from control_svc.batches.model import (
    MAX_PROBLEMS,
    NO_TOKENS,
    Batch,
    BatchEndpoint,
    LineProblem,
    LineState,
    TokenUsage,
)
from svc_kit.errors import InvalidField, TooLong

MAX_CUSTOM_ID_CHARACTERS: Final = 512
_ORDER_BYTES: Final = 256
_DIGEST_BYTES: Final = 16
_BOM: Final = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class LineLimits:
    """Bounds on a batch."""

    lines: int = 50_000
    line_bytes: int = 8 << 20
    embedding_inputs: int = 50_000
    """Over all lines of a batch of embeddings."""


class RawLine(NamedTuple):
    """A line of the file; `text` is None if it is too long."""

    number: int
    text: bytes | None


@dataclass(frozen=True, slots=True)
class NewLine:
    """A line that has been checked."""

    number: int
    order: bytes
    """Lines run in this order, so that those that begin alike run next to each other."""
    request: bytes
    """The line of the file, unchanged."""


class LineSplitter:
    """Cuts a stream into lines. Blank ones are left out, but counted."""

    def __init__(self, line_bytes: int) -> None:
        self._limit = line_bytes
        self._number = 1
        self._rest: list[bytes] = []
        self._rest_bytes = 0

    def feed(self, chunk: bytes) -> Iterator[RawLine]:
        """The lines that end in this chunk."""
        *ended, rest = chunk.split(b"\n")
        for piece in ended:
            self._keep(piece)
            yield from self._line()
            self._number += 1
        self._keep(rest)

    def finish(self) -> Iterator[RawLine]:
        """The line after the last newline, if there is one."""
        yield from self._line()

    def _keep(self, piece: bytes) -> None:
        self._rest_bytes += len(piece)
        if self._rest_bytes > self._limit:
            self._rest.clear()
        elif piece:
            self._rest.append(piece)

    def _line(self) -> Iterator[RawLine]:
        is_kept = self._rest_bytes <= self._limit
        text = b"".join(self._rest).strip()
        if self._number == 1:
            text = text.removeprefix(_BOM)
        self._rest, self._rest_bytes = [], 0
        if not is_kept:
            yield RawLine(self._number, None)
        elif text:
            yield RawLine(self._number, text)


class LineChecker:
    """Checks the lines of one batch, in the order of the file."""

    def __init__(self, endpoint: BatchEndpoint, limits: LineLimits) -> None:
        self.model = ""
        """What the first good line names."""
        self.num_lines = 0
        self.problems: list[LineProblem] = []
        """The first `MAX_PROBLEMS` of them."""
        self._endpoint = endpoint
        self._limits = limits
        self._seen: set[bytes] = set()
        self._num_inputs = 0

    @property
    def is_done(self) -> bool:
        """Whether further lines would change nothing."""
        too_many = self.num_lines > self._limits.lines
        return too_many or len(self.problems) >= MAX_PROBLEMS

    def check(self, lines: Iterable[RawLine]) -> list[NewLine]:
        """The good ones among the next lines; what is wrong with others is in `problems`."""
        good = []
        for line in lines:
            if self.is_done:
                break
            self.num_lines += 1
            try:
                good.append(self._checked(line))
            except _Wrong as wrong:
                self.problems.append(wrong.problem)
        return good

    def finish(self) -> None:
        """Checks at the end of the file."""
        if not self.num_lines:
            self._complain("empty_file", "The file has no requests.")
        limits = self._limits
        if self.num_lines > limits.lines:
            self._complain("too_many_lines", f"A batch has at most {limits.lines} requests.")
        if self._num_inputs > limits.embedding_inputs:
            message = f"A batch has at most {limits.embedding_inputs} inputs in all."
            self._complain("too_many_inputs", message)

    def _complain(self, code: str, message: str) -> None:
        self.problems = [*self.problems, LineProblem(code, message)][-MAX_PROBLEMS:]

    def _checked(self, line: RawLine) -> NewLine:
        request = _parsed(line, self._limits.line_bytes)
        self._check_custom_id(line.number, request)
        if _text(line.number, request, "method") != "POST":
            raise _Wrong(line.number, "invalid_method", "The method must be POST.", "method")
        if _text(line.number, request, "url") != self._endpoint:
            message = f"The url must be the batch's endpoint, {self._endpoint}."
            raise _Wrong(line.number, "invalid_url", message, "url")
        body = _present(line.number, request, "body")
        if not isinstance(body, dict):
            raise _wrong_type(line.number, "body", "an object")
        self._check_model(line.number, body)
        if self._endpoint is BatchEndpoint.EMBEDDINGS:
            self._num_inputs += _num_inputs(body.get("input"))
        return NewLine(line.number, _order_of(body), line.text or b"")

    def _check_custom_id(self, number: int, request: dict[str, Any]) -> None:
        custom_id = _text(number, request, "custom_id")
        if len(custom_id) > MAX_CUSTOM_ID_CHARACTERS:
            message = f"A custom_id has at most {MAX_CUSTOM_ID_CHARACTERS} characters."
            raise _Wrong(number, "string_above_max_length", message, "custom_id")
        digest = hashlib.blake2b(custom_id.encode(), digest_size=_DIGEST_BYTES).digest()
        if digest in self._seen:
            message = "Another request of this batch has the same custom_id."
            raise _Wrong(number, "duplicate_custom_id", message, "custom_id")
        self._seen.add(digest)

    def _check_model(self, number: int, body: dict[str, Any]) -> None:
        model = _text(number, body, "model", within="body.")
        try:
            check_text("body.model", model)
        except (InvalidField, TooLong) as error:
            raise _Wrong(number, "invalid_value", error.message, "body.model") from None
        self.model = self.model or model
        if model != self.model:
            message = f"All requests of a batch name one model; this one is not '{self.model}'."
            raise _Wrong(number, "mismatched_model", message, "body.model")


class _Wrong(Exception):
    """A line is no request of this batch."""

    def __init__(self, number: int, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.problem = LineProblem(code, message, param, number)


def _parsed(line: RawLine, limit: int) -> dict[str, Any]:
    if line.text is None:
        raise _Wrong(line.number, "line_too_long", f"A line has at most {limit} bytes.")
    try:
        request = orjson.loads(line.text)
    except orjson.JSONDecodeError as error:
        message = f"This line is not valid JSON: {error}"
        raise _Wrong(line.number, "invalid_json_line", message) from None
    if not isinstance(request, dict):
        raise _Wrong(line.number, "invalid_json_line", "This line is not a JSON object.")
    return request


def _present(number: int, fields: dict[str, Any], name: str, within: str = "") -> Any:
    value = fields.get(name)
    if value is None or value == "":
        param = within + name
        message = f"Missing required parameter: '{param}'."
        raise _Wrong(number, "missing_required_parameter", message, param)
    return value


def _text(number: int, fields: dict[str, Any], name: str, within: str = "") -> str:
    value = _present(number, fields, name, within)
    if not isinstance(value, str):
        raise _wrong_type(number, within + name, "a string")
    return value


def _wrong_type(number: int, param: str, expected: str) -> _Wrong:
    message = f"Invalid type for '{param}': expected {expected}."
    return _Wrong(number, "invalid_type", message, param)


def _num_inputs(given: object) -> int:
    """How many texts a request embeds; a list of numbers is one text of tokens."""
    if isinstance(given, list) and given and not isinstance(given[0], int):
        return len(given)
    return 1


def _of_response(body: dict[str, Any]) -> list[Any]:
    return [body.get("instructions") or "", body.get("input") or ""]


def _order_of(body: dict[str, Any]) -> bytes:
    """Equal for requests whose prompts begin alike, and close for those that nearly do."""
    beginning = body.get("messages") or body.get("prompt") or _of_response(body)
    try:
        return orjson.dumps(beginning)[:_ORDER_BYTES]
    except orjson.JSONEncodeError:  # nested deeper than it writes, which its answer will refuse
        return b""


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


class LineRunner(Protocol):
    """Carries out the requests of lines."""

    async def run(self, project: str, batch: Batch, line: PendingLine) -> LineResult:
        """How the line ended; an error that its request deserves is an end like another.

        Raises what another try may end better: ResourceExhausted, Unavailable, Aborted. Of an
        engine that died while it had the request: EngineRestarting with a phase.
        """
