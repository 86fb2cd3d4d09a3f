"""Maps errors to gRPC and HTTP statuses and OpenAI codes, and gRPC statuses back to errors."""

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Literal, NamedTuple

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]
from pydantic import WithJsonSchema
from typing_extensions import TypedDict

from svc_kit import errors
from svc_kit.errors import DomainError, kind_of

DOMAIN: Final = "corral"
"""`google.rpc.ErrorInfo.domain` of every error of every service."""
REQUEST_ID_KEY: Final = "x-request-id"
"""The metadata key, and HTTP header, that names a request."""
_DETAILS_KEY: Final = "grpc-status-details-bin"


class WireStatus(NamedTuple):
    """The arguments of `context.abort`."""

    code: grpc.StatusCode
    details: str
    trailing_metadata: tuple[tuple[str, str | bytes], ...]


OpenAIType = Literal[
    "invalid_request_error",
    "authentication_error",
    "permission_error",
    "rate_limit_error",
    "insufficient_quota",
    "server_error",
]


class StatusRow(NamedTuple):
    """How one kind of error appears to clients."""

    grpc_code: grpc.StatusCode
    http_status: int
    openai_type: OpenAIType
    retryable: bool


_INVALID: Final[OpenAIType] = "invalid_request_error"
KIND_ROWS: Final[Mapping[type[DomainError], StatusRow]] = {
    errors.InvalidArgument: StatusRow(grpc.StatusCode.INVALID_ARGUMENT, 400, _INVALID, False),
    errors.FailedPrecondition: StatusRow(grpc.StatusCode.FAILED_PRECONDITION, 400, _INVALID, False),
    errors.Unauthenticated: StatusRow(
        grpc.StatusCode.UNAUTHENTICATED, 401, "authentication_error", False
    ),
    errors.PermissionDenied: StatusRow(
        grpc.StatusCode.PERMISSION_DENIED, 403, "permission_error", False
    ),
    errors.NotFound: StatusRow(grpc.StatusCode.NOT_FOUND, 404, _INVALID, False),
    errors.AlreadyExists: StatusRow(grpc.StatusCode.ALREADY_EXISTS, 409, _INVALID, False),
    errors.Aborted: StatusRow(grpc.StatusCode.ABORTED, 409, _INVALID, True),
    errors.ResourceExhausted: StatusRow(
        grpc.StatusCode.RESOURCE_EXHAUSTED, 429, "rate_limit_error", True
    ),
    # A client that disconnected reads nothing; an abort by an operator does reach it.
    errors.Cancelled: StatusRow(grpc.StatusCode.CANCELLED, 499, "server_error", False),
    errors.DeadlineExceeded: StatusRow(
        grpc.StatusCode.DEADLINE_EXCEEDED, 504, "server_error", False
    ),
    errors.Unavailable: StatusRow(grpc.StatusCode.UNAVAILABLE, 503, "server_error", True),
    errors.Unimplemented: StatusRow(grpc.StatusCode.UNIMPLEMENTED, 501, _INVALID, False),
    errors.Internal: StatusRow(grpc.StatusCode.INTERNAL, 500, "server_error", False),
}
HTTP_OVERRIDES: Final[Mapping[type[DomainError], int]] = {
    errors.BodyTooSlow: 408,
    errors.RequestTooLarge: 413,
    errors.UnsupportedMediaType: 415,
    errors.MethodNotAllowed: 405,
    errors.RangeNotSatisfiable: 416,
    errors.AddressNotAllowed: 401,
    errors.BudgetExceeded: 429,
}
"""HTTP statuses that differ from the one of the kind."""
TYPE_OVERRIDES: Final[Mapping[type[DomainError], OpenAIType]] = {
    errors.BudgetExceeded: "insufficient_quota",
}
"""OpenAI types that differ from the one of the kind."""


def _out_of_range_code(error: DomainError) -> str | None:
    bounds = {key: _number(error.metadata.get(key)) for key in ("value", "minimum", "maximum")}
    value, minimum, maximum = bounds.values()
    if value is None:
        return "invalid_value"
    number = "integer" if isinstance(value, int) else "decimal"
    if minimum is not None and value < minimum:
        return f"{number}_below_min_value"
    if maximum is not None and value > maximum:
        return f"{number}_above_max_value"
    return "invalid_value"


def _too_long_code(error: DomainError) -> str | None:
    text = error.metadata.get("unit") in {"characters", "bytes"}
    return "string_above_max_length" if text else "array_above_max_length"


def _too_short_code(error: DomainError) -> str | None:
    kind = "string" if error.metadata.get("unit") == "characters" else "array"
    return f"empty_{kind}" if error.metadata.get("length") == "0" else f"{kind}_below_min_length"


