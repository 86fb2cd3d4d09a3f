"""Transfer of a large file, compared with a gRPC stream that only hashes the bytes."""

from collections.abc import Iterator, Sequence

from bench import file_load
from bench.contest import alternate
from bench.file_load import Transfer
from bench.measurement import CORRAL, Measurement, Result, compare
from bench.processes import peak_resident_bytes, resident_bytes
from bench.servers import Server
from bench.stage import Part, Stage

MIB = 2**20
FULL_BYTES, QUICK_BYTES, ROUNDS = 1024 * MIB, 16 * MIB, 5
UP, DOWN, GROWTH = "1 GiB up", "1 GiB down", "memory of the control service"
BARE = "bare stream"
LEAST_SHARE, ALLOWED_MB = 0.6, 64.0
SETTINGS = {"CORRAL_CONTROL_FILES__FILE_BYTES": str(2 * FULL_BYTES)}


def measure(stage: Stage) -> Iterator[Measurement]:
    """Transfer the same bytes through both servers, alternating, and measure memory growth."""
    size_bytes = stage.sizes(FULL_BYTES, QUICK_BYTES)
    with stage.control("control", SETTINGS) as server, stage.bare_stream() as bare:
        (pid,) = server.processes.values()
        before = resident_bytes(pid)
        turns = [(CORRAL, server), (BARE, bare)]
        for number in range(stage.rounds or stage.sizes(ROUNDS, 1)):
            for system, each in alternate(turns, number):
                times = stage.runner.run(_transfer(system, each, size_bytes))
                for load, seconds in ((UP, times.up_s), (DOWN, times.down_s)):
                    yield Measurement(load, number, system, size_bytes / MIB / seconds)
        yield Measurement(GROWTH, 0, CORRAL, (peak_resident_bytes(pid) - before) / 1e6)


async def _transfer(system: str, server: Server, size_bytes: int) -> Transfer:
    transfer = file_load.transfer_file if system == CORRAL else file_load.transfer_bare
    return await transfer(server.grpc_target, size_bytes)


def conclude(measurements: Sequence[Measurement]) -> list[Result]:
    """Each direction beside the bare stream, and the growth beside what is allowed."""
    grown = [one.value for one in measurements if one.load == GROWTH]
    return [
        *(compare(measurements, load, BARE, LEAST_SHARE, unit="MiB/s") for load in (UP, DOWN)),
        Result(
            GROWTH,
            tuple(value / ALLOWED_MB for value in grown),
            1.0,
            max(grown, default=0.0),
            ALLOWED_MB,
            "allowed growth",
            unit="MB",
            bound="at most",
        ),
    ]


PART = Part(
    name="files",
    title="A large file",
    text=(
        "1 GiB through `CreateFile` and back through `DownloadFile`, in messages of 256 KiB, beside"
        " a grpc.aio server that hashes what comes and stores nothing. Both are told by a client in"
        " one process, which hashes what comes back. Corral's file is on the disk when the call"
        " ends. Growth is the peak of the resident memory over all rounds, less what the idle"
        " service had."
    ),
    measure=measure,
    conclude=conclude,
)
