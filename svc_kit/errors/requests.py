"""Errors of fields, bodies, paths and request ids."""

from svc_kit.errors.kinds import Aborted, AlreadyExists, InvalidArgument, NotFound, Unimplemented


class InvalidField(InvalidArgument):
    """Invalid '{field}': {problem}"""

    field: str
    problem: str


class MissingField(InvalidArgument):
    """Missing required parameter: '{field}'."""

    field: str


class OutOfRange(InvalidArgument):
    """Invalid '{field}': {value} is out of range."""

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

    field: str
    length: int
    limit: int
    unit: str = "items"
    """What is counted, as a plural such as "items", "characters", "bytes" or "parts"."""


class TooShort(InvalidArgument):
    """Invalid '{field}': got {length} {unit}, expected at least {minimum}."""

    field: str
    length: int
    minimum: int
    unit: str = "items"
    """What is counted: "items" or "characters"."""


class UnknownField(InvalidArgument):
    """Unknown parameter: '{field}'."""

    field: str


class InvalidType(InvalidArgument):
    """Invalid type for '{field}': expected {expected}."""

    field: str
    expected: str


class InvalidJson(InvalidArgument):
    """The JSON of '{field}' cannot be parsed: {problem}"""

    field: str | None = None
    """None if the request body itself is invalid."""
    problem: str

    def _describe(self) -> str:
        if self.field is not None:
            return super()._describe()
        return f"We could not parse the JSON body of your request. ({self.problem})"


class RequestTooLarge(InvalidArgument):
    """The request has {size} bytes, the maximum is {limit}."""

    size: int
    limit: int


class BodyTooSlow(InvalidArgument):
    """The body of the request did not arrive in time: {problem}."""

    problem: str


class UnsupportedMediaType(InvalidArgument):
    """The {header} '{media_type}' is not supported. Send {expected}."""

    media_type: str
    expected: str = "application/json"
    header: str = "content type"


class UnsupportedValue(InvalidArgument):
    """Unsupported value: '{field}' does not support '{value}' on this server."""

    field: str
    value: str


class UnsupportedField(InvalidArgument):
    """Unsupported parameter: '{field}' is not supported by this server."""

    field: str
    problem: str | None = None
    """Why not, or what to do instead."""

    def _describe(self) -> str:
        text = super()._describe()
        return text if self.problem is None else f"{text.removesuffix('.')}: {self.problem}."


class MethodNotAllowed(InvalidArgument):
    """Invalid method for URL ({method} {path})"""

    method: str
    path: str


class RouteNotFound(NotFound):
    """Invalid URL ({method} {path})"""

    method: str
    path: str
    routes: str = ""
    """Routes of the same API, for the message."""

    def _describe(self) -> str:
        known = f". This API has: {self.routes}" if self.routes else ""
        return super()._describe() + known


class RequestIdReused(AlreadyExists):
    """The request id '{request_id}' was used for a different request within the last day. Use a new
    id."""

    field: str
    request_id: str


class StaleGeneration(Aborted):
    """'{resource}' was changed by another request. Read it again and retry."""

    resource: str


class FeatureUnsupported(Unimplemented):
    """This release does not support: {feature}."""

    feature: str
