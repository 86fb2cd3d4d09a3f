"""HEAD on every route that has GET."""

from starlette.types import ASGIApp, Receive, Scope, Send


class HeadRequests:
    """Serves HEAD as GET. The listener leaves out the body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return
        served = {**scope, "method": "GET"}
        try:
            await self._app(served, receive, send)
        finally:
            scope.update(served | {"method": "HEAD"})  # the route, for metrics