def _number(text: str | None) -> float | None:
    """Integers stay exact: some limits exceed the precision of floats."""
    if text is None:
        return None
    try:
        return int(text) if re.fullmatch(r"-?\d+", text) else float(text)
    except ValueError:
        return None


OPENAI_CODES: Final[Mapping[str, str | Callable[[DomainError], str | None] | None]] = {
    "INVALID_FIELD": "invalid_value",
    "MISSING_FIELD": "missing_required_parameter",
    "OUT_OF_RANGE": _out_of_range_code,
    "TOO_LONG": _too_long_code,
    "TOO_SHORT": _too_short_code,
    "UNKNOWN_FIELD": "unknown_parameter",
    "INVALID_JSON": None,
    "SCHEMA_INVALID": "invalid_json_schema",
    "UNSUPPORTED_FIELD": "unsupported_parameter",
    "API_KEY_MISSING": None,
    "API_KEY_INVALID": "invalid_api_key",
    "ACCESS_TOKEN_INVALID": "invalid_api_key",
    "MODEL_NOT_ALLOWED": "model_not_found",
    "ADDRESS_NOT_ALLOWED": "ip_not_authorized",
    "FILE_NOT_FOUND": None,
    "UPLOAD_NOT_FOUND": None,
    "BATCH_NOT_FOUND": None,
    "RUN_NOT_FOUND": None,
    "RUN_STEP_NOT_FOUND": None,
    "RUN_ACTIVE": None,
    "RUN_NOT_CANCELLABLE": None,
    "TOOL_OUTPUTS_NOT_ACCEPTED": None,
    "TOOL_OUTPUTS_INCOMPLETE": None,
    "RESPONSE_NOT_FOUND": None,
    "TOOL_CALL_MISSING": None,
    "TOOL_OUTPUT_MISSING": None,
    "SEAL_INVALID": "invalid_encrypted_content",
    "VECTOR_STORE_NOT_FOUND": None,
    "VECTOR_STORE_FILE_NOT_FOUND": None,
    "VECTOR_STORE_FILE_BATCH_NOT_FOUND": None,
    "ASSISTANT_NOT_FOUND": None,
    "THREAD_NOT_FOUND": None,
    "MESSAGE_NOT_FOUND": None,
    "THREAD_BUSY": None,
    "CONVERSATION_NOT_FOUND": None,
    "ITEM_NOT_FOUND": None,
    "RATE_LIMITED": "rate_limit_exceeded",
    "BUDGET_EXCEEDED": "insufficient_quota",
}
"""`error.code` where OpenAI defines one; otherwise it is the reason in lower case."""
_CODES_OF_BOUNDS: Final = {
    *("array_above_max_length", "array_below_min_length", "empty_array"),
    *("string_above_max_length", "string_below_min_length", "empty_string"),
    *("decimal_above_max_value", "decimal_below_min_value"),
    *("integer_above_max_value", "integer_below_min_value"),
}
"""Codes that depend on the metadata of an error."""


def _codes() -> list[str | None]:
    """Every `error.code`; some errors have none."""
    codes = (OPENAI_CODES.get(cls.reason, cls.reason.lower()) for cls in errors.ERROR_CLASSES)
    names = _CODES_OF_BOUNDS.union(code for code in codes if isinstance(code, str))
    return [*sorted(names), None]


class ErrorDetails(TypedDict):
    """The value of `error` in OpenAI's envelope."""

    message: str
    type: OpenAIType
    param: str | None
    code: Annotated[str | None, WithJsonSchema({"enum": _codes()})]


def status_row(error: DomainError | type[DomainError]) -> StatusRow:
    """The statuses of an error: those of its kind, except for the overrides."""
    cls = error if isinstance(error, type) else type(error)
    row = KIND_ROWS[kind_of(cls)]
    return row._replace(
        http_status=HTTP_OVERRIDES.get(cls, row.http_status),
        openai_type=TYPE_OVERRIDES.get(cls, row.openai_type),
    )


def http_status(error: DomainError) -> int:
    """The HTTP status of an error."""
    return status_row(error).http_status


def is_retryable(error: DomainError) -> bool:
    """Whether the same request can succeed later."""
    return status_row(error).retryable


def openai_error(error: DomainError) -> ErrorDetails:
    """The value of `error` in OpenAI's envelope."""
    code = OPENAI_CODES.get(error.reason, error.reason.lower())
    return {
        "message": error.message,
        "type": status_row(error).openai_type,
        "param": error.field,
        "code": code(error) if callable(code) else code,
    }


# ---- to the wire


