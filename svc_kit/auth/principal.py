"""The principal of a call: project, scopes, priority."""

import contextvars
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from svc_kit.auth.scopes import Scope
from svc_kit.errors import ApiKeyMissing

DEFAULT_PROJECT: Final = "default"


class Priority(IntEnum):
    """How urgent a caller's work may be; the values are those of `corral.inference.v1.Priority`."""

    BATCH = 1
    NORMAL = 2
    INTERACTIVE = 3


@dataclass(frozen=True, kw_only=True)
class Principal:
    """On whose behalf a call is made, and what it may do."""

    project: str = DEFAULT_PROJECT
    scopes: frozenset[str]
    priority: Priority = Priority.NORMAL
    """The highest priority the caller may ask for, and what it gets without asking."""
    key_id: str
    """What the log calls the credential; never the credential."""
    is_service: bool = False
    """Whether the credential is that of one of our own services."""

    def has(self, scope: Scope) -> bool:
        """Whether a method of this scope may be called."""
        return scope in (Scope.PUBLIC, Scope.KNOWN) or scope in self.scopes


_principal: contextvars.ContextVar[Principal | None] = contextvars.ContextVar(
    "principal", default=None
)


def current_principal() -> Principal:
    """Who the running call acts for. Raises ApiKeyMissing outside a call with a credential."""
    principal = _principal.get()
    if principal is None:
        raise ApiKeyMissing()
    return principal


def set_principal(principal: Principal | None) -> None:
    """Set the principal of the running call (this asyncio task)."""
    _principal.set(principal)
