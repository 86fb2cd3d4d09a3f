"""The adapters of an engine as the frontend knows them: generations by project and name, loading,
unloading.
"""

import asyncio
import enum
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from inference_svc.engine.events import AdapterFailed, AdapterLoaded
from inference_svc.engine.request import Command, LoadAdapter, UnloadAdapter
from model_files.adapter_file import AdapterDescription
from svc_kit.errors import AdapterCrashedEngine, AdapterInvalid, AdapterNotFound, DomainError
from svc_kit.local_files import PrivateFile


class AdapterKey(NamedTuple):
    """A name in its project; that of an operator's adapter is empty."""

    project: str
    name: str


class AdapterState(enum.Enum):
    """Where a generation is in its life."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


@dataclass(slots=True, eq=False)
class Adapter:
    """One generation of an adapter: a checked file for a model, under a name."""

    name: str
    model: str
    file: PrivateFile
    description: AdapterDescription
    default_scale: float
    project: str = ""
    """Whose requests may use it; empty: everybody's."""
    standing_scale: float = 0.0
    """What its project's requests that name no adapter use it with; 0: they do not."""
    generation: int = 0
    state: AdapterState = AdapterState.LOADING
    error: DomainError | None = None
    """Why it failed."""
    ready_at: datetime | None = None

    @property
    def key(self) -> "AdapterKey":
        """What it is found by."""
        return AdapterKey(self.project, self.name)

    @property
    def problem(self) -> str:
        """Why it failed, in words; empty: it did not."""
        error = self.error
        return "" if error is None else error.metadata.get("problem", error.message)

    @property
    def digest(self) -> str:
        """The SHA-256 of its file, in hex."""
        return self.file.digest

    @property
    def content(self) -> tuple[str, str]:
        """What it is in the engine."""
        return self.model, self.digest


class LoadMarks:
    """Records which adapter an engine is loading, in case both crash; this one records nothing."""

    def begin(self, digest: str) -> None:
        """Record that the load of an adapter begins."""

    def end(self, digest: str) -> None:
        """Record that it ended."""

    def blame(self, digest: str) -> None:
        """Record that the engine died during it."""


class _Awaited(NamedTuple):
    """A pending load; repeated loads have no waiter."""

    adapter: Adapter
    loaded: "asyncio.Future[Adapter] | None"


