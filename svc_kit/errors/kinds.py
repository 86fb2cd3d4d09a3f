"""The thirteen kinds of errors. A kind decides the gRPC and HTTP status and whether a retry can
help.
"""

from typing import Final

from svc_kit.errors.domain_error import DomainError


class InvalidArgument(DomainError):
    """The request is wrong, whatever the state of the server."""


class FailedPrecondition(DomainError):
    """The request is right, the state of the server is not."""


class Unauthenticated(DomainError):
    """Who calls is not known."""


class PermissionDenied(DomainError):
    """Who calls is known and may not."""


class NotFound(DomainError):
    """The named thing does not exist."""


class AlreadyExists(DomainError):
    """The name is taken."""


class Aborted(DomainError):
    """A conflict with something concurrent; try again."""


class ResourceExhausted(DomainError):
    """A bound is reached; try again later."""

    retry_after: float | None = 1.0


class Cancelled(DomainError):
    """The caller or an operator ended it."""


class DeadlineExceeded(DomainError):
    """The time is over."""


class Unavailable(DomainError):
    """Not now; try again later."""

    retry_after: float | None = 1.0


class Unimplemented(DomainError):
    """Not in this release."""


class Internal(DomainError):
    """A defect of ours."""


KINDS: Final[tuple[type[DomainError], ...]] = tuple(DomainError.__subclasses__())
"""In the order of the tree."""


def kind_of(error: DomainError | type[DomainError]) -> type[DomainError]:
    """The kind an error belongs to: the class directly below DomainError."""
    cls = error if isinstance(error, type) else type(error)
    return cls.__mro__[cls.__mro__.index(DomainError) - 1]
