"""Errors of fields, bodies, paths and request ids."""

from svc_kit.errors.kinds import Aborted, AlreadyExists, InvalidArgument, NotFound, Unimplemented


class InvalidField(InvalidArgument):
    """Invalid '{field}': {problem}"""

    reason = "INVALID_FIELD"
    field: str
    problem: str


class MissingField(InvalidArgument):
    """Missing required parameter: '{field}'."""

    reason = "MISSING_FIELD"
    field: str


class OutOfRange(InvalidArgument):
    """Invalid '{field}': {value} is out of range."""

    reason = "OUT_OF_RANGE"
    field: str
    value: float | str
    minimum: float | str | None = None
    maximum: float | str | None = None

    def _describe(self) -> str:
        limits = [
            f"at {word} {self.metadata[key]}"
            for key, word in (("minimum", "least"), ("maximum", "most"))
            if key in self.metadata
        ]
        allowed = " and ".join(limits) or "a finite number"
        return f"Invalid '{self.field}': must be {allowed}, got {self.metadata['value']}."


class TooLong(InvalidArgument):
    """Invalid '{field}': got {length} {unit}, expected at most {limit}."""

    reason = "TOO_LONG"
    field: str
    length: int
    limit: int
    unit: str = "items"
    """What is counted, as a plural such as "items", "characters", "bytes" or "parts"."""


class TooShort(InvalidArgument):
    """Invalid '{field}': got {length} {unit}, expected at least {minimum}."""

    reason = "TOO_SHORT"
    field: str
    length: int
    minimum: int
    unit: str = "items"
    """What is counted: "items" or "characters"."""


class UnknownField(InvalidArgument):
    """Unknown parameter: '{field}'."""

    reason = "UNKNOWN_FIELD"
    field: str


class InvalidType(InvalidArgument):
    """Invalid type for '{field}': expected {expected}."""

    reason = "INVALID_TYPE"
    field: str
    expected: str


class InvalidJson(InvalidArgument):
    """The JSON of '{field}' cannot be parsed: {problem}"""

    reason = "INVALID_JSON"
    field: str | None = None
    """None if the request body itself is invalid."""
    problem: str

    def _describe(self) -> str:
        if self.field is not None:
            return super()._describe()
        return f"We could not parse the JSON body of your request. ({self.problem})"


class RequestTooLarge(InvalidArgument):
    """The request has {size} bytes, the maximum is {limit}."""

    reason = "REQUEST_TOO_LARGE"
    size: int
    limit: int


class UnsupportedMediaType(InvalidArgument):
    """The content type '{media_type}' is not supported. Send {expected}."""

    reason = "UNSUPPORTED_MEDIA_TYPE"
    media_type: str
    expected: str = "application/json"


class UnsupportedValue(InvalidArgument):
    """Unsupported value: '{field}' does not support '{value}' on this server."""

    reason = "UNSUPPORTED_VALUE"
    field: str
    value: str


class UnsupportedField(InvalidArgument):
    """Unsupported parameter: '{field}' is not supported by this server."""

    reason = "UNSUPPORTED_FIELD"
    field: str


class MethodNotAllowed(InvalidArgument):
    """Invalid method for URL ({method} {path})"""

    reason = "METHOD_NOT_ALLOWED"
    method: str
    path: str


class RouteNotFound(NotFound):
    """Invalid URL ({method} {path})"""

    reason = "ROUTE_NOT_FOUND"
    method: str
    path: str


class RequestIdReused(AlreadyExists):
    """The request id '{request_id}' was used for a different request within the last day. Use a new
    id."""

    reason = "REQUEST_ID_REUSED"
    field: str
    request_id: str


class StaleGeneration(Aborted):
    """'{resource}' was changed by another request. Read it again and retry."""

    reason = "STALE_GENERATION"
    resource: str


class FeatureUnsupported(Unimplemented):
    """This release does not support: {feature}."""

    reason = "FEATURE_UNSUPPORTED"
    feature: str
