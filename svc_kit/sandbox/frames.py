"""The protocol between pool and child: length-prefixed JSON, since unpickling would be unsafe.

Values of type bytes in a payload or a result follow the JSON unchanged, after a newline.
"""

import errno
import importlib
import json
import socket
import struct
from collections.abc import Callable, Mapping
from typing import Any

from svc_kit.sandbox.jobs import FailureKind, Job, JobFailed, JobRefused

HEADER = struct.Struct("!I")
READY = b'{"result": null}'
"""A child's first frame, if it started successfully."""
_MAX_PROBLEM_CHARACTERS = 500
_SERVER_ERRNOS = frozenset(
    (
        errno.EACCES,
        errno.EIO,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOENT,
        errno.ENOMEM,
        errno.EPERM,
        errno.ESTALE,
    )
)
"""Of errors that no content of a file causes. For damaged files, libraries raise OSError without a
number, or with another one."""


def write_request(job: Job, payload: Mapping[str, Any]) -> bytes:
    """Encode a job for a child."""
    request = {
        "module": job.module,
        "function": job.function,
        "deadline_s": job.deadline_s,
        "memory_bytes": job.memory_bytes,
        "output_bytes": job.output_bytes,
    }
    return _write(request, "payload", payload)


def read_request(body: bytes) -> dict[str, Any]:
    """Decode a job in a child."""
    return _read(body, "payload")


def write_failure(kind: FailureKind, problem: str) -> bytes:
    """Encode the failure of a job."""
    text = problem[:_MAX_PROBLEM_CHARACTERS].encode("utf-8", "replace").decode()
    return json.dumps({"failed": kind, "problem": text}).encode()


def read_reply(body: bytes) -> Any:
    """Decode the result in a reply. Raises JobFailed for a failure or an invalid reply."""
    try:
        reply = _read(body, "result")
        if "result" in reply:
            return reply["result"]
        failure = JobFailed(FailureKind(reply["failed"]), str(reply["problem"]))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        failure = JobFailed(FailureKind.CRASHED, "the child process sent an invalid reply")
    raise failure


def receive(connection: socket.socket) -> bytes | None:
    """Read one frame in the child; None if the pool has closed the connection."""
    header = _receive_exactly(connection, HEADER.size)
    return None if header is None else _receive_exactly(connection, HEADER.unpack(header)[0])


def send(connection: socket.socket, body: bytes) -> None:
    """Send one frame from the child."""
    connection.sendall(HEADER.pack(len(body)) + body)


def _write(message: dict[str, Any], key: str, content: Any) -> bytes:
    """Encode a message with a content, whose values of type bytes follow the JSON."""
    blobs = {}
    if isinstance(content, Mapping):
        blobs = {name: value for name, value in content.items() if isinstance(value, bytes)}
    if not blobs:
        return json.dumps({**message, key: content}).encode()
    plain = {name: value for name, value in content.items() if name not in blobs}
    sizes = {name: len(value) for name, value in blobs.items()}
    text = json.dumps({**message, key: plain, "blobs": sizes}).encode()
    return b"".join((text, b"\n", *blobs.values()))


def _read(body: bytes, key: str) -> dict[str, Any]:
    end = body.find(b"\n")
    message: dict[str, Any] = json.loads(body if end < 0 else body[:end])
    start = end + 1
    for name, size in message.pop("blobs", {}).items():
        message[key][name] = body[start : start + size]
        start += size
    return message


def _receive_exactly(connection: socket.socket, length: int) -> bytes | None:
    data = bytearray(length)
    view = memoryview(data)
    while view:
        count = connection.recv_into(view)
        if count == 0:
            return None
        view = view[count:]
    return bytes(data)


def run_request(
    request: Mapping[str, Any], on_imported: Callable[[], None] = lambda: None
) -> bytes:
    """Run the job of a request; return the reply {"result": …} or {"failed": …, "problem": …}.

    `on_imported` is called after the import of the job's module. Never raises.
    """
    is_imported = False
    try:
        function = getattr(importlib.import_module(request["module"]), request["function"])
        is_imported = True
        on_imported()
        reply = _write({}, "result", function(request["payload"]))
    except JobRefused as refused:
        return write_failure(FailureKind.REFUSED, str(refused))
    except Exception as problem:  # the outermost layer of the child
        return write_failure(*_describe(problem, is_imported=is_imported))
    if len(reply) > request["output_bytes"]:
        return write_failure(FailureKind.OUTPUT, "its result is too long")
    return reply


def _describe(problem: Exception, *, is_imported: bool) -> tuple[FailureKind, str]:
    """The kind and the text of a failure. Before the import of its module, the job has not looked
    at its input."""
    is_machine = isinstance(problem, OSError) and problem.errno in _SERVER_ERRNOS
    if is_machine or not is_imported:
        return FailureKind.UNAVAILABLE, f"{type(problem).__name__}: {problem}"
    match problem:
        case MemoryError():
            return FailureKind.MEMORY, "it needs too much memory"
        case RecursionError():
            return FailureKind.REFUSED, "it is nested too deeply"
        case _:
            return FailureKind.CRASHED, f"it failed ({type(problem).__name__})"
