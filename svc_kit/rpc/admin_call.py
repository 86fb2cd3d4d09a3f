"""The running call of a method with the scope admin, for the audit log."""

import contextvars
from typing import NamedTuple

from google.protobuf.message import Message


class AdminCall(NamedTuple):
    """A call of a method with the scope admin."""

    method: str
    """As in "/package.Service/Method"."""
    peer: str
    """Who called, as gRPC names a peer."""
    request: Message


_admin_call: contextvars.ContextVar[AdminCall] = contextvars.ContextVar("admin_call")


def current_admin_call() -> AdminCall:
    """The running call. Raises LookupError outside a call of a method with the scope admin."""
    return _admin_call.get()


def set_admin_call(call: AdminCall) -> None:
    """Set the running call of this asyncio task."""
    _admin_call.set(call)
