"""The page at /ui/: the static files of `gateway/page`, compressed for those who accept gzip.

They are served without a key; the page itself sends the key that its user enters.
"""

import base64
import gzip
import hashlib
import re
from collections.abc import Mapping
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Final

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, RedirectResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

INDEX: Final = "index.html"
_GZIP: Final = re.compile(r"(^|,)\s*(x-)?gzip\s*(;\s*q=(1|0?\.0*[1-9])|,|$)", re.IGNORECASE)
"""An Accept-Encoding with gzip, unless of weight 0, which refuses it."""
_IMPORT_MAP: Final = re.compile(r'<script type="importmap">(.*?)</script>', re.DOTALL)


class PageFiles(StaticFiles):
    """The files of the page, each with the security headers."""

    def __init__(self) -> None:
        super().__init__(packages=[("gateway", "page")])
        self._security = security_headers(
            resources.files("gateway").joinpath("page", INDEX).read_text(encoding="utf-8")
        )

    async def get_response(self, path: str, scope: Scope) -> Response:
        """A file, or 304 if the browser has it."""
        response = await super().get_response(path, scope)
        headers = Headers(scope=scope)
        accepts_gzip = _GZIP.search(headers.get("accept-encoding", "")) and "range" not in headers
        if isinstance(response, FileResponse) and accepts_gzip:
            response = await run_in_threadpool(_compressed, response)
        response.headers.update(self._security)
        return response


def _compressed(file: FileResponse) -> Response:
    """The same file in gzip. Its ETag is weak, since a strong one names the bytes of the file."""
    body = _read_compressed(Path(file.path), file.headers["etag"])
    headers = {name: file.headers[name] for name in ("content-type", "last-modified")}
    headers |= {"etag": f"W/{file.headers['etag']}", "content-encoding": "gzip"}
    return Response(body, file.status_code, headers)


@lru_cache(maxsize=128)  # the page has fewer files
def _read_compressed(path: Path, etag: str) -> bytes:
    """The file that has this ETag, compressed once."""
    return gzip.compress(path.read_bytes())


def security_headers(index: str) -> Mapping[str, str]:
    """The headers of every file: scripts and styles are those of the server, and so is every
    request. The import map is the only inline script; the policy contains its hash."""
    (import_map,) = _IMPORT_MAP.findall(index)
    digest = base64.b64encode(hashlib.sha256(import_map.encode()).digest()).decode()
    directives = (
        "default-src 'none'",
        f"script-src 'self' 'sha256-{digest}'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self' data: blob:",
        "media-src data: blob:",
        "manifest-src 'self'",
        "require-trusted-types-for 'script'",
        "trusted-types dompurify corral",
        "frame-ancestors 'none'",
        "base-uri 'none'",
        "form-action 'none'",
    )
    return {
        "content-security-policy": "; ".join(directives),
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cross-origin-opener-policy": "same-origin",
        "cache-control": "no-cache",
        "vary": "accept-encoding",
    }


def page_router() -> APIRouter:
    """The routes of the page. Their URLs are relative, for proxies that add a prefix."""
    router = APIRouter(include_in_schema=False)
    files = PageFiles()

    @router.get("/")
    async def root(request: Request) -> Response:
        """Browsers get the page; clients of Ollama, and Claude Code, ask whether it is running."""
        if "text/html" in request.headers.get("accept", ""):
            return RedirectResponse("ui/")
        return PlainTextResponse("Ollama is running")

    @router.get("/ui")
    async def without_slash() -> Response:
        return RedirectResponse("ui/")

    @router.get("/ui/{path:path}")
    async def page(request: Request, path: str) -> Response:
        return await files.get_response(path or INDEX, request.scope)

    return router
