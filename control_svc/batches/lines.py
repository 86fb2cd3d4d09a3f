"""Lines of a batch: splits and validates the input file, and encodes lines of the output files.

Validation covers the fields of the batch format. The body of a request is validated when it runs.
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
from dialects.shared.json_body import StructureCount
from svc_kit.errors import InvalidField, TooLong

MAX_CUSTOM_ID_CHARACTERS: Final = 512
_SORT_KEY_BYTES: Final = 256
_DIGEST_BYTES: Final = 16
_BOM: Final = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class LineLimits:
    lines: int = 50_000
    line_bytes: int = 8 << 20
    embedding_inputs: int = 50_000
    """Total over all lines of a batch of embeddings."""


class RawLine(NamedTuple):
    """A line of the input file. `text` is None if the line is too long."""

    number: int
    text: bytes | None


@dataclass(frozen=True, slots=True)
class PendingLine:
    """A validated line without a result."""

    number: int
    sort_key: bytes
    """Lines run in the order of their keys, so that prompts with a common prefix are adjacent."""
    request: bytes
    """The unchanged line of the file."""
    engine_deaths: int = 0
    """How many engines died while they ran the line."""


class LineSplitter:
    """Splits a stream into lines. Blank lines are counted, but not returned."""

    def __init__(self, line_bytes: int) -> None:
        self._limit = line_bytes
        self._number = 1
        self._buffer: list[bytes] = []
        self._buffered_bytes = 0

    def feed(self, chunk: bytes) -> Iterator[RawLine]:
        """Yield the lines that end in this chunk."""
        *complete, rest = chunk.split(b"\n")
        for piece in complete:
            self._append(piece)
            yield from self.flush()
            self._number += 1
        self._append(rest)

    def flush(self) -> Iterator[RawLine]:
        """Yield the buffered line, if it is not blank."""
        is_too_long = self._buffered_bytes > self._limit
        text = b"".join(self._buffer).strip()
        if self._number == 1:
            text = text.removeprefix(_BOM)
        self._buffer, self._buffered_bytes = [], 0
        if is_too_long:
            yield RawLine(self._number, None)
        elif text:
            yield RawLine(self._number, text)

    def _append(self, piece: bytes) -> None:
        self._buffered_bytes += len(piece)
        if self._buffered_bytes > self._limit:
            self._buffer.clear()
        elif piece:
            self._buffer.append(piece)


class LineChecker:
    """Validates the lines of one batch in the order of the file."""

    def __init__(self, endpoint: BatchEndpoint, limits: LineLimits) -> None:
        self.model = ""
        """The model of the first valid line."""
        self.num_lines = 0
        self.problems: list[LineProblem] = []
        """At most `MAX_PROBLEMS`."""
        self._endpoint = endpoint
        self._limits = limits
        self._custom_id_digests: set[bytes] = set()
        self._num_inputs = 0

    @property
    def is_finished(self) -> bool:
        """Whether further lines need not be validated."""
        too_many = self.num_lines > self._limits.lines
        return too_many or len(self.problems) >= MAX_PROBLEMS

    def check(self, lines: Iterable[RawLine]) -> list[PendingLine]:
        """Validate the next lines. Returns the valid ones, and adds the others to `problems`."""
        valid = []
        for line in lines:
            if self.is_finished:
                break
            self.num_lines += 1
            try:
                valid.append(self._check_line(line))
            except _InvalidLine as error:
                self.problems.append(error.problem)
        return valid

    def finish(self) -> None:
        """Run the checks that need the whole file."""
        if not self.num_lines:
            self._add_problem("empty_file", "The file contains no requests.")
        limits = self._limits
        if self.num_lines > limits.lines:
            message = f"A batch can have at most {limits.lines} requests."
            self._add_problem("too_many_lines", message)
        if self._num_inputs > limits.embedding_inputs:
            message = f"A batch can have at most {limits.embedding_inputs} inputs in total."
            self._add_problem("too_many_inputs", message)

    def _add_problem(self, code: str, message: str) -> None:
        self.problems = [*self.problems, LineProblem(code, message)][-MAX_PROBLEMS:]

    def _check_line(self, line: RawLine) -> PendingLine:
        request = _parse(line, self._limits.line_bytes)
        self._check_custom_id(line.number, request)
        if _required_string(line.number, request, "method") != "POST":
            raise _InvalidLine(line.number, "invalid_method", "The method must be POST.", "method")
        if _required_string(line.number, request, "url") != self._endpoint:
            message = f"The url must be the endpoint of the batch, {self._endpoint}."
            raise _InvalidLine(line.number, "invalid_url", message, "url")
        body = _required(line.number, request, "body")
        if not isinstance(body, dict):
            raise _invalid_type(line.number, "body", "an object")
        self._check_model(line.number, body)
        if self._endpoint.embeds:
            self._num_inputs += _num_inputs(body.get("input", body.get("content")))
        return PendingLine(line.number, _sort_key(body), line.text or b"")

    def _check_custom_id(self, number: int, request: dict[str, Any]) -> None:
        custom_id = _required_string(number, request, "custom_id")
        if len(custom_id) > MAX_CUSTOM_ID_CHARACTERS:
            message = f"A custom_id can have at most {MAX_CUSTOM_ID_CHARACTERS} characters."
            raise _InvalidLine(number, "string_above_max_length", message, "custom_id")
        digest = hashlib.blake2b(custom_id.encode(), digest_size=_DIGEST_BYTES).digest()
        if digest in self._custom_id_digests:
            message = "Another request of this batch has the same custom_id."
            raise _InvalidLine(number, "duplicate_custom_id", message, "custom_id")
        self._custom_id_digests.add(digest)

    def _check_model(self, number: int, body: dict[str, Any]) -> None:
        model = _required_string(number, body, "model", within="body.")
        try:
            check_text("body.model", model)
        except (InvalidField, TooLong) as error:
            raise _InvalidLine(number, "invalid_value", error.message, "body.model") from None
        self.model = self.model or model
        if model != self.model and self._endpoint is not BatchEndpoint.MESSAGES:
            message = f"All requests of a batch must use the same model: '{self.model}'."
            raise _InvalidLine(number, "mismatched_model", message, "body.model")


class _InvalidLine(Exception):
    """A line is not a valid request of the batch."""

    def __init__(self, number: int, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.problem = LineProblem(code, message, param, number)


def _parse(line: RawLine, limit: int) -> dict[str, Any]:
    if line.text is None:
        raise _InvalidLine(line.number, "line_too_long", f"A line can have at most {limit} bytes.")
    try:
        StructureCount().add(line.text)
        request = orjson.loads(line.text)
    except orjson.JSONDecodeError as error:
        message = f"This line is not valid JSON: {error}"
        raise _InvalidLine(line.number, "invalid_json_line", message) from None
    except TooLong as error:
        message = f"A line can have at most {error.limit} {error.unit}."
        raise _InvalidLine(line.number, "line_too_long", message) from None
    if not isinstance(request, dict):
        raise _InvalidLine(line.number, "invalid_json_line", "This line is not a JSON object.")
    return request


def _required(number: int, fields: dict[str, Any], name: str, within: str = "") -> Any:
    value = fields.get(name)
    if value is None or value == "":
        param = within + name
        message = f"Missing required parameter: '{param}'."
        raise _InvalidLine(number, "missing_required_parameter", message, param)
    return value


def _required_string(number: int, fields: dict[str, Any], name: str, within: str = "") -> str:
    value = _required(number, fields, name, within)
    if not isinstance(value, str):
        raise _invalid_type(number, within + name, "a string")
    return value


def _invalid_type(number: int, param: str, expected: str) -> _InvalidLine:
    message = f"Invalid type for '{param}': expected {expected}."
    return _InvalidLine(number, "invalid_type", message, param)


def _num_inputs(inputs: object) -> int:
    """Number of texts that a request embeds. A list of token ids is one text."""
    if isinstance(inputs, list) and inputs and not isinstance(inputs[0], int):
        return len(inputs)
    return 1


def _sort_key(body: dict[str, Any]) -> bytes:
    """The first bytes of the prompt as JSON."""
    response_prompt = [body.get("instructions") or "", body.get("input") or ""]
    prompt = body.get("messages") or body.get("prompt") or response_prompt
    if system := body.get("system"):
        prompt = [system, prompt]
    try:
        return orjson.dumps(prompt)[:_SORT_KEY_BYTES]
    except orjson.JSONEncodeError:  # nested too deeply; the request fails when it runs
        return b""


_ID_PREFIX: Final = "batch_req_"


@dataclass(frozen=True, slots=True)
class LineResult:
    """The result of a line. `text` is the line of the output or error file."""

    number: int
    state: LineState
    text: bytes
    usage: TokenUsage = NO_TOKENS


@dataclass(frozen=True, slots=True)
class EndedLine:
    """A line of a closed batch. `text` is None if the line did not run."""

    number: int
    state: LineState
    request: bytes
    text: bytes | None


def line_id(batch_id: str, number: int) -> str:
    """The id of a line in the output files. Deterministic."""
    return f"{_ID_PREFIX}{batch_id.partition('_')[2]}{number:05x}"


def response_line(
    batch_id: str, number: int, custom_id: str, status: int, request_id: str, body: Any
) -> bytes:
    """Encode the result of a request that got an HTTP response, which may be an error."""
    response = {"status_code": status, "request_id": request_id, "body": body}
    return _encode(batch_id, number, custom_id, response=response)


def error_line(batch_id: str, number: int, request: bytes, code: str, message: str) -> bytes:
    """Encode the result of a request that got no HTTP response."""
    custom_id = orjson.loads(request)["custom_id"]
    return _encode(batch_id, number, custom_id, error={"code": code, "message": message})


def _encode(
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
    async def run(self, project: str, batch: Batch, line: PendingLine) -> LineResult:
        """Run a line. An error that the request causes is a result with state FAILED.

        Raises the retryable errors ResourceExhausted, Unavailable and Aborted. EngineRestarting has
        a phase if the engine died while it ran the request.
        """