def to_status(error: DomainError, request_id: str) -> WireStatus:
    """Encode an error as a gRPC status with details in its trailers.

    ErrorInfo and RequestInfo always; RetryInfo if `retry_after` is set; BadRequest if `field` is.
    """
    details: list[Message] = [
        error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=error.metadata),
        error_details_pb2.RequestInfo(request_id=request_id),
    ]
    if error.retry_after is not None:
        delay = duration_pb2.Duration()
        delay.FromMilliseconds(round(error.retry_after * 1000))
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    if error.field is not None:
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=error.field, description=error.metadata.get("problem", "")
        )
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    status = status_pb2.Status(
        code=status_row(error).grpc_code.value[0],
        message=error.message,
        details=[_pack(detail) for detail in details],
    )
    return WireStatus(
        code=status_row(error).grpc_code,
        details=error.message,
        trailing_metadata=(
            (_DETAILS_KEY, status.SerializeToString()),
            (REQUEST_ID_KEY, request_id),
        ),
    )


def to_rpc_error(error: DomainError, request_id: str = "") -> grpc.aio.AioRpcError:
    """The failure of a call that ended with an error, as its caller sees it."""
    code, details, trailers = to_status(error, request_id)
    metadata = grpc.aio.Metadata(*trailers)
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), metadata, details)


def _pack(detail: Message) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(detail)
    return packed


# ---- from the wire


_BY_REASON: Final = {cls.reason: cls for cls in errors.ERROR_CLASSES}
_BY_CODE: Final = {row.grpc_code: kind for kind, row in KIND_ROWS.items()}
_CORE_SIZE_LIMIT: Final = re.compile(
    r"message larger than max \((\d+) vs\.? (\d+)\)", re.IGNORECASE
)


def from_rpc_error(error: grpc.aio.AioRpcError, service: str = "upstream") -> DomainError:
    """Decode a failed call into the error that the server raised.

    A reason without a class becomes an error of its kind. A status without our details comes from
    gRPC itself or from a proxy; `service` names the callee in the resulting error.
    """
    status = _rich_status(error)
    info, retry_after = error_details_pb2.ErrorInfo(), None
    for detail in status.details:
        detail.Unpack(info)
        retry = error_details_pb2.RetryInfo()
        if detail.Unpack(retry):
            retry_after = retry.retry_delay.ToMilliseconds() / 1000
    if info.domain != DOMAIN:
        return _from_bare_status(error, service)
    return _from_info(info, error, retry_after)


def request_id_of(error: grpc.aio.AioRpcError) -> str:
    """The request id of a failed call in the server's log; empty if the server sent none."""
    return str(_trailer(error, REQUEST_ID_KEY, ""))


def restore_error(
    reason: str,
    message: str,
    metadata: Mapping[str, str],
    *,
    retry_after: float | None = None,
    kind: type[DomainError] = errors.Internal,
) -> DomainError:
    """Rebuild an error from its reason, message and metadata; `kind` applies to unknown reasons."""
    cls = _BY_REASON.get(reason)
    if cls is not None:
        try:
            decoded = cls.from_metadata(metadata, retry_after)
        except (TypeError, ValueError):
            kind = kind_of(cls)  # the metadata of another release
        else:
            decoded.message = message or decoded.message
            return decoded
    return kind.with_reason(
        reason=reason, message=message, metadata=metadata, retry_after=retry_after
    )


def _from_info(
    info: error_details_pb2.ErrorInfo, error: grpc.aio.AioRpcError, retry_after: float | None
) -> DomainError:
    return restore_error(
        info.reason,
        error.details() or "",
        dict(info.metadata),
        retry_after=retry_after,
        kind=_BY_CODE.get(error.code(), errors.Internal),
    )


def _from_bare_status(error: grpc.aio.AioRpcError, service: str) -> DomainError:
    code, message = error.code(), error.details() or ""
    size = _CORE_SIZE_LIMIT.search(message)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and size:
        return errors.RequestTooLarge(size=int(size[1]), limit=int(size[2]))
    # A server that ends cancels what it has received and not accepted, and a proxy what it loses.
    # A call that this process cancels raises CancelledError instead.
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
        return errors.UpstreamUnavailable(service=service)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return errors.DeadlineExpired(phase="call")
    kind = _BY_CODE.get(code, errors.Internal)
    if kind is errors.Internal:
        # The message of an unknown failure may contain what the caller must not see.
        return errors.InternalError(request_id=request_id_of(error))
    return kind.with_reason(reason=code.name, message=message)


def _rich_status(error: grpc.aio.AioRpcError) -> status_pb2.Status:
    raw = _trailer(error, _DETAILS_KEY, b"")
    try:
        return status_pb2.Status.FromString(raw)
    except DecodeError:
        return status_pb2.Status()


def _trailer(error: grpc.aio.AioRpcError, key: str, default: Any) -> Any:
    return next((value for name, value in error.trailing_metadata() or () if name == key), default)
