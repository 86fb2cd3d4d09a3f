"""Jobs for tests of the sandbox, which run in its child processes, and a runner without any."""

import os
import resource
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from svc_kit.sandbox.frames import read_reply, read_request, run_request, write_request
from svc_kit.sandbox.jobs import Job, JobRefused


class InlineJobs:
    """A `JobRunner` that runs jobs in this process, with the pool's encoding and errors."""

    async def run(self, job: Job, payload: Mapping[str, Any], *, key: str = "") -> Any:
        """Run one job and return its result. Raises JobFailed."""
        return read_reply(run_request(read_request(write_request(job, payload))))


def job(function: str, **limits: Any) -> Job:
    return Job(__name__, function, **limits)


def echo(payload: dict[str, Any]) -> dict[str, Any]:
    return payload


def own_pid(_: dict[str, Any]) -> int:
    return os.getpid()


def spin(_: dict[str, Any]) -> None:
    """Run an endless loop."""
    while True:
        pass


def sleep(_: dict[str, Any]) -> None:
    """Sleep longer than any time limit."""
    time.sleep(60)


def doze(payload: dict[str, Any]) -> str:
    """Sleep for `seconds`, as a job does that waits for a processor."""
    time.sleep(payload["seconds"])
    return "done"


def meet(payload: dict[str, Any]) -> int:
    """Wait until `number` processes run this job; return the process id."""
    folder = Path(payload["folder"])
    (folder / str(os.getpid())).touch()
    while len(list(folder.iterdir())) < payload["number"]:
        time.sleep(0.005)
    return os.getpid()


def wait_for(payload: dict[str, Any]) -> None:
    """Wait until a file exists."""
    while not Path(payload["file"]).exists():
        time.sleep(0.005)


def read(payload: dict[str, Any]) -> str:
    return Path(payload["file"]).read_text()


def eat_memory(payload: dict[str, Any]) -> int:
    return len(bytearray(payload["bytes"]))


def exhaust(_: dict[str, Any]) -> None:
    raise MemoryError


def write_much(payload: dict[str, Any]) -> str:
    return "x" * int(payload["characters"])


def die(_: dict[str, Any]) -> None:
    os.abort()


def refuse(payload: dict[str, Any]) -> None:
    raise JobRefused(payload["why"])


def fail(_: dict[str, Any]) -> None:
    """Raise an unexpected error."""
    raise KeyError("secret detail")


def recurse(_: dict[str, Any]) -> None:
    """Recurse without end."""
    recurse(_)


def environment(_: dict[str, Any]) -> dict[str, str]:
    return dict(os.environ)


def try_mischief(payload: dict[str, Any]) -> list[str]:
    """Try forbidden operations; return the names of those that were refused."""
    refused = []
    try:
        Path(payload["file"]).write_text("data")
    except OSError:
        refused.append("write")
    try:
        [socket.socket() for _ in range(200)]
    except OSError:
        refused.append("descriptors")
    if resource.getrlimit(resource.RLIMIT_NPROC) == (0, 0):
        refused.append("fork")
    return refused
