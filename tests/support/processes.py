"""Runs commands as child processes, and observes their output and their descendants.

Nothing here polls: threads read the output, and exits are observed through pidfds. Descendants of a
command are found by a variable in their environment or by their session, so that orphans are found
too.
"""

import asyncio
import json
import os
import re
import select
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NamedTuple, Self

PATIENCE_S = 100.0
"""How long tests wait for a process: several times what `corral up` takes on a busy machine, and
less than `LIMIT_S`, so that the error message is shown."""
LIMIT_S = 240.0
"""The time limit of a test with processes, unless it has one of its own."""

_ROOT = Path(__file__).resolve().parents[2]
_MARK = "PROGRAM_UNDER_TEST"
_TAIL_LINES = 30


class ProgramFailed(Exception):
    """A command did not do what was expected. The message ends with its last lines."""


class ProcessInfo(NamedTuple):
    """A running process (not a zombie)."""

    pid: int
    parent: int
    session: int
    command: str
    mark: str


class Line(NamedTuple):
    """One line of output; `fields` are those of a JSON log line, else empty."""

    text: str
    fields: Mapping[str, Any]

    @property
    def message(self) -> str:
        """The log message, or the whole line if it is not JSON."""
        return str(self.fields.get("message", self.text))


class Ends:
    """Waits for processes to exit. A missing process counts as exited."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._open: dict[int, int] = {}
        for pid in pids:
            with suppress(ProcessLookupError):
                self._open[os.pidfd_open(pid)] = pid

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for descriptor in self._open:
            os.close(descriptor)
        self._open.clear()

    def wait(self, patience_s: float = PATIENCE_S) -> list[int]:
        """Wait until all have exited, at most `patience_s` seconds; return those that still run."""
        poll, deadline = select.poll(), time.monotonic() + patience_s
        running = dict(self._open)
        for descriptor in running:
            poll.register(descriptor, select.POLLIN)
        while running:
            ended = poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
            if not ended:
                break
            for descriptor, _ in ended:
                poll.unregister(descriptor)
                del running[descriptor]
        return list(running.values())


class Program:
    """A command and its descendants. Leaving the context stops all of them."""

    def __init__(
        self, arguments: Sequence[str | Path], *, environment: Mapping[str, str], directory: Path
    ) -> None:
        self.directory = directory
        self._mark = uuid.uuid4().hex
        self._sessions: set[int] = set()
        self._changed = threading.Condition()
        self._lines: dict[str, list[Line]] = {"stdout": [], "stderr": []}
        self._process = subprocess.Popen(
            [str(argument) for argument in arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env={**clean_environment(), **environment, _MARK: self._mark},
            cwd=directory,
            start_new_session=True,
        )
        self._open_streams = 2
        self._readers = [
            threading.Thread(target=self._read, args=(name, stream), daemon=True)
            for name, stream in (("stdout", self._process.stdout), ("stderr", self._process.stderr))
        ]
        for reader in self._readers:
            reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if self._process.poll() is None:
                self.family()
                self._process.terminate()
                self.wait()
            left = self.left_over()
        finally:
            self._kill_all()
        if kind is None and left:
            raise ProgramFailed(f"processes still running: {left}")

    # --- processes --------------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        """The process id, which is also the process group id."""
        return self._process.pid

    def family(self) -> list[ProcessInfo]:
        """Return the running descendants of the command."""
        processes = list(running_processes())
        self._sessions |= {process.session for process in processes if process.mark == self._mark}
        return [
            process
            for process in processes
            if process.session in self._sessions and process.pid != self.pid
        ]

    def member(self, words: str) -> ProcessInfo:
        """Return the only descendant with these words in its command line."""
        (process,) = [each for each in self.family() if words in each.command]
        return process

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the command only."""
        self._process.send_signal(number)

    def interrupt(self) -> None:
        """Send SIGINT to the process group, like Ctrl-C in a terminal."""
        os.killpg(self.pid, signal.SIGINT)

    def wait(self, patience_s: float = PATIENCE_S) -> int:
        """Wait for the command and return its exit code. Raises ProgramFailed."""
        try:
            code = self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            raise self._failure(f"still runs after {patience_s} s") from None
        for reader in self._readers:
            reader.join(patience_s)
        return code

    def left_over(self, patience_s: float = 5.0) -> list[ProcessInfo]:
        """Return the descendants that still run after the timeout."""
        with Ends(process.pid for process in self.family()) as ends:
            ends.wait(patience_s)
        return self.family()

    def _kill_all(self) -> None:
        for process in self.family():
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()
        for reader in self._readers:
            reader.join()

    # --- output -----------------------------------------------------------------------------------

    @property
    def stdout(self) -> list[Line]:
        return list(self._lines["stdout"])

    @property
    def stderr(self) -> list[Line]:
        """The lines of its standard error, including those of its children."""
        return list(self._lines["stderr"])

    def bookmark(self) -> int:
        """Return the current position in stderr, for `after`."""
        return len(self._lines["stderr"])

    def wait_for_line(
        self,
        pattern: str,
        *,
        stream: str = "stderr",
        after: int = 0,
        patience_s: float = PATIENCE_S,
        **fields: str,
    ) -> re.Match[str]:
        """Wait for the first line whose message matches and that has the log fields.

        Raises ProgramFailed on a timeout, or when the output has ended.
        """
        expression = re.compile(pattern)
        match: re.Match[str] | None = None

        def find_match() -> bool:
            nonlocal match, after
            for line in self._lines[stream][after:]:
                match = expression.search(line.message)
                if match and fields.items() <= line.fields.items():
                    return True
            after = len(self._lines[stream])
            return not self._open_streams

        with self._changed:
            in_time = self._changed.wait_for(find_match, patience_s)
        if match is None or not in_time:
            raise self._failure(f"printed no line like {pattern!r} {fields}")
        return match

    async def line(self, pattern: str, **options: Any) -> re.Match[str]:
        """`wait_for_line` in a thread, for use on an event loop."""
        return await asyncio.to_thread(self.wait_for_line, pattern, **options)

    def _read(self, name: str, stream: IO[str]) -> None:
        with stream:
            for text in stream:
                line = Line(text.rstrip("\n"), _log_fields(text))
                with self._changed:
                    self._lines[name].append(line)
                    self._changed.notify_all()
        with self._changed:
            self._open_streams -= 1
            self._changed.notify_all()

    def _failure(self, problem: str) -> ProgramFailed:
        tail = [line.text for line in (*self.stdout, *self.stderr)][-_TAIL_LINES:]
        return ProgramFailed("\n".join([f"{self._process.args!r} {problem}", *tail]))


