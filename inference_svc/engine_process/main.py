"""The engine process of one model: a step thread that owns llama.cpp, a reader and a writer of the
pipe.

It is a process of its own because a native assertion aborts it, and because Python work in the same
interpreter would delay the step loop.
"""

import ctypes
import signal
import sys
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from inference_svc.engine_client.messages import EngineConfig, EngineStartFailed, Ready
from inference_svc.engine_process.model_load import load
from inference_svc.engine_process.output_batcher import usual_interval_s
from inference_svc.engine_process.prefix_offload import PrefixOffloader
from inference_svc.engine_process.snapshot_io import SnapshotIO
from inference_svc.engine_process.step_loop import AbortingPipe, StepLoop
from inference_svc.llama import library
from inference_svc.llama.weights import ModelLoadError
from inference_svc.snapshots.disk_prefix_cache import DiskPrefixCache
from inference_svc.snapshots.store import SnapshotStore
from svc_kit.errors import ModelTooLarge
from svc_kit.logs import configure_logging

_PR_SET_PDEATHSIG = 1


def _die_with_parent() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main(pipe_fd: int) -> None:
    """Serve the frontend at the other end of a socket pair."""
    _die_with_parent()
    # A terminal sends Ctrl-C to the whole group; the frontend drains first and then closes the
    # pipe.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    pipe: Connection[Any, Any] = Connection(pipe_fd)
    boot: EngineConfig = pipe.recv()
    configure_logging("engine", level=boot.log_level, json=boot.log_json)
    try:
        loaded = load(boot, pipe.send)
    except (ModelLoadError, ModelTooLarge) as error:
        pipe.send(EngineStartFailed(str(error)))
        return
    folder, served = SnapshotStore(boot.snapshots), loaded.served
    pipe.send(Ready(loaded.ready, library.system_info(), folder.use))
    engine, interval_s = served.engine if served is not None else None, boot.stream_interval_s
    if interval_s is None:
        threads = loaded.ready.warm_up.threads
        interval_s = usual_interval_s(threads=threads, cores=boot.cores)
    StepLoop(
        pipe if boot.abort_on is None else AbortingPipe(pipe, boot.abort_on),
        engine,
        loaded.embedder,
        memory=loaded.memory,
        stream_interval_s=interval_s,
        desk=partial(SnapshotIO, served, folder) if served is not None else None,
        archive=partial(PrefixOffloader, served, DiskPrefixCache(boot.archive))
        if served is not None
        else None,
    ).run()


if __name__ == "__main__":
    main(int(sys.argv[1]))
