"""Azure's paths for OpenAI's API, which are served as OpenAI's: `/openai/v1/...` (also Groq's),
`/openai/...`, and `/openai/deployments/NAME/...`, where NAME is the model of the body.

Only paths of OpenAI's API are served. A proxy that keeps callers from some of them needs a rule for
`/openai/` too.
"""

import re
from typing import Any, Final

from starlette.types import ASGIApp, Receive, Scope, Send

from dialects.shared.parameters import ignore_parameter

_DEPLOYMENT: Final = "corral.deployment"
_RESOURCES: Final = (
    "assistants|audio|batches|chat|completions|conversations|embeddings|files|models|responses|"
    "threads|vector_stores"
)
_PATH: Final = re.compile(rf"/openai(?:/v1)?(/(?:{_RESOURCES})(?:/.*)?)", re.DOTALL)
_DEPLOYED: Final = re.compile(
    r"/openai/deployments/([^/]+(?:/[^/]+)*?)"
    r"(/(?:chat/completions|completions|embeddings|audio/transcriptions|audio/translations))"
)


class AzurePaths:
    """ASGI middleware that replaces Azure's paths."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request or a WebSocket."""
        path = scope.get("path", "")
        if path.startswith("/openai/"):
            if deployed := _DEPLOYED.fullmatch(path):
                scope[_DEPLOYMENT], path = deployed.groups()
            elif found := _PATH.fullmatch(path):
                path = found[1]
            if path != scope["path"]:
                scope["path"] = f"/v1{path}"
        await self._app(scope, receive, send)


def with_deployment(scope: Scope, fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a body with the deployment of its path, if it has one, as the model. As on
    Azure, another model in the body is ignored."""
    name = scope.get(_DEPLOYMENT)
    if name is None:
        return fields
    if fields.get("model", name) != name:
        ignore_parameter("model", "the path has the deployment")
    return {**fields, "model": name}