class AdapterRegistry:
    """All generations of one model's adapters; outlives the engine processes. Use on the event
    loop.

    `send` delivers a message to the engine while one is running, `count_requests` returns the
    number of live requests that use a generation, and `marks` records what is being loaded.
    """

    def __init__(
        self,
        send: Callable[[Command], None] = lambda _: None,
        count_requests: Callable[[Adapter], int] = lambda _: 0,
    ) -> None:
        self.attach(send, count_requests)
        self.marks = LoadMarks()
        self._current: dict[AdapterKey, Adapter] = {}
        self._draining: list[Adapter] = []
        self._awaited: deque[_Awaited] = deque()
        self._generations: dict[AdapterKey, int] = {}

    def attach(
        self, send: Callable[[Command], None], count_requests: Callable[[Adapter], int]
    ) -> None:
        """Belong to another engine from now on."""
        self.count_requests = count_requests
        self._send = send

    def find(self, name: str, project: str = "") -> Adapter | None:
        """The generation that has the name in the project."""
        return self._current.get(AdapterKey(project, name))

    def get(self, name: str, project: str = "") -> Adapter:
        """The generation that new requests use. Raises `AdapterNotFound`, or why the engine could
        not load it again."""
        adapter = self.find(name, project)
        if adapter is None:
            raise AdapterNotFound(adapter=name)
        if adapter.error is not None:
            raise adapter.error
        return adapter

    def current(self) -> list[Adapter]:
        """Those that have a name, sorted by it."""
        return sorted(self._current.values(), key=lambda adapter: (adapter.name, adapter.project))

    def all(self) -> list[Adapter]:
        """Draining ones too, sorted by name, project and generation."""
        both = (*self._current.values(), *self._draining)
        return sorted(both, key=lambda each: (each.name, each.project, each.generation))

    @property
    def num_loaded(self) -> int:
        """How many generations the engine has."""
        return len(self._loaded())

    @property
    def num_bytes(self) -> int:
        """Their memory; one file under two names is there once."""
        sizes = {each.content: each.description.size_bytes for each in self._loaded()}
        return sum(sizes.values())

    def _loaded(self) -> list[Adapter]:
        return [adapter for adapter in self.all() if adapter.state is not AdapterState.FAILED]

    # --- commands ---------------------------------------------------------------------------------

    def load(self, adapter: Adapter) -> "asyncio.Future[Adapter]":
        """Have the engine load a generation, which then takes its name. The result raises
        `AdapterInvalid`, or what ended the engine; the generation is closed then."""
        loaded: asyncio.Future[Adapter] = asyncio.get_running_loop().create_future()
        self._request(adapter, loaded)
        return loaded

    def keep(self, adapter: Adapter) -> Adapter:
        """Give a generation its name while there is no engine; the next one loads it."""
        self._publish(adapter)
        return adapter

    def unload(self, name: str, project: str = "") -> Adapter:
        """Take the name away and free the generation once nothing uses it. Raises
        `AdapterNotFound`."""
        adapter = self._current.pop(AdapterKey(project, name), None)
        if adapter is None:
            raise AdapterNotFound(adapter=name)
        self._drain(adapter)
        return adapter

    def sweep(self) -> None:
        """Free the draining generations that no request uses any more."""
        for adapter in list(self._draining):
            if not self.count_requests(adapter):
                self._draining.remove(adapter)
                self._free(adapter)

    def close(self, error: DomainError) -> None:
        """Give up every file, and fail who still waits with `error`; the engine is gone for
        good."""
        for adapter in self._wanted():
            adapter.file.close()
        for _, loaded in self._awaited:
            if loaded is not None:
                _settle(loaded, error)

    # --- the engine -------------------------------------------------------------------------------

    def deliver(self, event: AdapterLoaded | AdapterFailed) -> None:
        """Take the answer to the first unanswered load."""
        adapter, loaded = self._handle_answer()
        if isinstance(event, AdapterLoaded):
            if adapter.state is AdapterState.LOADING:
                adapter.state, adapter.ready_at = AdapterState.READY, datetime.now(UTC)
            if loaded is not None:
                self._publish(adapter)
                _settle(loaded, adapter)
        else:
            self._fail(adapter, loaded, AdapterInvalid(adapter=adapter.name, problem=event.problem))

    def on_engine_ready(self) -> None:
        """A new engine has nothing: give it what had a name."""
        for adapter in self._current.values():
            if adapter.state is not AdapterState.FAILED:
                adapter.state = AdapterState.LOADING
                self._request(adapter, None)

    def on_engine_gone(self, error: DomainError) -> None:
        """The engine was ended on purpose: nobody is to blame, and the next one loads what has a
        name. Loads under way fail with `error`."""
        if self._awaited:
            self.marks.end(self._awaited[0].adapter.digest)
        while self._awaited:
            adapter, loaded = self._awaited.popleft()
            if loaded is not None:
                self._fail(adapter, loaded, error)
        for adapter in self._current.values():
            if adapter.state is AdapterState.READY:
                adapter.state = AdapterState.LOADING
        self.sweep()

    def on_engine_death(self, error: DomainError) -> None:
        """The load that was under way is to blame; others are repeated, or fail with `error`."""
        blame: DomainError | None = None
        while self._awaited:
            adapter, loaded = self._awaited.popleft()
            if blame is None:
                self.marks.blame(adapter.digest)
                blame = AdapterCrashedEngine(adapter=adapter.name)
                self._fail(adapter, loaded, blame)
            elif loaded is not None:
                self._fail(adapter, loaded, error)
        self.sweep()

    def _request(self, adapter: Adapter, loaded: "asyncio.Future[Adapter] | None") -> None:
        self._awaited.append(_Awaited(adapter, loaded))
        if len(self._awaited) == 1:
            self.marks.begin(adapter.digest)
        self._send(LoadAdapter(*adapter.content, adapter.file.path))

    def _handle_answer(self) -> _Awaited:
        """The load that is answered; the engine is at the next one now."""
        answered = self._awaited.popleft()
        self.marks.end(answered.adapter.digest)
        if self._awaited:
            self.marks.begin(self._awaited[0].adapter.digest)
        return answered

    def _publish(self, adapter: Adapter) -> None:
        self._generations[adapter.key] = self._generations.get(adapter.key, 0) + 1
        adapter.generation = self._generations[adapter.key]
        before = self._current.get(adapter.key)
        self._current[adapter.key] = adapter
        if before is not None:
            self._drain(before)

    def _fail(
        self, adapter: Adapter, loaded: "asyncio.Future[Adapter] | None", error: DomainError
    ) -> None:
        if loaded is None:
            adapter.state = AdapterState.FAILED
            adapter.error = error
        else:
            adapter.file.close()
            _settle(loaded, error)

    def _drain(self, adapter: Adapter) -> None:
        adapter.state = AdapterState.DRAINING
        self._draining.append(adapter)
        self.sweep()

    def _free(self, adapter: Adapter) -> None:
        adapter.file.close()
        kept = {other.content for other in self._wanted() if other is not adapter}
        if adapter.content not in kept:
            self._send(UnloadAdapter(*adapter.content))

    def _wanted(self) -> Iterator[Adapter]:
        yield from self._current.values()
        yield from self._draining
        yield from (awaited.adapter for awaited in self._awaited)


def _settle(loaded: "asyncio.Future[Adapter]", outcome: Adapter | DomainError) -> None:
    """Resolve the waiting future, if it is still pending."""
    if loaded.done():
        return
    if isinstance(outcome, DomainError):
        loaded.set_exception(outcome)
    else:
        loaded.set_result(outcome)
