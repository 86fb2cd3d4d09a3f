"""The running call of a method with the scope admin, for the audit log."""

import contextvars
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from google.protobuf.json_format import MessageToJson
from google.protobuf.message import Message

from svc_kit.logs import hide_queries

MAX_REQUEST_CHARACTERS: Final = 16_384
"""Length of a stored request; a longer one is cut."""


class AdminCall(NamedTuple):
    """A call of a method with the scope admin."""

    method: str
    """As in "/package.Service/Method"."""
    peer: str
    """Who called, as gRPC names a peer."""
    request: Message

    @property
    def short_method(self) -> str:
        """As in "Service/Method"."""
        return self.method.rpartition(".")[2]

    @property
    def request_json(self) -> str:
        """The request as one line of JSON, for the log; URLs have no queries in it."""
        text = MessageToJson(self.request, indent=None, ensure_ascii=False)
        return hide_queries(text.replace("\\u0000", "")[:MAX_REQUEST_CHARACTERS])


RecordAct = Callable[[AdminCall], Awaitable[None]]
"""Records a call that has succeeded, before it is answered."""


_admin_call: contextvars.ContextVar[AdminCall] = contextvars.ContextVar("admin_call")


def current_admin_call() -> AdminCall:
    """The running call. Raises LookupError outside a call of a method with the scope admin."""
    return _admin_call.get()


def set_admin_call(call: AdminCall) -> None:
    """Set the running call of this asyncio task."""
    _admin_call.set(call)
