"""Asks clients of a gateway that ends to open another connection for their next request."""

from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class LastResponses:
    """ASGI middleware: while the gateway ends, each response is the last one of its connection, so
    that clients and proxies leave before it is closed."""

    def __init__(self, app: ASGIApp, is_ending: Callable[[], bool]) -> None:
        self._app = app
        self._is_ending = is_ending

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""

        async def send_last(message: Message) -> None:
            if message["type"] == "http.response.start" and self._is_ending():
                message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
            await send(message)

        await self._app(scope, receive, send_last)
