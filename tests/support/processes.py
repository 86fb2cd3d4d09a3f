"""Real commands as child processes: what they say, as they say it, and what is left of them.

Nothing here sleeps. Output is read by threads that wake whoever waits for a line; the end of a
process is seen through its pidfd. Every process a command leads to is known by a variable of its
environment or by its session, so that orphans are found after their parent is gone.
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
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NamedTuple, Self

PATIENCE_S = 25.0
"""How long anything may take; below the time limit of a test, so that its own words are read."""

_ROOT = Path(__file__).resolve().parents[2]
_MARK = "PROGRAM_UNDER_TEST"
_TAIL_LINES = 30


class ProgramFailed(Exception):
    """A command did not do what was awaited; the text ends with its last lines."""


class ProcessInfo(NamedTuple):
    """A process that runs; zombies do not."""

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
        """The log message, or the line itself where it is none."""
        return str(self.fields.get("message", self.text))


class Ends:
    """Waits for processes to end. A process that is gone already counts as ended."""

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
        """The processes that still run after `patience_s` seconds; returns as soon as none does."""
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
    """One command and everything it starts. Use as a context manager: leaving stops it all."""

    def __init__(
        self, arguments: Sequence[str | Path], *, environment: Mapping[str, str], directory: Path
    ) -> None:
        self.directory = directory
        self._mark = uuid.uuid4().hex
        self._sessions: set[int] = set()
        self._news = threading.Condition()
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
            raise ProgramFailed(f"left behind: {left}")

    # --- processes --------------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        """The command's own process id; also its process group, as a terminal would give it."""
        return self._process.pid

    def family(self) -> list[ProcessInfo]:
        """The processes that this command has led to and that run now, itself left out."""
        every = list(running_processes())
        self._sessions |= {process.session for process in every if process.mark == self._mark}
        return [
            process
            for process in every
            if process.session in self._sessions and process.pid != self.pid
        ]

    def member(self, words: str) -> ProcessInfo:
        """The one process of the family with these words in its command line."""
        (found,) = [process for process in self.family() if words in process.command]
        return found

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the command alone."""
        self._process.send_signal(number)

    def interrupt(self) -> None:
        """What Ctrl-C in a terminal does: SIGINT for the whole foreground process group."""
        os.killpg(self.pid, signal.SIGINT)

    def wait(self, patience_s: float = PATIENCE_S) -> int:
        """The exit code, once the command has ended. Raises ProgramFailed."""
        try:
            code = self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            raise self._failure(f"still runs after {patience_s} s") from None
        for reader in self._readers:
            reader.join(patience_s)
        return code

    def left_over(self, patience_s: float = 5.0) -> list[ProcessInfo]:
        """What still runs of a command that has ended, after a moment to end too."""
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
        """What it has printed."""
        return list(self._lines["stdout"])

    @property
    def stderr(self) -> list[Line]:
        """What it has logged or complained of; its children's lines too."""
        return list(self._lines["stderr"])

    def bookmark(self) -> int:
        """A place in stderr, to look for what comes after it."""
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
        """The first line whose message matches and whose log fields are as given.

        Raises ProgramFailed when none comes, or none can come any more.
        """
        sought = re.compile(pattern)
        match: re.Match[str] | None = None

        def found() -> bool:
            nonlocal match, after
            for line in self._lines[stream][after:]:
                match = sought.search(line.message)
                if match and fields.items() <= line.fields.items():
                    return True
            after = len(self._lines[stream])
            return not self._open_streams

        with self._news:
            in_time = self._news.wait_for(found, patience_s)
        if match is None or not in_time:
            raise self._failure(f"said nothing like {pattern!r} {fields}")
        return match

    async def line(self, pattern: str, **options: Any) -> re.Match[str]:
        """`wait_for_line` beside a running event loop."""
        return await asyncio.to_thread(self.wait_for_line, pattern, **options)

    def _read(self, name: str, stream: IO[str]) -> None:
        with stream:
            for text in stream:
                line = Line(text.rstrip("\n"), _log_fields(text))
                with self._news:
                    self._lines[name].append(line)
                    self._news.notify_all()
        with self._news:
            self._open_streams -= 1
            self._news.notify_all()

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
    """The environment without what belongs to whoever runs the tests.

    Programs are those of the tree that these tests stand in, whichever one is installed.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("CORRAL_", "PYTHON", "COV_"))
    }
    return kept | {"PYTHONPATH": os.pathsep.join((str(_ROOT), str(_ROOT / "gen")))}


def running_processes() -> Iterator[ProcessInfo]:
    """Every process of this machine that is no zombie, as far as we may look into it."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                found = _process_info(folder)
                if found is not None:
                    yield found


def _process_info(folder: Path) -> ProcessInfo | None:
    state, parent, _, session, *_ = (folder / "stat").read_text().rpartition(") ")[2].split()
    if state in "ZX":
        return None
    command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    environment = (folder / "environ").read_bytes().split(b"\0")
    mark = next((e.partition(b"=")[2] for e in environment if e.startswith(_MARK.encode())), b"")
    return ProcessInfo(int(folder.name), int(parent), int(session), command, mark.decode())


def resident_bytes(pid: int) -> int:
    """The memory of a process that is in RAM now."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
