"""The engine process of one model: a step thread that owns llama.cpp, and two threads that read and
write the pipe to the frontend.

It is a separate process because a failed native assertion aborts it, and because other Python work
in the same interpreter would delay the step loop.
"""

import gc
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Final, NoReturn

from inference_svc.engine_client.messages import EngineConfig, Ready
from inference_svc.engine_client.process import StartFailed, has_unread, open_parent_pipe
from inference_svc.engine_process.frontend_load import FrontendLoad
from inference_svc.engine_process.model_load import load
from inference_svc.engine_process.output_batcher import MOST_DELAY_S, OutputBatcher
from inference_svc.engine_process.prefix_offload import PrefixOffloader
from inference_svc.engine_process.snapshot_io import SnapshotIO
from inference_svc.engine_process.step_loop import AbortingPipe, StepLoop
from inference_svc.llama import library
from inference_svc.llama.state_convert import cell_layout
from inference_svc.llama.weights import ModelLoadError
from inference_svc.snapshots.disk_prefix_cache import DiskPrefixCache
from inference_svc.snapshots.store import SnapshotStore
from svc_kit.errors import ModelTooLarge
from svc_kit.logs import configure_logging

NICENESS: Final = 5
"""More than that of its parent, for the threads that compute. They do so without pause, and what
frontend, gateway and the threads of the pipe do is short: on busy cores they come first, so that a
request reaches it, and a token its reader, soon."""


def main(pipe_fd: int) -> None:
    """Serve the frontend at the other end of a socket pair."""
    step_loop: Future[StepLoop] = Future()
    for serve in (StepLoop.read_commands, StepLoop.write_outputs):
        arguments = step_loop, serve
        threading.Thread(
            target=_serve_pipe, args=arguments, name=serve.__name__, daemon=True
        ).start()
    os.nice(NICENESS)  # in Linux that of this thread, and of those that it starts from now on
    pipe = open_parent_pipe(pipe_fd)
    config: EngineConfig = pipe.recv()
    configure_logging("engine", level=config.log_level)
    try:
        loaded = load(config, pipe.send)
    except (ModelLoadError, ModelTooLarge) as error:
        pipe.send(StartFailed(str(error)))
        return
    store, served = SnapshotStore(config.snapshots), loaded.served
    pipe.send(Ready(loaded.ready, library.system_info(), store.usage))
    engine = make_snapshot_io = make_offloader = None
    if served is not None:
        engine = served.engine
        make_snapshot_io = partial(SnapshotIO, served, store)
        archive = DiskPrefixCache(config.archive, cell_layout)
        make_offloader = partial(PrefixOffloader, served, archive)
    if config.stream_interval_s is None:
        frontend = FrontendLoad(partial(has_unread, pipe))
        outbox = OutputBatcher(MOST_DELAY_S, frontend.is_behind)
    else:
        outbox = OutputBatcher(config.stream_interval_s)
    gc.freeze()  # full collections would stop the step loop for as long as modules have objects
    loop = StepLoop(
        pipe if config.abort_on is None else AbortingPipe(pipe, config.abort_on),
        engine,
        loaded.embedder,
        memory=loaded.memory,
        outbox=outbox,
        make_snapshot_io=make_snapshot_io,
        make_offloader=make_offloader,
    )
    step_loop.set_result(loop)
    loop.run()


def _serve_pipe(step_loop: "Future[StepLoop]", serve: Callable[[StepLoop], NoReturn]) -> None:
    serve(step_loop.result())


if __name__ == "__main__":
    main(int(sys.argv[1]))
