"""The adapters that the engine has, as the frontend knows them: by name, in generations.

Each load under a name makes a new generation, which takes the name when the engine has it. The one
before it drains: what runs, or waits, goes on with it, and its memory is freed when nothing uses it
any more. An engine that is started again gets the current generations again, from the same bytes.
One that was being loaded when an engine died is not loaded again by itself.

Commands reach the engine in order and each load is answered in order, so requests may follow the
commands of a reload at once, and the first unanswered load is the one an engine died in.
"""

import asyncio
import enum
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from inference_svc.engine.adapter_stack import LoadAdapter, UnloadAdapter
from inference_svc.engine.events import AdapterFailed, AdapterLoaded
from inference_svc.engine.request import Command
from model_files.adapter_file import AdapterDescription
from svc_kit.errors import AdapterInvalid, AdapterNotFound, DomainError
from svc_kit.private_file import PrivateFile

_DIED = "the engine process ended while it loaded it"


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
    generation: int = 0
    state: AdapterState = AdapterState.LOADING
    problem: str = ""
    ready_at: datetime | None = None

    @property
    def digest(self) -> str:
        """The SHA-256 of its file, in hex."""
        return self.file.digest

    @property
    def content(self) -> tuple[str, str]:
        """What it is in the engine."""
        return self.model, self.digest


class _Awaited(NamedTuple):
    """A load that the engine has not answered; nobody waits for one that is repeated."""

    adapter: Adapter
    loaded: "asyncio.Future[Adapter] | None"


class AdapterRegistry:
    """All generations of one model, whose engines come and go. Use on the event loop; `send`
    reaches the engine while there is one, `count_requests` says how many live requests use a
    generation."""

    def __init__(
        self,
        send: Callable[[Command], None] = lambda _: None,
        count_requests: Callable[[Adapter], int] = lambda _: 0,
    ) -> None:
        self.attach(send, count_requests)
        self._current: dict[str, Adapter] = {}
        self._draining: list[Adapter] = []
        self._awaited: deque[_Awaited] = deque()
        self._generations: dict[str, int] = {}

    def attach(
        self, send: Callable[[Command], None], count_requests: Callable[[Adapter], int]
    ) -> None:
        """Belong to another engine from now on."""
        self.count_requests = count_requests
        self._send = send

    def find(self, name: str) -> Adapter | None:
        """The generation that has the name."""
        return self._current.get(name)

    def get(self, name: str) -> Adapter:
        """The generation that new requests use. Raises `AdapterNotFound`, or `AdapterInvalid` where
        the engine could not load it again."""
        adapter = self._current.get(name)
        if adapter is None:
            raise AdapterNotFound(adapter=name)
        if adapter.state is AdapterState.FAILED:
            raise AdapterInvalid(adapter=name, problem=adapter.problem)
        return adapter

    def current(self) -> list[Adapter]:
        """Those that have a name, sorted by it."""
        return sorted(self._current.values(), key=lambda adapter: adapter.name)

    def all(self) -> list[Adapter]:
        """Draining ones too, sorted by name and generation."""
        both = (*self._current.values(), *self._draining)
        return sorted(both, key=lambda adapter: (adapter.name, adapter.generation))

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

    def unload(self, name: str) -> Adapter:
        """Take the name away and free the generation once nothing uses it. Raises
        `AdapterNotFound`."""
        adapter = self._current.pop(name, None)
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
        adapter, loaded = self._awaited.popleft()
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
                blame = AdapterInvalid(adapter=adapter.name, problem=_DIED)
                self._fail(adapter, loaded, blame)
            elif loaded is not None:
                self._fail(adapter, loaded, error)
        self.sweep()

    def _request(self, adapter: Adapter, loaded: "asyncio.Future[Adapter] | None") -> None:
        self._awaited.append(_Awaited(adapter, loaded))
        self._send(LoadAdapter(*adapter.content, adapter.file.path))

    def _publish(self, adapter: Adapter) -> None:
        self._generations[adapter.name] = self._generations.get(adapter.name, 0) + 1
        adapter.generation = self._generations[adapter.name]
        before = self._current.get(adapter.name)
        self._current[adapter.name] = adapter
        if before is not None:
            self._drain(before)

    def _fail(
        self, adapter: Adapter, loaded: "asyncio.Future[Adapter] | None", error: DomainError
    ) -> None:
        if loaded is None:
            adapter.state = AdapterState.FAILED
            adapter.problem = error.metadata.get("problem", error.message)
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
    """Tell whoever waits, if somebody still does."""
    if loaded.done():
        return
    if isinstance(outcome, DomainError):
        loaded.set_exception(outcome)
    else:
        loaded.set_result(outcome)
