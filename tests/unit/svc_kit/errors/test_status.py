"""Conversion of errors to gRPC, HTTP and OpenAI, and back."""

from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

from svc_kit import errors
from svc_kit.errors import ERROR_CLASSES, KINDS, DomainError, kind_of
from svc_kit.errors.status import (
    KIND_ROWS,
    from_rpc_error,
    http_status,
    is_retryable,
    openai_error,
    request_id_of,
    status_row,
    to_status,
)

Code = grpc.StatusCode
INVALID = "invalid_request_error"

# The house table, written out once more: a change here is a change of the API.
EXPECTED: dict[str, tuple[grpc.StatusCode, int, str, bool]] = {
    "InvalidArgument": (Code.INVALID_ARGUMENT, 400, INVALID, False),
    "FailedPrecondition": (Code.FAILED_PRECONDITION, 400, INVALID, False),
    "Unauthenticated": (Code.UNAUTHENTICATED, 401, "authentication_error", False),
    "PermissionDenied": (Code.PERMISSION_DENIED, 403, "permission_error", False),
    "NotFound": (Code.NOT_FOUND, 404, INVALID, False),
    "AlreadyExists": (Code.ALREADY_EXISTS, 409, INVALID, False),
    "Aborted": (Code.ABORTED, 409, INVALID, True),
    "ResourceExhausted": (Code.RESOURCE_EXHAUSTED, 429, "rate_limit_error", True),
    "Cancelled": (Code.CANCELLED, 499, "server_error", False),
    "DeadlineExceeded": (Code.DEADLINE_EXCEEDED, 504, "server_error", False),
    "Unavailable": (Code.UNAVAILABLE, 503, "server_error", True),
    "Unimplemented": (Code.UNIMPLEMENTED, 501, INVALID, False),
    "Internal": (Code.INTERNAL, 500, "server_error", False),
}
EXACT_STATUS = {
    "BODY_TOO_SLOW": 408,
    "REQUEST_TOO_LARGE": 413,
    "UNSUPPORTED_MEDIA_TYPE": 415,
    "METHOD_NOT_ALLOWED": 405,
    "RANGE_NOT_SATISFIABLE": 416,
    "ADDRESS_NOT_ALLOWED": 401,
    "BUDGET_EXCEEDED": 429,
}
EXACT_TYPE = {"BUDGET_EXCEEDED": "insufficient_quota"}

OPENAI_CODES = {
    "INVALID_FIELD": "invalid_value",
    "MISSING_FIELD": "missing_required_parameter",
    "OUT_OF_RANGE": "integer_above_max_value",
    "TOO_LONG": "array_above_max_length",
    "TOO_SHORT": "array_below_min_length",
    "UNKNOWN_FIELD": "unknown_parameter",
    "INVALID_TYPE": "invalid_type",
    "INVALID_JSON": None,
    "CONTEXT_LENGTH_EXCEEDED": "context_length_exceeded",
    "SCHEMA_INVALID": "invalid_json_schema",
    "UNSUPPORTED_VALUE": "unsupported_value",
    "UNSUPPORTED_FIELD": "unsupported_parameter",
    "API_KEY_MISSING": None,
    "API_KEY_INVALID": "invalid_api_key",
    "ACCESS_TOKEN_INVALID": "invalid_api_key",
    "MODEL_NOT_ALLOWED": "model_not_found",
    "ADDRESS_NOT_ALLOWED": "ip_not_authorized",
    "MODEL_NOT_FOUND": "model_not_found",
    "FILE_NOT_FOUND": None,
    "UPLOAD_NOT_FOUND": None,
    "BATCH_NOT_FOUND": None,
    "VECTOR_STORE_NOT_FOUND": None,
    "VECTOR_STORE_FILE_NOT_FOUND": None,
    "VECTOR_STORE_FILE_BATCH_NOT_FOUND": None,
    "ASSISTANT_NOT_FOUND": None,
    "THREAD_NOT_FOUND": None,
    "MESSAGE_NOT_FOUND": None,
    "THREAD_BUSY": None,
    "CONVERSATION_NOT_FOUND": None,
    "ITEM_NOT_FOUND": None,
    "RESPONSE_NOT_FOUND": None,
    "RUN_NOT_FOUND": None,
    "RUN_STEP_NOT_FOUND": None,
    "RUN_ACTIVE": None,
    "RUN_NOT_CANCELLABLE": None,
    "TOOL_OUTPUTS_NOT_ACCEPTED": None,
    "TOOL_OUTPUTS_INCOMPLETE": None,
    "TOOL_CALL_MISSING": None,
    "TOOL_OUTPUT_MISSING": None,
    "SEAL_INVALID": "invalid_encrypted_content",
    "RATE_LIMITED": "rate_limit_exceeded",
    "BUDGET_EXCEEDED": "insufficient_quota",
}


def make_error(cls: type[DomainError]) -> DomainError:
    values: dict[str, Any] = dict.fromkeys(cls.metadata_keys(), 7)
    return cls(**{**values, **({"maximum": 5} if "maximum" in values else {})})


