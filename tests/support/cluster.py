"""Two gateways, control services and inference services on PostgreSQL, and faults of each.

Where `may_isolate` allows it, each service has a network namespace and monotonic clock of its own,
and what they write is on a small disk; otherwise there are no partitions and full disks. The
contents of files are there, too, or in a bucket.
"""

import asyncio
import os
import random
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from control_svc.app import upgrade_database
from control_svc.config import ControlSettings
from inference_svc.models.sources import BUNDLED_FOLDER
from tests.support import jumping_control
from tests.support.bridge import Host, may_isolate, run_hosts
from tests.support.control import write_service_token
from tests.support.postgres import Postgres, create_database, run_postgres_server
from tests.support.processes import Ends, Program
from tests.support.s3 import KEY_ID, SECRET, Bucket, run_s3_bucket
from tests.support.seam_cases import ADAPTER
from tests.support.services import CORRAL, Settings, environment, wait_until_serving
from tests.support.small_disk import fill, mount_disk
from tools.corral_server import free_address

ENGINE: Final = "inference_svc.engine_process.main"
NAMES: Final = ("control-1", "control-2", "inference-1", "inference-2", "gateway-1", "gateway-2")
PORT: Final = 50000
DISK_MIB: Final = 384
MAX_FAULT_S: Final = 20.0
MAX_JUMP_S: Final = 900
MAX_MONOTONIC_S: Final = 10_000_000
LEASE_S: Final = 5.0
"""Shorter than faults, so that jobs are taken over during them."""
WEIGHTS: Final[Mapping[str, int]] = {
    "kill": 6,
    "kill engine": 2,
    "stop": 5,
    "cut": 4,
    "restart database": 2,
    "fill disk": 2,
    "jump": 2,
    "stop bucket": 2,
}
ISOLATED: Final = ("cut", "fill disk")


@dataclass(frozen=True)
class Fault:
    """What is done to which services, for how long, and by how much a clock jumps."""

    kind: str
    names: Sequence[str] = ()
    seconds: float = 0.0
    jump_s: int = 0

    def __str__(self) -> str:
        about = [f"{self.seconds:.1f} s"] if self.seconds else []
        about += [f"by {self.jump_s} s"] if self.jump_s else []
        return " ".join((self.kind, *self.names, *about))


def make_schedule(rng: random.Random, count: int, *, has_bucket: bool) -> list[Fault]:
    """The same faults for the same seed and rights."""
    absent = {*(() if may_isolate() else ISOLATED), *(() if has_bucket else ["stop bucket"])}
    kinds = [kind for kind in WEIGHTS if kind not in absent]
    return [
        _make_fault(rng, kind)
        for kind in rng.choices(kinds, [WEIGHTS[kind] for kind in kinds], k=count)
    ]


def _make_fault(rng: random.Random, kind: str) -> Fault:
    seconds = rng.uniform(0.5, MAX_FAULT_S)
    if kind == "kill":
        return Fault(kind, rng.sample(NAMES, rng.choice((1, 1, 1, 2, 3))))
    if kind == "kill engine":
        return Fault(kind, [rng.choice(NAMES[2:4])])
    if kind == "jump":
        return Fault(kind, [rng.choice(NAMES[:2])], jump_s=rng.randint(-MAX_JUMP_S, MAX_JUMP_S))
    names = rng.sample(NAMES, rng.choice((1, 1, 2))) if kind in ("stop", "cut") else ()
    return Fault(kind, names, seconds)


@dataclass
class Member:
    """A service at an address that it keeps when it is started again."""

    name: str
    folder: Path
    address: str
    variables: Mapping[str, str]
    rng: random.Random
    host: Host | None = None
    programs: list[Program] = field(default_factory=list)
    """The last one runs."""

    @property
    def kind(self) -> str:
        return self.name.partition("-")[0]

    def start(self) -> None:
        """Start it, and wait until it serves."""
        command: list[str | Path] = [CORRAL, "serve", self.kind]
        if self.kind == "control":
            command = [sys.executable, "-m", jumping_control.__name__]
        if self.host is not None:
            offset = str(self.rng.randrange(MAX_MONOTONIC_S))
            command = [*self.host.prefix, "unshare", "-T", "-f", "--monotonic", offset, *command]
        program = Program(command, environment=self.variables, directory=self.folder)
        self.programs.append(program)
        program.wait_for_line(r"serving (gRPC|HTTP) on ")
        if self.kind != "gateway":
            wait_until_serving(self.address)

    def kill(self) -> None:
        """Kill all its processes."""
        self.signal(signal.SIGKILL)
        self.programs[-1].wait()

    def signal(self, number: signal.Signals, words: str = "") -> None:
        """Send a signal to the processes with these words in their command lines; wait for the
        ends of those that are killed."""
        program = self.programs[-1]
        pids = [each.pid for each in program.family() if words in each.command]
        pids += [] if words else [program.pid]
        with Ends(pids) as ends:
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            assert number != signal.SIGKILL or ends.wait() == []

    @contextmanager
    def suffering(self, kind: str) -> Iterator[None]:
        """Stop or cut it."""
        if kind == "stop":
            self.signal(signal.SIGSTOP)
            yield
            self.signal(signal.SIGCONT)
        elif self.host is not None:
            self.host.cut()
            yield
            self.host.mend()

    def jump(self, jump_s: int) -> None:
        (self.folder / jumping_control.OFFSET_FILE).write_text(str(jump_s))


