"""Sends what waits in a folder, usage or audit events, until the control service has it."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, ClassVar, Final, Generic, TypeVar

from svc_kit.errors import DomainError, InvalidArgument
from svc_kit.logs import OutageLevel
from svc_kit.rpc.client import translate_errors

_log = logging.getLogger(__name__)
_TIMEOUT_S: Final = 5.0
"""With the interval of their renewals less than the lease of limits."""
_LAST_TIMEOUT_S: Final = 2.0

Request = TypeVar("Request")
Answer = TypeVar("Answer")


def make_sender(
    method: Callable[..., Awaitable[Answer]], timeout_s: float = _TIMEOUT_S
) -> Callable[[Any], Awaitable[Answer]]:
    """Return a function that sends a request to a method of the control service. It raises a
    `DomainError` unless it is answered within `timeout_s` seconds."""

    async def send(request: Any) -> Answer:
        with translate_errors("control"):
            return await method(request, timeout=timeout_s)

    return send


class Reporter(ABC, Generic[Request]):
    """Sends the waiting reports, one request at a time. `content` names them in the log."""

    content: ClassVar[str]

    def __init__(
        self,
        send: Callable[[Request], Awaitable[object]],
        outage_level: OutageLevel | None = None,
    ) -> None:
        """`send` raises a `DomainError` unless the request is acknowledged."""
        self._send = send
        self._outage_level = outage_level or OutageLevel()

    @abstractmethod
    def _requests(self) -> AsyncGenerator[Request, None]:
        """Yield what waits, the oldest first. The next step removes what was yielded."""

    async def _on_outage(self) -> None:
        """Prepare for a long wait."""

    async def run(self, interval_s: float) -> None:
        """Report at an interval until cancelled."""
        while True:
            await asyncio.sleep(interval_s)
            await self.report()

    async def report(self) -> None:
        """Send all that waits. What is not acknowledged is sent again the next time, unless it is
        refused, as it always would be."""
        async with aclosing(self._requests()) as requests:
            async for request in requests:
                try:
                    await self._send(request)
                except InvalidArgument as error:
                    _log.error("the control service refused %s: %s", self.content, error)
                except DomainError as error:
                    level = self._outage_level(error)
                    _log.log(level, "%s cannot be reported now: %s", self.content, error)
                    await self._on_outage()
                    return

    async def report_last(self) -> None:
        """Report before the process ends, with a short timeout."""
        try:
            async with asyncio.timeout(_LAST_TIMEOUT_S):
                await self.report()
        except TimeoutError:
            _log.warning("the control service does not take the last %s in time", self.content)
