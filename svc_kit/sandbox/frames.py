"""The protocol between the pool and a sandboxed child: a length, then JSON. Nothing from a child is
unpickled.
"""

import importlib
import json
import socket
import struct
from collections.abc import Callable, Mapping
from typing import Any

from svc_kit.sandbox.jobs import FailureKind, Job, JobFailed, JobRefused

HEADER = struct.Struct("!I")
READY = b'{"result": null}'
"""A child's first frame, unless it could not start."""
_MAX_PROBLEM_CHARACTERS = 500


def write_request(job: Job, payload: Mapping[str, Any]) -> bytes:
    """Encode a job for a child."""
    request = {
        "module": job.module,
        "function": job.function,
        "deadline_s": job.deadline_s,
        "memory_bytes": job.memory_bytes,
        "output_bytes": job.output_bytes,
        "payload": payload,
    }
    return json.dumps(request).encode()


def write_failure(kind: FailureKind, problem: str) -> bytes:
    """Encode the failure of a job, for the parent."""
    text = problem[:_MAX_PROBLEM_CHARACTERS].encode("utf-8", "replace").decode()
    return json.dumps({"failed": kind, "problem": text}).encode()


def read_reply(body: bytes) -> Any:
    """Return the result inside a child's reply.

    Raises:
        JobFailed: the reply is a failure, or nonsense.
    """
    try:
        reply = json.loads(body)
        if "result" in reply:
            return reply["result"]
        failed = JobFailed(FailureKind(reply["failed"]), str(reply["problem"]))
    except (ValueError, LookupError, TypeError, RecursionError):
        failed = JobFailed(FailureKind.CRASHED, "the child process answered nonsense")
    raise failed


def receive(connection: socket.socket) -> bytes | None:
    """Read one frame in the child. None: the pool has gone."""
    header = _receive_exactly(connection, HEADER.size)
    return None if header is None else _receive_exactly(connection, HEADER.unpack(header)[0])


def send(connection: socket.socket, body: bytes) -> None:
    """Write one frame in the child."""
    connection.sendall(HEADER.pack(len(body)) + body)


def _receive_exactly(connection: socket.socket, length: int) -> bytes | None:
    data = bytearray(length)
    view = memoryview(data)
    while view:
        count = connection.recv_into(view)
        if count == 0:
            return None
        view = view[count:]
    return bytes(data)


def answer(request: Mapping[str, Any], on_imported: Callable[[], None] = lambda: None) -> bytes:
    """Run the job of a request and return the reply, {"result": …} or {"failed": …, "problem": …}.

    `on_imported` is called between the import of its module and its run. Never raises: whatever a
    job does wrong is an answer too.
    """
    try:
        run = getattr(importlib.import_module(request["module"]), request["function"])
        on_imported()
        reply = json.dumps({"result": run(request["payload"])}).encode()
    except JobRefused as refused:
        return write_failure(FailureKind.REFUSED, str(refused))
    except MemoryError:
        return write_failure(FailureKind.MEMORY, "it needs too much memory")
    except RecursionError:
        return write_failure(FailureKind.REFUSED, "it is nested too deeply")
    except Exception as problem:
        return write_failure(FailureKind.CRASHED, f"it failed ({type(problem).__name__})")
    if len(reply) > request["output_bytes"]:
        return write_failure(FailureKind.OUTPUT, "its result is too long")
    return reply


class InlineJobs:
    """Replaces `SandboxPool` in tests: same encoding and failures, in this process."""

    async def run(self, job: Job, payload: Mapping[str, Any], *, key: str = "") -> Any:
        """Run one job and return its result.

        Raises:
            JobFailed: it gave none.
        """
        return read_reply(answer(json.loads(write_request(job, payload))))
