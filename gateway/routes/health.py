"""GET /health and /ready: whether the process lives, and whether requests can be answered."""

from fastapi import APIRouter
from starlette.responses import Response

from gateway.docs import answers
from gateway.errors import json_response
from gateway.parts import Parts


def health_router(parts: Parts) -> APIRouter:
    """The routes of probes; they need no key."""
    router = APIRouter()

    @router.head("/health", include_in_schema=False)
    @router.get("/health", summary="Liveness", responses=answers("The process lives."))
    async def health() -> Response:
        """Answers while the process lives, whatever the state of the services behind it."""
        return json_response({"status": "ok"})

    @router.head("/ready", include_in_schema=False)
    @router.get("/ready", summary="Readiness", responses=answers("Requests are served."))
    async def ready() -> Response:
        """Answers 503 while the inference service cannot be reached, loads, or drains."""
        await parts.check_ready()
        return json_response({"status": "ready"})

    return router