def to_rpc_error(error: DomainError, request_id: str = "req_1") -> grpc.aio.AioRpcError:
    """Return the exception of a client for this error of a server."""
    code, details, trailers = to_status(error, request_id)
    return grpc.aio.AioRpcError(
        code, grpc.aio.Metadata(), grpc.aio.Metadata(*trailers), details=details
    )


def make_bare_status(
    code: grpc.StatusCode, details: str = "", **trailers: bytes
) -> grpc.aio.AioRpcError:
    pairs = [(key.replace("_", "-"), value) for key, value in trailers.items()]
    return grpc.aio.AioRpcError(
        code, grpc.aio.Metadata(), grpc.aio.Metadata(*pairs), details=details
    )


def test_every_kind_has_a_row() -> None:
    """Otherwise its errors could not be sent."""
    assert list(KIND_ROWS) == list(KINDS)
    assert sorted(EXPECTED) == sorted(kind.__name__ for kind in KINDS)


@pytest.mark.parametrize("cls", ERROR_CLASSES, ids=lambda cls: cls.reason)
def test_the_codes_of_every_error(cls: type[DomainError]) -> None:
    """Those of its kind, with a more specific HTTP status for some."""
    code, status, kind, retryable = EXPECTED[kind_of(cls).__name__]
    error = make_error(cls)
    body = openai_error(error)

    assert status_row(cls).grpc_code is code
    assert http_status(error) == EXACT_STATUS.get(cls.reason, status)
    assert body["type"] == EXACT_TYPE.get(cls.reason, kind)
    assert body["code"] == OPENAI_CODES.get(cls.reason, cls.reason.lower())
    assert is_retryable(error) is retryable


@pytest.mark.parametrize("cls", ERROR_CLASSES, ids=lambda cls: cls.reason)
def test_the_openai_envelope_has_all_four_keys(cls: type[DomainError]) -> None:
    """message, type, param and code; null is not omitted."""
    error = make_error(cls)

    assert openai_error(error).keys() == {"message", "type", "param", "code"}
    assert openai_error(error)["message"] == error.message
    assert openai_error(error)["param"] == error.field


@pytest.mark.parametrize(
    ("value", "minimum", "maximum", "code"),
    [
        (-1, 0, None, "integer_below_min_value"),
        (9, 0, 5, "integer_above_max_value"),
        (-0.5, 0.0, None, "decimal_below_min_value"),
        (2.5, 0.0, 2.0, "decimal_above_max_value"),
        (float("nan"), 0.0, 2.0, "invalid_value"),
        ("many", 0, 2, "invalid_value"),
        (float("inf"), None, None, "invalid_value"),
    ],
)
def test_out_of_range_has_openais_code(
    value: float | str, minimum: float | None, maximum: float | None, code: str
) -> None:
    """It depends on the type of the number and the exceeded limit."""
    error = errors.OutOfRange(field="f", value=value, minimum=minimum, maximum=maximum)

    assert openai_error(error)["code"] == code


@pytest.mark.parametrize(
    ("unit", "code"),
    [
        ("items", "array_above_max_length"),
        ("tokens", "array_above_max_length"),
        ("characters", "string_above_max_length"),
        ("bytes", "string_above_max_length"),
    ],
)
def test_too_long_has_openais_code(unit: str, code: str) -> None:
    """It differs for strings and arrays."""
    error = errors.TooLong(field="stop", length=9, limit=4, unit=unit)

    assert openai_error(error)["code"] == code


@pytest.mark.parametrize(
    ("length", "unit", "code"),
    [
        (0, "items", "empty_array"),
        (1, "items", "array_below_min_length"),
        (0, "characters", "empty_string"),
        (1, "characters", "string_below_min_length"),
    ],
)
def test_too_short_has_openais_code(length: int, unit: str, code: str) -> None:
    """It differs for empty values."""
    error = errors.TooShort(field="stop", length=length, minimum=2, unit=unit)

    assert openai_error(error)["code"] == code


# ---- over the wire


@pytest.mark.parametrize("cls", ERROR_CLASSES, ids=lambda cls: cls.reason)
def test_the_client_gets_the_class_that_the_server_raised(cls: type[DomainError]) -> None:
    error = make_error(cls)
    decoded = from_rpc_error(to_rpc_error(error))

    assert decoded == error
    assert decoded.message == error.message
    if kind_of(cls) is errors.Internal:
        return
    assert {key: str(getattr(decoded, key)) for key in decoded.metadata} == error.metadata


def test_counts_are_decoded_as_numbers() -> None:
    """The gateway computes with them."""
    error = errors.ContextLengthExceeded(field="messages", prompt_tokens=9, context_tokens=4)
    decoded = from_rpc_error(to_rpc_error(error))

    assert isinstance(decoded, errors.ContextLengthExceeded)
    assert decoded.prompt_tokens + decoded.context_tokens == 13


def unpack_details(error: DomainError) -> dict[str, Any]:
    """Return the details of an encoded error by message name."""
    trailers = dict(to_status(error, "req_1").trailing_metadata)
    status = status_pb2.Status.FromString(trailers["grpc-status-details-bin"])
    found = {}
    for packed in status.details:
        name = packed.TypeName().removeprefix("google.rpc.")
        found[name] = getattr(error_details_pb2, name)()
        packed.Unpack(found[name])
    return found


