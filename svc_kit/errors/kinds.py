"""The kinds of errors. A kind determines the gRPC and HTTP status and whether to retry."""

from typing import Final

from svc_kit.errors.domain_error import DomainError


class InvalidArgument(DomainError):
    """The request is invalid, regardless of the state of the server."""


class FailedPrecondition(DomainError):
    """The request is valid, but not in the current state of the object or server."""


class Unauthenticated(DomainError):
    """The credential is missing or invalid."""


class PermissionDenied(DomainError):
    """The credential is valid, but does not permit the request."""


class NotFound(DomainError):
    """The named resource does not exist."""


class AlreadyExists(DomainError):
    """The name or id is already in use."""


class Aborted(DomainError):
    """A concurrent operation conflicted; retry."""


class ResourceExhausted(DomainError):
    """A limit is reached; retry later."""

    retry_after: float | None = 1.0


class Cancelled(DomainError):
    """The caller or an operator cancelled the request."""


class DeadlineExceeded(DomainError):
    """The deadline passed."""


class Unavailable(DomainError):
    """Temporarily unavailable; retry later."""

    retry_after: float | None = 1.0


class Unimplemented(DomainError):
    """This release does not support the request."""


class Internal(DomainError):
    """A defect of the server."""


KINDS: Final[tuple[type[DomainError], ...]] = tuple(DomainError.__subclasses__())


def kind_of(error: DomainError | type[DomainError]) -> type[DomainError]:
    """The kind of an error: its ancestor directly below DomainError."""
    cls = error if isinstance(error, type) else type(error)
    return cls.__mro__[cls.__mro__.index(DomainError) - 1]
