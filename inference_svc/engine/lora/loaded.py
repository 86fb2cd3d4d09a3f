"""Loads, unloads and applies the LoRA adapters of one model."""

from collections.abc import Sequence as SequenceOf
from pathlib import Path

from inference_svc.engine.backend import AdapterLoadError, Backend
from inference_svc.engine.events import AdapterLoadDone
from inference_svc.engine.lora.schedule import AdapterSchedule
from inference_svc.engine.request import NO_ADAPTERS, AdapterStack, SequenceRequest
from inference_svc.engine.sequence import Sequence
from svc_kit.errors import AdapterNotFound


class Adapters:
    """The loaded adapters of a model, by digest. `AdapterSchedule` chooses the stack to apply."""

    def __init__(self, backend: Backend, max_wait_s: float) -> None:
        self._backend = backend
        self._loaded: set[str] = set()
        self._turns = AdapterSchedule(max_wait_s)
        self._current: AdapterStack = NO_ADAPTERS

    def __contains__(self, digest: object) -> bool:
        """Whether an adapter is loaded. Thread-safe."""
        return digest in self._loaded

    def load(self, digest: str, path: Path) -> AdapterLoadDone:
        """Load an adapter from its file, unless it is loaded already.

        Must run on the step thread: llama.cpp iterates over the adapters of a model when it
        prepares a decode.
        """
        if digest not in self._loaded:
            try:
                self._backend.load_adapter(digest, path)
            except AdapterLoadError as error:
                return AdapterLoadDone(digest, str(error))
            self._loaded.add(digest)
        return AdapterLoadDone(digest)

    def unload(self, digest: str) -> None:
        """Free an adapter that no sequence uses."""
        if digest in self._loaded:
            self._loaded.remove(digest)
            self._backend.unload_adapter(digest)

    def missing(self, request: SequenceRequest) -> AdapterNotFound | None:
        """The error of a request whose adapter is not loaded; None if all are."""
        for adapter in request.adapters:
            if adapter.digest not in self._loaded:
                return AdapterNotFound(adapter=adapter.digest)
        return None

    def select(self, ready: SequenceOf[Sequence], now: float) -> SequenceOf[Sequence]:
        """Choose the next stack and apply it. Returns the `ready` sequences that use it."""
        if not ready:
            return ready
        self._current = self._turns.next_stack(ready, now) if self._loaded else NO_ADAPTERS
        return self.on_turn(ready)

    def on_turn(self, ready: SequenceOf[Sequence]) -> SequenceOf[Sequence]:
        """Apply the current stack again. Returns the `ready` sequences that use it.

        The backend stops using a stack when one of its adapters is unloaded, even if it is then
        loaded again.
        """
        if not self._loaded:
            return ready  # none has any, and the backend uses none
        on_turn = [item for item in ready if item.request.adapters == self._current]
        if on_turn:
            self._backend.use_adapters(self._current)
        return on_turn
