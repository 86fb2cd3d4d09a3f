"""A thread that reads and writes files beside the step loop."""

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import NamedTuple, TypeVar

from inference_svc.snapshots.store import FolderUsage
from svc_kit.errors import DomainError, InternalError

log = logging.getLogger(__name__)
T = TypeVar("T")


class FileDone(NamedTuple):
    """Finished work of a file thread; the step thread calls `apply`."""

    apply: Callable[[], None]


class FolderMeasurement(NamedTuple):
    """Usage of a folder, and the time of the measurement on the monotonic clock."""

    at: float
    usage: FolderUsage


class FileThread:
    """Works on one folder, in order. Its methods are called on the step thread.

    `measured` is the usage of the folder after the last work that was applied; `measure` returns
    it. The file thread passes a `FileDone` to `post`.
    """

    def __init__(
        self, name: str, measure: Callable[[], FolderUsage], post: Callable[[FileDone], None]
    ) -> None:
        self._measure = measure
        self._post = post
        self._executor = ThreadPoolExecutor(1, name)
        self._num_pending = 0
        self._started_at = 0.0  # of the work that is first among the pending
        self.measured = FolderMeasurement(time.monotonic(), measure())

    @property
    def busy_s(self) -> float:
        """For how many seconds it has worked on the same piece of work; 0 if it has none."""
        return time.monotonic() - self._started_at if self._num_pending else 0.0

    def run(
        self,
        what: str,
        work: Callable[[], T],
        then: Callable[[T], None],
        failed: Callable[[DomainError], None],
    ) -> None:
        """Do `work` on the file thread, then call `then` or `failed` on the step thread. `what`
        names it in unexpected errors."""

        def report(done: "Future[T]") -> None:
            outcome = _bind_outcome(what, done, then, failed)
            measured = FolderMeasurement(time.monotonic(), self._measure())
            self._post(FileDone(partial(self._apply, measured, outcome)))

        self._num_pending += 1
        if self._num_pending == 1:
            self._started_at = time.monotonic()
        self._executor.submit(work).add_done_callback(report)

    def _apply(self, measured: FolderMeasurement, outcome: Callable[[], None]) -> None:
        self.measured = measured
        self._num_pending -= 1
        self._started_at = measured.at
        outcome()


def _bind_outcome(
    what: str,
    done: "Future[T]",
    then: Callable[[T], None],
    failed: Callable[[DomainError], None],
) -> Callable[[], None]:
    try:
        return partial(then, done.result())
    except DomainError as error:
        return partial(failed, error)
    except Exception:  # the command must get a result, even after a bug
        log.exception("%s failed unexpectedly", what)
        return partial(failed, InternalError(request_id=what))
