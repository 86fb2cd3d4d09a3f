"""Measures a caller's first token and the server's memory and work, alone and during an attack."""

import asyncio
import contextlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from bench import grpc_load
from bench.attacks import ATTACKS
from bench.attacks.attack import Target
from bench.loadgen import exchange, read_stream
from bench.paths import REPOSITORY
from bench.processes import cpu_seconds, peak_by_process, reset_peaks
from bench.workload import SAMPLINGS, Workload

BUILD_UP_S: Final = 1.0
"""How long an attack runs before it is measured."""
PATIENCE_S: Final = 30.0
"""The longest that a caller waits for all chats during an attack. One that has not begun by then
counts with the time that it waited."""
AFTERMATH_S: Final = 3.0
"""How long the server is watched after an attack."""
MIB: Final = 2**20
GRPC_CHAT: Final = Workload(1, 1, 16, 4, SAMPLINGS["greedy"])


@dataclass(frozen=True)
class Victim:
    """A caller who sends small chats, one after the other."""

    target: Target
    attacker: Target
    """The same server, with the key of another project."""
    model: str
    processes: Mapping[str, int]
    """Those of the server by role, one of which is "gateway"."""

    async def first_tokens_ms(self, number: int, *, over_grpc: bool = False) -> list[float]:
        """The times to the first token of so many chats, each on a connection of its own."""
        if over_grpc:
            address, key = self.target.grpc, self.target.key
            loads = [
                await grpc_load.run_load(address, GRPC_CHAT, self.model, key) for _ in range(number)
            ]
            return [1e3 * stream.first_token_s for streams in loads for stream in streams]
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": "Hello"}],
            "max_tokens": 4,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        url, headers = f"http://{self.target.http}", self.target.authorization.decode()
        times = []
        for _ in range(number):
            sent, reads = await exchange(
                url, "/v1/chat/completions", json.dumps(body).encode(), headers=headers
            )
            times.append(1e3 * read_stream(sent, reads).first_token_s)
        return times


@dataclass(frozen=True)
class Harm:
    """What an attack did. Times are in milliseconds."""

    idle_ms: float
    """The median alone."""
    p50_ms: float
    max_ms: float
    growth_mib: float
    """The most by which the resident memory of any process of the server grew; one that started
    meanwhile is compared with the largest of its name before, or with nothing."""
    grown: str
    """That process: its role, or `role/module` of a child."""
    aftermath: float
    """The share of a core that the gateway used after the attack."""

    @property
    def p50_ratio(self) -> float:
        """The median of first tokens during the attack, by that alone."""
        return self.p50_ms / self.idle_ms

    @property
    def max_ratio(self) -> float:
        """The latest first token during the attack, by the median alone."""
        return self.max_ms / self.idle_ms

    def to_json(self) -> dict[str, Any]:
        """The rounded figures."""
        figures = {"p50_ratio": self.p50_ratio, "max_ratio": self.max_ratio, **vars(self)}
        return {
            name: value if isinstance(value, str) else round(value, 3)
            for name, value in figures.items()
        }


async def measure_attack(name: str, victim: Victim, num_chats: int) -> Harm:
    """Measure `num_chats` chats alone, then as many during the attack."""
    over_grpc = ATTACKS[name].harms_grpc
    idle = statistics.median(await victim.first_tokens_ms(num_chats, over_grpc=over_grpc))
    memory = _Memory(victim.processes)
    times: list[float] = []
    with attacking(name, victim.attacker):
        await asyncio.sleep(BUILD_UP_S)
        sent = end = time.monotonic() + PATIENCE_S
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                for _ in range(num_chats):
                    sent = time.monotonic()
                    times += await victim.first_tokens_ms(1, over_grpc=over_grpc)
                    memory.look()
        if len(times) < num_chats:
            times.append(1e3 * (end - sent))
            memory.look()
    aftermath = await _used_share(victim.processes["gateway"])
    memory.look()
    return Harm(idle, statistics.median(times), max(times), *memory.most_grown(), aftermath)


class _Memory:
    """How much the processes of a server have grown since now."""

    def __init__(self, processes: Mapping[str, int]) -> None:
        self._processes = processes
        reset_peaks(processes)
        self._before = peak_by_process(processes)
        self._peaks = dict(self._before)
        self._kinds = dict[str, int]()
        for (_, name), size in self._before.items():
            self._kinds[name] = max(size, self._kinds.get(name, 0))

    def look(self) -> None:
        """Note the peaks of all processes that there are. What those that ended grew since the last
        look is lost."""
        for process, size in peak_by_process(self._processes).items():
            self._peaks[process] = max(size, self._peaks.get(process, 0))

    def most_grown(self) -> tuple[float, str]:
        """The most by which one of them grew, in MiB, and its name."""
        return max(
            ((peak - self._before.get((pid, name), self._kinds.get(name, 0))) / MIB, name)
            for (pid, name), peak in self._peaks.items()
        )


async def _used_share(pid: int) -> float:
    started, before = time.monotonic(), sum(cpu_seconds("", pid).values())
    await asyncio.sleep(AFTERMATH_S)
    return (sum(cpu_seconds("", pid).values()) - before) / (time.monotonic() - started)


@contextmanager
def attacking(name: str, target: Target) -> Iterator[None]:
    """Attack from another process, which is killed in the end, as an attacker's machine may be."""
    command = [sys.executable, "-m", "bench.attacks", name, target.http, target.grpc, target.key]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=REPOSITORY) as process:
        try:
            if process.stdout is None or not process.stdout.readline():
                raise RuntimeError(f"the attack '{name}' did not begin")
            yield
        finally:
            process.kill()