@dataclass
class Cluster:
    """The services by their names, their database and their disk."""

    members: Mapping[str, Member]
    postgres: Postgres
    disk: Path
    token: str
    bucket: Bucket | None

    @property
    def apis(self) -> Sequence[str]:
        return [f"http://{each.address}/v1" for each in self._of("gateway")]

    @property
    def targets(self) -> Sequence[str]:
        """The addresses of the inference services."""
        return [each.address for each in self._of("inference")]

    @property
    def control(self) -> str:
        return next(each.address for each in self._of("control"))

    def _of(self, kind: str) -> list[Member]:
        return [each for each in self.members.values() if each.kind == kind]

    def lines_with(self, words: str) -> list[str]:
        """The lines of all logs with these words."""
        programs = [program for each in self.members.values() for program in each.programs]
        return [line.text for each in programs for line in each.stderr if words in line.text]

    async def suffer(self, fault: Fault) -> None:
        """Carry a fault out; return when it is mended and all services serve again."""
        members = [self.members[name] for name in fault.names]
        match fault.kind:
            case "kill":
                for member in members:
                    await asyncio.to_thread(member.kill)
                await asyncio.gather(*(asyncio.to_thread(each.start) for each in members))
            case "kill engine":
                await asyncio.to_thread(members[0].signal, signal.SIGKILL, ENGINE)
            case "jump":
                members[0].jump(fault.jump_s)
            case _:
                with ExitStack() as stack:
                    if fault.kind == "restart database":
                        stack.enter_context(self._without_database())
                    elif fault.kind == "stop bucket" and self.bucket is not None:
                        stack.enter_context(self.bucket.stopped())
                    elif fault.kind == "fill disk":
                        stack.callback(fill(self.disk, leave=0).unlink)
                    for member in members:
                        stack.enter_context(member.suffering(fault.kind))
                    await asyncio.sleep(fault.seconds)
        for target in (*self.targets, self.control):
            await asyncio.to_thread(wait_until_serving, target)

    @contextmanager
    def _without_database(self) -> Iterator[None]:
        self.postgres.stop()
        yield
        self.postgres.start()


def _make_hosts(stack: ExitStack) -> list[Host | None]:
    """One for each service, and one for the bucket; None without the right to isolate."""
    count = len(NAMES) + 1
    return [*stack.enter_context(run_hosts(count))] if may_isolate() else [None] * count


def _run_bucket(host: Host | None) -> AbstractContextManager[Bucket]:
    return run_s3_bucket() if host is None else run_s3_bucket(host.address, host.prefix)


@contextmanager
def run_cluster(folder: Path, rng: random.Random, *, has_bucket: bool) -> Iterator[Cluster]:
    """Run all services until the context ends, which kills them."""
    with ExitStack() as stack:
        server = stack.enter_context(run_postgres_server())
        mounted: AbstractContextManager[Path] = (
            mount_disk(folder, DISK_MIB) if may_isolate() else nullcontext(folder)
        )
        disk = stack.enter_context(mounted)
        *hosts, bucket_host = _make_hosts(stack)
        bucket = stack.enter_context(_run_bucket(bucket_host)) if has_bucket else None
        addresses = [free_address() if host is None else f"{host.address}:{PORT}" for host in hosts]
        token_file = write_service_token(folder)
        url, targets = create_database(server.url), ",".join(addresses[2:4])
        asyncio.run(upgrade_database(ControlSettings(data_dir=disk / "data", database_url=url)))
        shared = {"service_token_file": str(token_file), "management_listen": "none"}
        controls = f"ipv4:{','.join(addresses[:2])}"
        kinds: dict[str, Any] = {
            "control": {"database_url": url, "inference_target": targets, "jobs.lease_s": LEASE_S},
            "inference": {
                "control_target": controls,
                "usage_interval_s": 0.5,
                "adapters": {ADAPTER: {"path": str(BUNDLED_FOLDER / f"{ADAPTER}-f16.gguf")}},
            },
            "gateway": {"control_target": controls, "inference_target": targets},
        }
        if bucket is not None:
            kinds["control"] |= {
                "blobs_url": bucket.url("files"),
                "blobs_access_key_id": KEY_ID,
                "blobs_secret_access_key": SECRET,
            }
        members = {}
        for name, host, address in zip(NAMES, hosts, addresses, strict=True):
            kind, own = name.partition("-")[0], folder / name
            own_rng = random.Random(rng.random())
            own.mkdir()
            settings: Settings = {**shared, **kinds[kind], "listen": address, "allow_keyless": True}
            data = disk / ("data" if kind == "control" else name)
            variables = environment(data, **{kind: settings})
            members[name] = Member(name, own, address, variables, own_rng, host)
            members[name].jump(0)
            stack.callback(_end, members[name])
        with ThreadPoolExecutor(len(members)) as threads:
            list(threads.map(Member.start, members.values()))
        yield Cluster(members, server, disk, token_file.read_text().strip(), bucket)


def _end(member: Member) -> None:
    for program in member.programs[-1:]:
        member.signal(signal.SIGCONT)
        member.signal(signal.SIGKILL)
        program.wait()
