"""The principal of a call: project, scopes, priority."""

import contextvars
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from svc_kit.auth.scopes import Scope
from svc_kit.errors import ApiKeyMissing

DEFAULT_PROJECT: Final = "default"


class Priority(IntEnum):
    """Scheduling priority, with the values of `corral.inference.v1.Priority`."""

    BATCH = 1
    NORMAL = 2
    INTERACTIVE = 3


@dataclass(frozen=True, kw_only=True)
class Principal:
    """The authenticated caller: project, scopes and priority."""

    project: str = DEFAULT_PROJECT
    scopes: frozenset[str]
    priority: Priority = Priority.NORMAL
    """The highest priority that the caller may request, and the default."""
    key_id: str
    """The credential's name in logs; never the credential itself."""
    is_service: bool = False
    """Whether the caller is one of Corral's services."""

    def has(self, scope: Scope) -> bool:
        """Whether methods with this scope may be called."""
        return scope in (Scope.PUBLIC, Scope.KNOWN) or scope in self.scopes


_principal: contextvars.ContextVar[Principal | None] = contextvars.ContextVar(
    "principal", default=None
)


def current_principal() -> Principal:
    """The principal of the running call. Raises ApiKeyMissing outside an authenticated call."""
    principal = _principal.get()
    if principal is None:
        raise ApiKeyMissing()
    return principal


def current_key() -> str:
    """The key of the running call, or of the caller of the running job; empty if unknown."""
    principal = _principal.get()
    return "" if principal is None else principal.key_id


def set_principal(principal: Principal | None) -> None:
    """Set the principal of the running call, which is an asyncio task."""
    _principal.set(principal)
