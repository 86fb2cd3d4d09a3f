"""Errors of the services with the caller's names of fields."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from svc_kit.errors import KINDS, DomainError

Rename = Callable[[DomainError], DomainError]
"""Replaces the proto field name in an error by that of the caller's body."""
_WRAPPERS = frozenset(
    (
        "new_response",
        "settings",
        "options",
        "sampling",
        "stopping",
        "output",
        "cache",
        "scheduling",
        "conversation",
        "template",
    )
)
"""Proto messages whose fields are top-level fields of a body."""


def field_steps(field: str) -> list[str]:
    """The steps of a proto field's path, without messages whose fields a body has at its top."""
    steps = field.split(".")
    while len(steps) > 1 and steps[0] in _WRAPPERS:
        steps.pop(0)
    return steps


def with_field(error: DomainError, field: str) -> DomainError:
    """The same error with another field."""
    if field == error.field:
        return error
    metadata = error.metadata | {"field": field}
    if type(error) in KINDS:  # a reason of another release
        return type(error).with_reason(
            reason=error.reason,
            message=error.message,
            metadata=metadata,
            retry_after=error.retry_after,
        )
    return type(error).from_metadata(metadata, error.retry_after)


@contextmanager
def renamed(rename: Rename) -> Iterator[None]:
    """Rename the field of an error that the block raises."""
    try:
        yield
    except DomainError as error:
        raise rename(error) from error.__cause__
