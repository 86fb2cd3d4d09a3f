"""The adapters of one model: load, unload, apply."""

from collections.abc import Sequence as SequenceOf
from pathlib import Path

from inference_svc.engine.backend import AdapterLoadError, Backend
from inference_svc.engine.events import AdapterFailed, AdapterLoaded
from inference_svc.engine.lora.schedule import AdapterSchedule
from inference_svc.engine.request import NO_ADAPTERS, AdapterStack, SequenceRequest
from inference_svc.engine.sequence import Sequence
from svc_kit.errors import AdapterNotFound


class Adapters:
    """Loaded adapters by digest; stacks take turns by `AdapterSchedule`."""

    def __init__(self, model: str, backend: Backend, max_wait_s: float) -> None:
        self._model = model
        self._backend = backend
        self._loaded: set[str] = set()
        self._turns = AdapterSchedule(max_wait_s)
        self._current: AdapterStack = NO_ADAPTERS

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

    def select(self, ready: SequenceOf[Sequence], now: float) -> SequenceOf[Sequence]:
        """The `ready` sequences whose stack is applied now; sets the backend's stack."""
        if not ready:
            return ready
        self._current = self._turns.next_stack(ready, now)
        return self.on_turn(ready)

    def on_turn(self, ready: SequenceOf[Sequence]) -> SequenceOf[Sequence]:
        """Those of the `ready` sequences that are on turn still. The backend is told once more: an
        adapter that was freed meanwhile is not in use, though it may be loaded again."""
        on_turn = [one for one in ready if one.request.adapters == self._current]
        if on_turn:
            self._backend.use_adapters(self._current)
        return on_turn
