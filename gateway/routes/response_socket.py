"""The WebSocket at /v1/responses."""

from fastapi import APIRouter
from starlette.websockets import WebSocket, WebSocketDisconnect

from gateway.errors import error_response
from gateway.parts import Parts
from gateway.response_socket import ResponseSocket, identified
from svc_kit.errors import DomainError, Draining


def response_socket_router(parts: Parts) -> APIRouter:
    """The route of the WebSocket; what is refused before it opens is answered as over HTTP."""
    router = APIRouter()

    @router.websocket("/v1/responses")
    async def serve_socket(websocket: WebSocket) -> None:
        """Responses in both directions."""
        try:
            if parts.live.closed:
                raise Draining
            await identified(websocket, parts)
        except DomainError as error:
            await websocket.send_denial_response(error_response(error))
            return
        try:
            await ResponseSocket(websocket, parts).run()
        except WebSocketDisconnect:
            return  # the client left while something was written

    return router
