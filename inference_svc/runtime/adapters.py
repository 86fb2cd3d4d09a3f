"""The adapters that the engine has, as the frontend knows them: by name, in generations.

A name belongs to a project; an operator's belongs to none and is everybody's.

Each load under a name makes a new generation, which takes the name when the engine has it. The one
before it drains: what runs, or waits, goes on with it, and its memory is freed when nothing uses it
any more. An engine that is started again gets the current generations again, from the same bytes.
One that was being loaded when an engine died is not loaded again by itself.

Commands reach the engine in order and each load is answered in order, so requests may follow the
commands of a reload at once, and the first unanswered load is the one an engine died in.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import NamedTuple

from inference_svc.engine.adapter_stack import LoadAdapter, UnloadAdapter
from inference_svc.engine.events import AdapterFailed, AdapterLoaded
from inference_svc.engine.request import Command
from inference_svc.runtime.adapter import Adapter, AdapterKey, AdapterState
from inference_svc.runtime.load_marks import LoadMarks, NoMarks
from svc_kit.errors import AdapterCrashedEngine, AdapterInvalid, AdapterNotFound, DomainError


class _Awaited(NamedTuple):
    """A load that the engine has not answered; nobody waits for one that is repeated."""

    adapter: Adapter
    loaded: "asyncio.Future[Adapter] | None"


class AdapterRegistry:
    """All generations of one model, whose engines come and go. Use on the event loop; `send`
    reaches the engine while there is one, `count_requests` says how many live requests use a
    generation, `marks` hears what is being loaded."""

    def __init__(
        self,
        send: Callable[[Command], None] = lambda _: None,
        count_requests: Callable[[Adapter], int] = lambda _: 0,
    ) -> None:
        self.attach(send, count_requests)
        self.marks: LoadMarks = NoMarks()
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
        adapter, loaded = self._take_answer()
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

    def _take_answer(self) -> _Awaited:
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
    """Tell whoever waits, if somebody still does."""
    if loaded.done():
        return
    if isinstance(outcome, DomainError):
        loaded.set_exception(outcome)
    else:
        loaded.set_result(outcome)
