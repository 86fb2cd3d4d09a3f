"""A server of model files: one repository as on the Hugging Face Hub, and plain URLs."""

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

REPOSITORY = "owner/models"
COMMIT = "c0ffee" * 6 + "beef"


@dataclass
class ModelHub:
    """`files` by name. `cuts` are the lengths after which the next bodies break off; `gate` holds
    bodies back at half their length until it is set. `requests` are paths with their ranges."""

    files: dict[str, bytes]
    endpoint: str = ""
    has_etags: bool = True
    has_lengths: bool = True
    joins_versions: bool = False
    """Whether it sends the rest of the file that it has now, whatever `if-range` says."""
    content_range: str = ""
    """Sent instead of the right one."""
    cuts: list[int] = field(default_factory=list)
    gate: threading.Event | None = None
    requests: list[tuple[str, str]] = field(default_factory=list)

    @property
    def host(self) -> str:
        return self.endpoint.removeprefix("http://")

    @property
    def variables(self) -> dict[str, str]:
        return {"HF_ENDPOINT": self.endpoint, "NO_PROXY": "127.0.0.1"}

    def ranges(self, name: str) -> list[str]:
        """The ranges of the requests for the content of a file; empty for all of it."""
        return [span for path, span in self.requests if path == f"/files/{name}"]

    def source(self, name: str) -> str:
        return f"hf:{REPOSITORY}/{name}"

    def url(self, name: str) -> str:
        return f"{self.endpoint}/files/{name}"

    def info(self) -> bytes:
        siblings = [
            {
                "rfilename": name,
                "size": len(content),
                "lfs": {
                    "sha256": hashlib.sha256(content).hexdigest(),
                    "size": len(content),
                    "pointerSize": 100,
                },
            }
            for name, content in self.files.items()
        ]
        return json.dumps({"id": REPOSITORY, "sha": COMMIT, "siblings": siblings}).encode()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: ModelHub

    def log_message(self, format: str, *args: object) -> None:
        """Write no log."""

    def do_GET(self) -> None:
        """Answer about the repository, redirect to a file, or send it."""
        path = self.path.partition("?")[0]
        self.hub.requests.append((path, self.headers.get("range", "")))
        resolved = f"/{REPOSITORY}/resolve/{COMMIT}/"
        if path.startswith(f"/api/models/{REPOSITORY}"):
            self._send(200, {}, self.hub.info())
        elif path.startswith(resolved):
            self._send(302, {"location": f"/files/{path.removeprefix(resolved)}"}, b"")
        elif path.startswith("/moved/"):
            self._send(302, {"location": f"/files/{path.removeprefix('/moved/')}"}, b"")
        elif path.startswith("/nowhere/"):
            self._send(302, {"location": "http://[::1"}, b"")
        elif path == "/away":
            self._send(302, {"location": "http://elsewhere.test/model.gguf"}, b"")
        elif (content := self.hub.files.get(path.removeprefix("/files/"))) is not None:
            self._send_file(content)
        else:
            self._send(404, {"x-error-code": "RepoNotFound"}, b"")

    def _send_file(self, content: bytes) -> None:
        etag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
        headers = {"etag": etag} if self.hub.has_etags else {}
        span = re.fullmatch(r"bytes=(\d+)-", self.headers.get("range", ""))
        is_same = self.hub.joins_versions or self.headers.get("if-range", etag) == etag
        start = int(span[1]) if span and is_same else 0
        if start >= len(content) > 0 and span:
            self._send(416, {"content-range": f"bytes */{len(content)}"}, b"")
            return
        if start:
            right = f"bytes {start}-{len(content) - 1}/{len(content)}"
            headers["content-range"] = self.hub.content_range or right
        self._send(206 if start else 200, headers, content[start:])

    def _send(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        if self.hub.has_lengths:
            headers = {**headers, "content-length": str(len(body))}
        else:
            self.close_connection = True
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if status >= 300 or self.path.startswith("/api/"):
            self.wfile.write(body)
            return
        half = len(body) // 2
        with suppress(ConnectionError):  # the client was killed
            if self.hub.cuts:
                self.wfile.write(body[: self.hub.cuts.pop(0)])
                self.close_connection = True
                return
            self.wfile.write(body[:half])
            if self.hub.gate is not None:
                self.hub.gate.wait(60)
            self.wfile.write(body[half:])


@contextmanager
def run_model_hub(files: dict[str, bytes]) -> Iterator[ModelHub]:
    """Serve files on a free port of loopback."""
    hub = ModelHub(files)
    handler = type("Handler", (_Handler,), {"hub": hub})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        hub.endpoint = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever).start()
        try:
            yield hub
        finally:
            if hub.gate is not None:
                hub.gate.set()
            server.shutdown()