def test_error_info_has_reason_domain_and_metadata() -> None:
    """For clients without Corral's code."""
    info = unpack_details(errors.ModelNotFound(model="m"))["ErrorInfo"]

    assert (info.reason, info.domain, dict(info.metadata)) == (
        "MODEL_NOT_FOUND",
        "corral",
        {"model": "m"},
    )


def test_an_invalid_field_is_a_bad_request() -> None:
    """The standard error detail, with the problem as description."""
    details = unpack_details(errors.InvalidField(field="stop[2]", problem="too odd"))
    violation = details["BadRequest"].field_violations[0]

    assert (violation.field, violation.description) == ("stop[2]", "too odd")
    assert "BadRequest" not in unpack_details(errors.ModelNotFound(model="m"))


def test_only_retryable_errors_have_retry_info() -> None:
    delay = unpack_details(errors.Draining(retry_after=2.5))["RetryInfo"].retry_delay

    assert (delay.seconds, delay.nanos) == (2, 500_000_000)
    assert "RetryInfo" not in unpack_details(errors.ApiKeyMissing())


def test_the_request_id_is_sent_as_detail_and_trailer() -> None:
    """RequestInfo, and a plain trailer."""
    error = errors.Draining()

    assert unpack_details(error)["RequestInfo"].request_id == "req_1"
    assert request_id_of(to_rpc_error(error, "req_1")) == "req_1"


def test_trailers_stay_below_eight_kib() -> None:
    """Peers reject larger ones."""
    wide = "\U0001f600" * 4000
    error = errors.SchemaInvalid(field=wide, pointer=wide, problem=wide)
    _, message, trailers = to_status(error, "req_1")
    binary = sum(len(value) * 4 / 3 for _, value in trailers if isinstance(value, bytes))
    percent_encoded = 3 * len(message.encode())

    assert binary + percent_encoded < 8 * 1024


def test_an_unknown_reason_keeps_kind_reason_and_retry_delay() -> None:
    sent = errors.Unavailable.with_reason(
        reason="MOON_PHASE", message="Not tonight.", metadata={"phase": "full"}, retry_after=9
    )
    decoded = from_rpc_error(to_rpc_error(sent))

    assert type(decoded) is errors.Unavailable
    assert decoded == sent
    assert openai_error(decoded)["code"] == "moon_phase"


def test_the_message_of_the_server_is_kept() -> None:
    """A newer server may have another message."""
    sent = to_rpc_error(errors.ModelNotFound(model="m"))
    reworded = grpc.aio.AioRpcError(
        sent.code(), sent.initial_metadata(), sent.trailing_metadata(), "There is no m."
    )

    assert from_rpc_error(reworded).message == "There is no m."


def test_kind_and_reason_are_kept_if_the_metadata_differ() -> None:
    """A key may be missing or have another type in another release."""
    for metadata in ({"bound": "requests"}, {"bound": "r", "depth": "x", "limit": "1"}):
        sent = errors.ResourceExhausted.with_reason(
            reason="QUEUE_FULL", message="Full.", metadata=metadata, retry_after=3
        )
        decoded = from_rpc_error(to_rpc_error(sent))

        assert type(decoded) is errors.ResourceExhausted
        assert decoded == sent


@pytest.mark.parametrize(
    ("code", "text", "expected"),
    [
        (Code.UNAVAILABLE, "refused", errors.UpstreamUnavailable(service="inference")),
        (Code.DEADLINE_EXCEEDED, "", errors.DeadlineExpired(phase="call")),
        (Code.CANCELLED, "", errors.UpstreamUnavailable(service="inference")),
        (Code.INTERNAL, "/etc/secret", errors.InternalError(request_id="")),
        (Code.UNKNOWN, "Unexpected KeyError", errors.InternalError(request_id="")),
        (
            Code.RESOURCE_EXHAUSTED,
            "SERVER: Received message larger than max (300 vs. 200)",
            errors.RequestTooLarge(size=300, limit=200),
        ),
        (
            Code.RESOURCE_EXHAUSTED,
            "Concurrent RPC limit exceeded!",
            errors.ResourceExhausted.with_reason(reason="RESOURCE_EXHAUSTED", message=""),
        ),
        (
            Code.NOT_FOUND,
            "nothing",
            errors.NotFound.with_reason(reason="NOT_FOUND", message="nothing"),
        ),
    ],
)
def test_a_bare_status_becomes_the_nearest_error(
    code: grpc.StatusCode, text: str, expected: DomainError
) -> None:
    """As sent by gRPC and proxies. Their message of an internal error is not used."""
    decoded = from_rpc_error(make_bare_status(code, text), "inference")

    assert decoded == expected
    assert "secret" not in decoded.message


def test_invalid_details_are_ignored() -> None:
    error = make_bare_status(Code.UNAVAILABLE, grpc_status_details_bin=b"\xff\xff\xff")

    assert from_rpc_error(error, "x") == errors.UpstreamUnavailable(service="x")
