"""The sandboxed child process, which runs one job at a time under kernel limits."""

import importlib
import resource
import signal
import socket
import sys
from functools import partial
from pathlib import Path

from svc_kit.sandbox import frames
from svc_kit.sandbox.frames import run_request
from svc_kit.sandbox.jobs import WAITING_FACTOR, FailureKind

_ALARM_SLACK_S = 1.0
_CPU_SLACK_S = 2
_FALLBACK_BASE_BYTES = 1 << 30
_MAX_OPEN_FILES = 64


def main(arguments: list[str]) -> None:
    """Run jobs until the socket closes. Arguments: its file descriptor, modules to preload."""
    descriptor, *modules = arguments
    with socket.socket(fileno=int(descriptor)) as connection:
        try:
            for module in modules:
                importlib.import_module(module)
        except Exception as problem:  # the outermost layer of the child
            reason = f"{type(problem).__name__}: {problem}"
            frames.send(connection, frames.write_failure(FailureKind.CRASHED, reason))
            return
        _limit_process()
        frames.send(connection, frames.READY)
        while (body := frames.receive(connection)) is not None:
            request = frames.read_request(body)
            _limit_time(request["deadline_s"])
            # The import may map gigabytes of GPU libraries, which do not count against the job.
            _lift_memory_limit()
            limit_memory = partial(_limit_memory, request["memory_bytes"])
            frames.send(connection, run_request(request, on_imported=limit_memory))
            signal.setitimer(signal.ITIMER_REAL, 0)


def _limit_process() -> None:
    """Forbid core files, writing to files, child processes, and more than a few descriptors."""
    for limit, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, _MAX_OPEN_FILES),
        (resource.RLIMIT_NPROC, 0),
    ):
        resource.setrlimit(limit, (value, value))


def _limit_time(deadline_s: float) -> None:
    signal.setitimer(signal.ITIMER_REAL, deadline_s * WAITING_FACTOR + _ALARM_SLACK_S)
    used = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = int(used.ru_utime + used.ru_stime + deadline_s) + _CPU_SLACK_S
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, resource.RLIM_INFINITY))


def _lift_memory_limit() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def _limit_memory(memory_bytes: int) -> None:
    limit = _address_space_bytes() + memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))


def _address_space_bytes() -> int:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:
        return _FALLBACK_BASE_BYTES  # no /proc: not Linux, where RLIMIT_AS has no effect anyway
    return pages * resource.getpagesize()


if __name__ == "__main__":
    main(sys.argv[1:])
