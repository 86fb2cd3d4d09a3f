"""The adapters of one model, and whose turn it is where sequences use different ones.

llama.cpp applies adapters to a whole decode, so the stacks in use take turns, and whoever is not on
turn waits. A turn lasts some steps, because changing adapters has a cost of its own; it is shorter
the more stacks wait. No stack waits longer than the maximum wait and one step of each stack before
it in the line.
"""

from collections.abc import Sequence as SequenceOf
from pathlib import Path

from inference_svc.engine.adapter_stack import AdapterStack
from inference_svc.engine.backend import AdapterLoadError, Backend
from inference_svc.engine.events import AdapterFailed, AdapterLoaded
from inference_svc.engine.request import SequenceRequest
from inference_svc.engine.sequence import Sequence
from svc_kit.errors import AdapterNotFound


class Adapters:
    """What is loaded, by digest, and the line of stacks that have something to compute; the first
    is on turn. Times are the engine's clock, in seconds."""

    def __init__(self, model: str, backend: Backend, max_wait_s: float) -> None:
        self._model = model
        self._backend = backend
        self._max_wait_s = max_wait_s
        self._loaded: set[str] = set()
        self._line: dict[AdapterStack, float] = {}  # since when each is in the line
        self._turn_began = 0.0

    def __contains__(self, digest: object) -> bool:
        """Whether an adapter is loaded; any thread may ask."""
        return digest in self._loaded

    def load(self, digest: str, path: Path) -> AdapterLoaded | AdapterFailed:
        """Read an adapter's file, unless it is there already. It is no work for another thread:
        llama.cpp goes through a model's adapters when it prepares a decode."""
        if digest not in self._loaded:
            try:
                self._backend.load_adapter(digest, path)
            except AdapterLoadError as error:
                return AdapterFailed(self._model, digest, str(error))
            self._loaded.add(digest)
        return AdapterLoaded(self._model, digest)

    def unload(self, digest: str) -> None:
        """Free an adapter that no sequence uses."""
        if digest in self._loaded:
            self._loaded.remove(digest)
            self._backend.unload_adapter(digest)

    def missing(self, request: SequenceRequest) -> AdapterNotFound | None:
        """The error of a request for an adapter that is not there."""
        for adapter in request.adapters:
            if adapter.digest not in self._loaded:
                return AdapterNotFound(adapter=adapter.digest)
        return None

    def take_turn(self, ready: SequenceOf[Sequence], now: float) -> SequenceOf[Sequence]:
        """Those of the `ready` sequences that are on turn; the backend is told their stack."""
        if not ready:
            return ready
        present = dict.fromkeys(sequence.request.adapters for sequence in ready)
        if len(present) > 1 or present.keys() != self._line.keys():
            self._move_on(present, now)
        current = next(iter(self._line))
        self._backend.use_adapters(current)
        if len(present) == 1:
            return ready
        return [sequence for sequence in ready if sequence.request.adapters == current]

    def _move_on(self, present: dict[AdapterStack, None], now: float) -> None:
        """Bring the line up to date: those without work leave, new ones stand at its end, and so
        does the first when its turn is over."""
        before = next(iter(self._line), None)
        line = {stack: since for stack, since in self._line.items() if stack in present}
        line |= {stack: now for stack in present if stack not in line}
        if before in line and self._is_over(line, now):
            del line[before]
            line[before] = now
        self._line = line
        if next(iter(line)) != before:
            self._turn_began = now

    def _is_over(self, line: dict[AdapterStack, float], now: float) -> bool:
        _, *waiting = line.values()
        if not waiting:
            return False
        is_long = now - self._turn_began >= self._max_wait_s / len(waiting)
        return is_long or now - waiting[0] >= self._max_wait_s
