"""The frontend's registry of the adapters of one engine: generations by project and name."""

import asyncio
import enum
from collections import deque
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple, Self

from inference_svc.engine.events import AdapterLoadDone
from inference_svc.engine.request import Command, LoadAdapter, UnloadAdapter
from model_files.adapter_facts import AdapterFacts
from svc_kit.errors import AdapterCrashedEngine, AdapterInvalid, AdapterNotFound, DomainError
from svc_kit.local_files import PrivateFile


class AdapterKey(NamedTuple):
    """An adapter name in a project. The project of an operator's adapter is empty."""

    project: str
    name: str


class AdapterState(enum.Enum):
    """Load state of an adapter generation."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


class NoFile:
    """That of an adapter which an engine of others has loaded."""

    digest = ""
    path = Path()

    def close(self) -> None:
        """Nothing is open."""


@dataclass(slots=True, eq=False)
class Adapter:
    """One generation of an adapter: a validated file for a model, under a name."""

    name: str
    model: str
    file: PrivateFile | NoFile
    description: AdapterFacts
    default_scale: float
    project: str = ""
    """The project that may use it; empty: all projects."""
    standing_scale: float = 0.0
    """Its scale for requests of its project that name no adapter; 0: not applied."""
    generation: int = 0
    state: AdapterState = AdapterState.LOADING
    error: DomainError | None = None
    """Set in state FAILED."""
    ready_at: datetime | None = None

    @classmethod
    def of_upstream(cls, name: str, model: str) -> Self:
        """One that the engine of an upstream has under this name, once it lists it."""
        facts = AdapterFacts(architecture="", base_model="", rank=0, size_bytes=0, title="")
        return cls(name, model, NoFile(), facts, default_scale=1.0)

    @property
    def is_of_upstream(self) -> bool:
        return isinstance(self.file, NoFile)

    @property
    def key(self) -> "AdapterKey":
        return AdapterKey(self.project, self.name)

    @property
    def problem(self) -> str:
        """The text of `error`; empty without one."""
        error = self.error
        return "" if error is None else error.metadata.get("problem", error.message)

    @property
    def digest(self) -> str:
        """The SHA-256 of its file, in hex; empty if it has none."""
        return self.file.digest

    @property
    def engine_key(self) -> str:
        """What the engine knows it by: its digest, or at an engine of others its name."""
        return self.digest or self.name


class LoadMarker:
    """Records which adapter is being loaded, for use after a crash. This base does nothing."""

    def begin(self, digest: str) -> None:
        """Record that the load of an adapter begins."""

    def end(self, digest: str) -> None:
        """Record that the load has ended."""

    def blame(self, digest: str) -> None:
        """Record that the engine crashed during the load."""


class _PendingLoad(NamedTuple):
    """A load without an answer. `loaded` is None for reloads into a new engine."""

    adapter: Adapter
    loaded: "asyncio.Future[Adapter] | None"


class AdapterRegistry:
    """All generations of one model's adapters; outlives the engine. Use on the event loop.

    `send` sends a command to the engine if it is running, `count_requests` returns the number of
    live requests that use a generation, and `load_marker` records the load in progress.
    """

    def __init__(
        self,
        send: Callable[[Command], None] = lambda _: None,
        count_requests: Callable[[Adapter], int] = lambda _: 0,
    ) -> None:
        self.attach(send, count_requests)
        self.load_marker = LoadMarker()
        self._current: dict[AdapterKey, Adapter] = {}
        self._draining: list[Adapter] = []
        self._pending: deque[_PendingLoad] = deque()
        self._generations: dict[AdapterKey, int] = {}

    def attach(
        self, send: Callable[[Command], None], count_requests: Callable[[Adapter], int]
    ) -> None:
        """Connect to a new engine."""
        self.count_requests = count_requests
        self._send = send

    def find(self, name: str, project: str = "") -> Adapter | None:
        """Return the current generation of a project's adapter."""
        return self._current.get(AdapterKey(project, name))

    def get(self, name: str, project: str = "") -> Adapter:
        """Return the current generation. Raises `AdapterNotFound`, or its error if it failed."""
        adapter = self.find(name, project)
        if adapter is None:
            raise AdapterNotFound(adapter=name)
        if adapter.error is not None:
            raise adapter.error
        return adapter

    def current(self) -> list[Adapter]:
        """Return the current generation of each adapter, sorted by name."""
        return sorted(self._current.values(), key=lambda adapter: (adapter.name, adapter.project))

    def all(self) -> list[Adapter]:
        """Return all generations, sorted by name, project and generation."""
        generations = (*self._current.values(), *self._draining)
        return sorted(generations, key=lambda each: (each.name, each.project, each.generation))

    @property
    def num_loaded(self) -> int:
        """The number of generations in the engine."""
        return len(self._loaded())

    @property
    def num_bytes(self) -> int:
        """Bytes of the generations in the engine; a file with two names counts once."""
        sizes = {each.digest: each.description.size_bytes for each in self._loaded()}
        return sum(sizes.values())

    def _loaded(self) -> list[Adapter]:
        return [adapter for adapter in self.all() if adapter.state is not AdapterState.FAILED]

    # --- commands ---------------------------------------------------------------------------------

    def load(self, adapter: Adapter) -> "asyncio.Future[Adapter]":
        """Load a generation into the engine and publish it under its name.

        The future raises `AdapterInvalid`, or the error that ended the engine; then the file is
        closed.
        """
        loaded: asyncio.Future[Adapter] = asyncio.get_running_loop().create_future()
        self._request(adapter, loaded)
        return loaded

    def add(self, adapter: Adapter) -> None:
        """Publish a generation under its name. If there is no engine, the next one loads it."""
        self._generations[adapter.key] = self._generations.get(adapter.key, 0) + 1
        adapter.generation = self._generations[adapter.key]
        previous = self._current.get(adapter.key)
        self._current[adapter.key] = adapter
        if previous is not None:
            self._drain(previous)

    def unload(self, name: str, project: str = "") -> Adapter:
        """Remove the name, and free the generation once no request uses it. Raises
        `AdapterNotFound`."""
        adapter = self._current.pop(AdapterKey(project, name), None)
        if adapter is None:
            raise AdapterNotFound(adapter=name)
        self._drain(adapter)
        return adapter

    def free_unused(self) -> None:
        """Free the draining generations that no request uses."""
        for adapter in list(self._draining):
            if not self.count_requests(adapter):
                self._draining.remove(adapter)
                self._free(adapter)

    def close(self, error: DomainError) -> None:
        """Close every file and fail pending loads with `error`. The registry is not used again."""
        for adapter in self._referenced():
            adapter.file.close()
        for _, loaded in self._pending:
            if loaded is not None:
                _resolve(loaded, error)

    # --- the engine -------------------------------------------------------------------------------

    def deliver(self, event: AdapterLoadDone) -> None:
        """Process the answer to the oldest pending load."""
        adapter, loaded = self._pending.popleft()
        self.load_marker.end(adapter.digest)
        if self._pending:
            self.load_marker.begin(self._pending[0].adapter.digest)
        if event.problem is None:
            if adapter.state is AdapterState.LOADING:
                adapter.state, adapter.ready_at = AdapterState.READY, datetime.now(UTC)
            if loaded is not None:
                self.add(adapter)
                _resolve(loaded, adapter)
        else:
            self._fail(adapter, loaded, AdapterInvalid(adapter=adapter.name, problem=event.problem))

    def on_engine_ready(self) -> None:
        """Load the current generations into a new engine."""
        for adapter in self._current.values():
            if adapter.state is not AdapterState.FAILED and not adapter.is_of_upstream:
                adapter.state = AdapterState.LOADING
                self._request(adapter, None)

    def on_listed(self, names: Set[str]) -> None:
        """Record which of its adapters an upstream has."""
        for adapter in self._current.values():
            is_there = adapter.name in names
            adapter.state = AdapterState.READY if is_there else AdapterState.FAILED
            adapter.error = None if is_there else AdapterNotFound(adapter=adapter.name)
            adapter.ready_at = (adapter.ready_at or datetime.now(UTC)) if is_there else None

    def on_engine_closed(self, error: DomainError) -> None:
        """Fail pending loads with `error`, blaming none of them. The next engine loads the current
        generations."""
        if self._pending:
            self.load_marker.end(self._pending[0].adapter.digest)
        self._fail_new_loads(error)
        for adapter in self._current.values():
            if adapter.state is AdapterState.READY:
                adapter.state = AdapterState.LOADING
        self.free_unused()

    def on_engine_crash(self, error: DomainError) -> None:
        """Blame the load in progress for the crash. Other new loads fail with `error`; reloads are
        repeated in the next engine."""
        if self._pending:
            adapter, loaded = self._pending.popleft()
            self.load_marker.blame(adapter.digest)
            self._fail(adapter, loaded, AdapterCrashedEngine(adapter=adapter.name))
        self._fail_new_loads(error)
        self.free_unused()

    def _request(self, adapter: Adapter, loaded: "asyncio.Future[Adapter] | None") -> None:
        self._pending.append(_PendingLoad(adapter, loaded))
        if len(self._pending) == 1:
            self.load_marker.begin(adapter.digest)
        self._send(LoadAdapter(adapter.digest, adapter.file.path))

    def _fail_new_loads(self, error: DomainError) -> None:
        """Fail the pending loads with `error`, but not the reloads."""
        while self._pending:
            adapter, loaded = self._pending.popleft()
            if loaded is not None:
                self._fail(adapter, loaded, error)

    def _fail(
        self, adapter: Adapter, loaded: "asyncio.Future[Adapter] | None", error: DomainError
    ) -> None:
        if loaded is None:
            adapter.state = AdapterState.FAILED
            adapter.error = error
        else:
            adapter.file.close()
            _resolve(loaded, error)

    def _drain(self, adapter: Adapter) -> None:
        adapter.state = AdapterState.DRAINING
        self._draining.append(adapter)
        self.free_unused()

    def _free(self, adapter: Adapter) -> None:
        adapter.file.close()
        used = {other.digest for other in self._referenced() if other is not adapter}
        if adapter.digest not in used:
            self._send(UnloadAdapter(adapter.digest))

    def _referenced(self) -> Iterator[Adapter]:
        yield from self._current.values()
        yield from self._draining
        yield from (load.adapter for load in self._pending)


def _resolve(loaded: "asyncio.Future[Adapter]", outcome: Adapter | DomainError) -> None:
    """Resolve a future unless it is done."""
    if loaded.done():
        return
    if isinstance(outcome, DomainError):
        loaded.set_exception(outcome)
    else:
        loaded.set_result(outcome)
