"""The running call of a method with the scope admin, for the audit log."""

import asyncio
import contextvars
import math
import time
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from google.protobuf.json_format import MessageToJson
from google.protobuf.message import Message

from svc_kit.logs import hide_queries

MAX_REQUEST_CHARACTERS: Final = 16_384
"""Length of a stored request; a longer one is cut."""
REFUSAL_INTERVAL_S: Final = 600.0
REFUSAL_TIMEOUT_S: Final = 2.0
"""How long the answer to a refused call waits for the audit log."""
_MAX_REMEMBERED: Final = 10_000


class AdminCall(NamedTuple):
    """A call of a method with the scope admin."""

    method: str
    """As in "/package.Service/Method"."""
    peer: str
    """Who called, as gRPC names a peer."""
    request: Message | None
    """None: the call was refused before it was read."""
    refusal: str = ""
    """The reason of the error with which the call was refused; empty if it succeeded."""

    @property
    def short_method(self) -> str:
        """As in "Service/Method"."""
        return self.method.rpartition(".")[2]

    @property
    def request_json(self) -> str:
        """The request as one line of JSON, for the log; URLs have no queries in it."""
        if self.request is None:
            return ""
        text = MessageToJson(self.request, indent=None, ensure_ascii=False)
        return hide_queries(text.replace("\\u0000", "")[:MAX_REQUEST_CHARACTERS])


RecordCall = Callable[[AdminCall], Awaitable[None]]
"""Records a call that has succeeded or was refused, before it is answered."""


class RecentRefusals:
    """Records refusals: of a key and a method one in REFUSAL_INTERVAL_S, since a caller could fill
    the log with them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` is in seconds."""
        self._clock = clock
        self._recorded: dict[tuple[str, str], float] = {}

    async def record(
        self,
        key_id: str,
        method: str,
        record: Callable[[], Awaitable[None]],
        timeout_s: float = REFUSAL_TIMEOUT_S,
    ) -> None:
        """Record a refusal, unless one was recorded lately. Raises TimeoutError, and the errors of
        `record`: the next refusal is recorded then."""
        now, name = self._clock(), (key_id, method)
        if now - self._recorded.get(name, -math.inf) < REFUSAL_INTERVAL_S:
            return
        self._recorded.pop(name, None)
        self._recorded[name] = now
        if len(self._recorded) > _MAX_REMEMBERED:
            del self._recorded[next(iter(self._recorded))]
        try:
            async with asyncio.timeout(timeout_s):
                await record()
        except BaseException:
            self._recorded.pop(name, None)
            raise


_admin_call: contextvars.ContextVar[AdminCall] = contextvars.ContextVar("admin_call")


def current_admin_call() -> AdminCall:
    """The running call. Raises LookupError outside a call of a method with the scope admin."""
    return _admin_call.get()


def set_admin_call(call: AdminCall) -> None:
    """Set the running call of this asyncio task."""
    _admin_call.set(call)
