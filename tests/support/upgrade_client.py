"""A client of an installation that is upgraded: its API, and what its operator does."""

import contextlib
import hashlib
import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import httpx
from corral.control.v1 import job_service_pb2
from corral.control.v1.job_service_pb2_grpc import JobServiceStub

from tests.support.services import CORRAL, Corral


class FixtureError(Exception):
    """The services did not reach the required state."""


def wait_until(condition: Callable[[], Any], problem: str, timeout_s: float = 60.0) -> Any:
    """Poll until the condition is true; return its value. Raises FixtureError with the problem."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        with contextlib.suppress(httpx.TransportError, grpc.RpcError):
            if result := condition():
                return result
        time.sleep(0.02)
    raise FixtureError(problem)


@dataclass
class Api:
    """HTTP client of a running Corral; records the requests that the test repeats."""

    corral: Corral
    http: httpx.Client
    repeatable: list[dict[str, Any]] = field(default_factory=list)

    def request(self, method: str, path: str, **options: Any) -> Any:
        """Send a request and return the JSON of the response. Raises FixtureError."""
        response = self.http.request(method, f"/v1{path}", **options)
        if response.is_error:
            raise FixtureError(f"{method} {path}: {response.status_code} {response.text}")
        return response.json()

    def get(self, path: str, **params: Any) -> Any:
        return self.request("GET", path, params=params)

    def post(self, path: str, key: str = "", **body: Any) -> Any:
        """Create an object. With an idempotency key, the test repeats the request."""
        headers = {"idempotency-key": key} if key else {}
        made = self.request("POST", path, json=body, headers=headers)
        if key:
            self.repeatable.append({"path": path, "key": key, "json": body, "id": made["id"]})
        return made

    def file(self, name: str, content: bytes, purpose: str, key: str = "", **form: str) -> Any:
        headers = {"idempotency-key": key} if key else {}
        form = {"purpose": purpose, **form}
        made = self.request(
            "POST", "/files", data=form, files={"file": (name, content)}, headers=headers
        )
        if key:
            sent = {"name": name, "content": content.decode(), "form": form}
            self.repeatable.append({"path": "/files", "key": key, "file": sent, "id": made["id"]})
        return made

    def adapter(self, name: str, content: bytes, **form: str) -> Any:
        return self.request(
            "POST",
            "/adapters",
            data={"name": name, **form},
            files={"file": (f"{name}.gguf", content)},
        )

    def batch(self, lines: list[dict[str, Any]], key: str = "", name: str = "in.jsonl") -> Any:
        content = "".join(json.dumps(line) + "\n" for line in lines).encode()
        file = self.file(name, content, "batch")
        return self.post(
            "/batches",
            key,
            input_file_id=file["id"],
            endpoint="/v1/chat/completions",
            completion_window="24h",
            metadata={"made": "before"},
        )

    def wait_for_status(self, path: str, *states: str) -> Any:
        def get_in_state() -> Any:
            resource = self.get(path)
            return resource if resource["status"] in states else None

        return wait_until(get_in_state, f"{path} is not {states}")

    def events(self, path: str, **params: str) -> str:
        """Read all events of a finished stream."""
        response = self.http.get(f"/v1{path}", params=params)
        response.raise_for_status()
        return response.text

    def events_so_far(self, path: str, required: str, **params: str) -> str:
        """Read an open stream until 1 s passes without an event. `required` must have occurred."""
        text = ""
        with (
            contextlib.suppress(httpx.ReadTimeout),
            self.http.stream("GET", f"/v1{path}", params=params, timeout=1.0) as response,
        ):
            for part in response.iter_text():
                text += part
        if required not in text:
            raise FixtureError(f"{path}: no {required} in {text}")
        return text[: text.rfind("\n\n") + 2]

    def wait_for_events(self, path: str, name: str, **params: str) -> None:
        """Read an open stream until it has three events with this name."""
        text = ""
        with self.http.stream("GET", f"/v1{path}", params=params) as response:
            for part in response.iter_text():
                text += part
                if text.count(f"event: {name}") > 2:
                    break


@contextlib.contextmanager
def connect(corral: Corral, secret: str = "") -> Iterator[Api]:
    headers = {"authorization": f"Bearer {secret}"} if secret else {}
    with httpx.Client(base_url=corral.url, headers=headers, timeout=60, trust_env=False) as http:
        yield Api(corral, http)


@dataclass
class Operator:
    """The operator of the installation, who has the service token."""

    corral: Corral
    token_file: Path

    def command(self, *arguments: str) -> str:
        """Run `corral` and return its output. Raises FixtureError."""
        access = ["--control", self.corral.control, "--service-token-file", str(self.token_file)]
        completed = subprocess.run(
            [str(CORRAL), *arguments, *access],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(Path.cwd()), str(Path.cwd() / "gen")]),
            },
            text=True,
            capture_output=True,
            check=False,
        )
        if completed.returncode:
            raise FixtureError(completed.stderr)
        return completed.stdout

    def key(self, project: str, *flags: str) -> dict[str, str]:
        """Create an API key; return its secret and id."""
        words = self.command("keys", "create", "--project", project, *flags).split()
        secret = words[words.index("once):") + 1]
        return {"secret": secret, "id": next(each for each in words if each.startswith("key_"))}

    def jobs(self, state: Any = job_service_pb2.Job.STATE_UNSPECIFIED) -> list[Any]:
        bearer = ("authorization", f"Bearer {self.token_file.read_text().strip()}")
        with grpc.insecure_channel(self.corral.control) as channel:
            request = job_service_pb2.ListJobsRequest(state=state)
            response = JobServiceStub(channel).ListJobs(request, metadata=(bearer,), timeout=10)
        return list(response.jobs)


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def mask_times(text: str) -> str:
    """Replace every time in JSON by null, because the test shifts times to the present."""
    return re.sub(r'("(?:\w+_at|created)":)\s*\d+', r"\1null", text)
