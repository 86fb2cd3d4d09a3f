"""The inference service with engines whose calls take at least as long as a line says.

A small model then computes as slowly as a large one, so that each token is a message of its own
even if other processes are busy, and its scheduler decides as that of a large one does.

    BENCH_STEP_TIMES="[CALL_S, ROW_S, TOKEN_S]" python -m bench.paced_engine
"""

import json
import os
import sys
import time
from typing import Final

import numpy as np

from bench.paths import REPOSITORY
from bench.step_times import StepTimes
from inference_svc.app import serve
from inference_svc.config import InferenceSettings
from inference_svc.engine.batch import TokenBatch
from inference_svc.engine_client import local_engine
from inference_svc.engine_process import main as engine
from inference_svc.engine_process import model_load
from inference_svc.llama.backend import LlamaBackend
from svc_kit.service_main import main as run_service

STEP_TIMES: Final = "BENCH_STEP_TIMES"
"""The variable with the numbers of `StepTimes`."""
DEFAULT: Final = StepTimes(0.025)


class _PacedBackend(LlamaBackend):
    """Calls take at least the time of their rows and tokens."""

    def decode(self, batch: TokenBatch) -> None:
        """Compute a batch, then wait for the rest of its time."""
        _, lengths = np.unique(batch.slots, return_counts=True)
        rows = int(np.count_nonzero(lengths == 1))
        call_s, row_s, token_s = _step_times()
        ends_at = time.monotonic() + call_s + row_s * rows + token_s * (len(batch.slots) - rows)
        super().decode(batch)
        time.sleep(max(0.0, ends_at - time.monotonic()))


def _step_times() -> StepTimes:
    return StepTimes(*json.loads(os.environ.get(STEP_TIMES, json.dumps(DEFAULT))))


def main() -> int:
    """Run the service, or with a file descriptor as the argument one of its engine processes."""
    if len(sys.argv) > 1:
        model_load.LlamaBackend = _PacedBackend  # type: ignore[attr-defined]
        engine.main(int(sys.argv[1]))
        return 0
    local_engine._ENGINE = "bench.paced_engine"
    paths = (str(REPOSITORY), os.environ.get("PYTHONPATH", ""))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    return run_service("inference", InferenceSettings, serve)


if __name__ == "__main__":
    sys.exit(main())