def _log_fields(text: str) -> Mapping[str, Any]:
    try:
        fields = json.loads(text) if text.startswith("{") else {}
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}


def clean_environment() -> dict[str, str]:
    """Return the environment without settings of the user who runs the tests.

    PYTHONPATH is that of this source tree, whichever version is installed.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("CORRAL_", "PYTHON", "COV_"))
    }
    return kept | {"PYTHONPATH": os.pathsep.join((str(_ROOT), str(_ROOT / "gen")))}


def running_processes() -> Iterator[ProcessInfo]:
    """Yield the running processes of this machine whose details can be read."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                process = _process_info(folder)
                if process is not None:
                    yield process


def _process_info(folder: Path) -> ProcessInfo | None:
    state, parent, _, session, *_ = (folder / "stat").read_text().rpartition(") ")[2].split()
    if state in "ZX":
        return None
    command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    environment = (folder / "environ").read_bytes().split(b"\0")
    mark = next((e.partition(b"=")[2] for e in environment if e.startswith(_MARK.encode())), b"")
    return ProcessInfo(int(folder.name), int(parent), int(session), command, mark.decode())


@contextmanager
def sleeping_process() -> Iterator[int]:
    """A process that does nothing; yields its id."""
    with subprocess.Popen(["sleep", "600"]) as process:
        try:
            yield process.pid
        finally:
            process.kill()


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
