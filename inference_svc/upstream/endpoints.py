"""The URLs of an upstream: which may be asked, what is behind them, and when they are tried again.

A URL that failed gets no requests until a probe has found the same engine behind it again, after
pauses that grow: a circuit breaker whose trial is a probe.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple, Protocol

from inference_svc.engine import sequence
from inference_svc.engine.embedding_request import EmbeddingRequest
from inference_svc.engine_client.features import Features
from inference_svc.upstream.endpoint import Endpoint, EndpointState
from inference_svc.upstream.engine_api import EngineInfo, InfoApi
from inference_svc.upstream.faults import (
    MAX_OVERLOAD_S,
    AnswerInvalid,
    EngineFault,
    EngineLost,
    EngineOverloaded,
    EngineUnusable,
    RequestFailed,
    RequestRefused,
)
from inference_svc.upstream.probe import Identity, PinnedIdentity
from inference_svc.upstream.target import UpstreamTarget
from inference_svc.upstream.upstream_turn import ServedModel, Turn

log = logging.getLogger(__name__)
_DEFAULT_SLOTS: Final = 16
"""Requests that an engine gets at once if it does not tell its slots."""
_LIST_S: Final = 3.0
"""How often the adapters of an engine are listed that has not loaded all of them."""
_MAX_WAIT_S: Final = 5.0
"""How long the first URL that can be used waits for what the others honour."""


class Examined(NamedTuple):
    """What is behind a URL. `features` asks what it honours, and raises `EngineFault`; `turn` makes
    a turn at it, and `embed` one of embeddings, if it has any. `check_vocabulary` compares its
    vocabulary with ours again, and raises `EngineFault`; without token ids it is None, and
    `vocabulary_size` is 0."""

    api: InfoApi
    info: EngineInfo
    identity: Identity
    features: Callable[[], Awaitable[Features]]
    turn: Callable[[sequence.Sequence, ServedModel], Turn]
    embed: Callable[[EmbeddingRequest, ServedModel], Turn] | None = None
    vocabulary_size: int = 0
    check_vocabulary: Callable[[], Awaitable[None]] | None = None


class Mode(Protocol):
    """Finds out what the engines of a name are: `TokenMode`, or `TextMode` without token ids.
    `default_context` is that of a sequence where they do not tell it, in tokens."""

    default_context: int

    async def examine(self, endpoint: Endpoint) -> Examined:
        """Ask an engine what it is. Raises `EngineFault`."""


class EndpointStatus(NamedTuple):
    """A URL for operators; `problem` is why it is not up."""

    url: str
    state: EndpointState
    num_running: int
    problem: str


class Probed(NamedTuple):
    """What was found behind a URL; or what all of them have, with the average of their slots."""

    engine: Examined
    adapters: frozenset[str]
    features: Features
    slots: int
    context_tokens: int


class Endpoints:
    """The URLs. `probed` is what those have in common that could be used when the first probes
    ended, and the adapters that all that are up have loaded since; one that has less afterwards
    gets no requests. As long as adapters are missing, they are listed again every few seconds.

    `on_change` is called when one is up, or is no longer. `on_unusable` is called with the problems
    if none can ever be used, as long as none was.
    """

    def __init__(
        self,
        target: UpstreamTarget,
        mode: Mode,
        pin: PinnedIdentity,
        *,
        on_change: Callable[[], None],
        on_unusable: Callable[[str], None],
    ) -> None:
        self.probed: Probed | None = None
        self._target = target
        self._mode = mode
        self._pin = pin
        self._on_change = on_change
        self._on_unusable = on_unusable
        self._endpoints = [Endpoint(target, url, self._verify) for url in target.urls]
        self._probes: dict[str, asyncio.Task[None]] = {}
        self._found: dict[str, Probed] = {}
        self._found_at = 0.0
        self._asked: set[str] = set()
        self._is_stopped = False

    @property
    def info(self) -> EngineInfo | None:
        """Version, model and limits, as the engine gives them."""
        return self.probed.engine.info if self.probed is not None else None

    @property
    def status(self) -> tuple[EndpointStatus, ...]:
        """The state of each URL."""
        return tuple(
            EndpointStatus(each.url, each.state, each.num_running, each.problem)
            for each in self._endpoints
        )

    @property
    def are_lost(self) -> bool:
        """Whether the last probe of each has failed, by more than overload."""
        return all(each.is_lost for each in self._endpoints)

    @property
    def num_slots(self) -> int:
        """The requests that the URLs that are up get at once."""
        return sum(each.slots for each in self._endpoints if each.state is EndpointState.UP)

    @property
    def num_ahead(self) -> int:
        """The requests that wait in the engines."""
        return sum(max(each.num_running - each.slots, 0) for each in self._endpoints)

    def choose(
        self, now: float, failed_at: Endpoint | None = None, *, is_ahead: bool = False
    ) -> Endpoint | None:
        """The least busy URL that may get a request, if any; with `is_ahead` also one where it
        would wait. The one where it failed gets it again only if no other is up, and once that one
        has been probed."""
        if self.probed is None:
            return None
        up = [each for each in self._endpoints if each.state is EndpointState.UP]
        others = [each for each in up if each is not failed_at]
        if not others and failed_at is not None and failed_at.url not in self._probes:
            others = up
        free = [each for each in others if each.can_start(now, is_ahead=is_ahead)]
        return min(free, key=lambda each: each.num_running, default=None)

    def on_served(self, endpoint: Endpoint, failed_at: Endpoint | None) -> None:
        """Record a complete answer. If the same request has failed at another URL, it was not the
        request."""
        endpoint.mark_served()
        if failed_at is not None and failed_at is not endpoint:
            self.on_failed(failed_at, EngineLost("it failed what another engine has served"))

    def on_failed(self, endpoint: Endpoint, fault: EngineFault) -> None:
        """Record that a request failed. Where the request may be the reason, the engine is probed,
        and serves others meanwhile."""
        if endpoint.state is not EndpointState.UP:
            return
        if isinstance(fault, RequestFailed):
            self._begin_probe(endpoint)
        else:
            now = time.monotonic()
            endpoint.mark_failed(fault, now)
            self.probe_due(now)
            self._on_change()

    def probe_due(self, now: float) -> None:
        """Probe the URLs whose pause is over and that are not up, or lack adapters."""
        for each in self._endpoints:
            is_whole = len(each.adapters) == len(self._target.adapters)
            if each.probe_at <= now and not (each.state is EndpointState.UP and is_whole):
                self._begin_probe(each)
        if self._begin(now):
            self._on_change()

    def _begin(self, now: float) -> bool:
        """Settle what is served, once each URL was asked or the first one has waited."""
        has_asked = all(each.url in self._asked for each in self._endpoints)
        has_waited = has_asked or now - self._found_at >= _MAX_WAIT_S
        if self.probed is not None or not self._found or not has_waited:
            return False
        self.probed = _common([*self._found.values()])
        return True

    def _begin_probe(self, endpoint: Endpoint) -> None:
        if endpoint.url not in self._probes and not self._is_stopped:
            task = asyncio.get_running_loop().create_task(self._probe(endpoint))
            self._probes[endpoint.url] = task

    async def _verify(self, endpoint: Endpoint) -> None:
        """Make sure that the engine is still the one that was probed: it may have been started
        anew with another model under the same name. Raises `EngineFault`."""
        if (found := self._found.get(endpoint.url)) is None:
            return  # it is being probed
        engine = found.engine
        try:
            info = await engine.api.info(endpoint, self._target)
            if info != engine.info:
                raise EngineLost("it is another engine, or has another version or other limits")
            if engine.check_vocabulary is not None:
                await engine.check_vocabulary()
        except RequestRefused as fault:
            raise EngineLost(f"it is another engine: {fault}") from None

    def stop(self) -> None:
        """Close all connections, and probe no more."""
        self._is_stopped = True
        for task in self._probes.values():
            task.cancel()
        for each in self._endpoints:
            each.close()

    async def close(self) -> None:
        """Wait for what `stop` ended."""
        self.stop()
        await asyncio.gather(*self._probes.values(), return_exceptions=True)

    async def _probe(self, endpoint: Endpoint) -> None:
        began_at = time.monotonic()
        try:
            await self._examine(endpoint)
            if endpoint.down_at <= began_at:  # else it has failed meanwhile, and is probed again
                endpoint.mark_up()
                endpoint.probe_at = time.monotonic() + _LIST_S
        except EngineFault as fault:
            self._on_probe_failed(endpoint, fault)
        except Exception as defect:  # a defect of this package, met in an engine's answer
            log.exception("the probe of the engine %s failed", endpoint.url)
            self._on_probe_failed(endpoint, AnswerInvalid(f"it cannot be probed: {defect!r}"))
        finally:
            self._probes.pop(endpoint.url, None)
            self._asked.add(endpoint.url)
        if self._is_stopped:
            return
        refused = [each for each in self._endpoints if each.state is EndpointState.REFUSED]
        if self._pin.identity is None and len(refused) == len(self._endpoints):
            self._on_unusable("; ".join(f"{each.url}: {each.problem}" for each in refused))
        else:
            self._begin(time.monotonic())
            self._on_change()

    def _on_probe_failed(self, endpoint: Endpoint, fault: EngineFault) -> None:
        now = time.monotonic()
        endpoint.mark_failed(fault, now)
        has_time = now - endpoint.down_at < MAX_OVERLOAD_S
        endpoint.is_lost = not (isinstance(fault, EngineOverloaded) and has_time)
        log.warning(
            "the engine %s cannot be used: %s",
            endpoint.url,
            fault,
            extra={"fields": {"model": self._target.name}},
        )

    async def _examine(self, endpoint: Endpoint) -> None:
        """Find out what is behind a URL, and whether it is what is behind the others. Its
        features are probed again only if its version, model or limits have changed."""
        target = self._target
        engine = await self._mode.examine(endpoint)
        info, found = engine.info, self._found.get(endpoint.url)
        if found is None or found.engine.info != info:
            self._found.pop(endpoint.url, None)
            found = Probed(
                engine,
                frozenset(info.adapters),
                await engine.features(),
                target.concurrency or info.slots or _DEFAULT_SLOTS,
                target.context_tokens or info.context_tokens or self._mode.default_context,
            )
        self._pin.check(engine.identity)
        if self.probed is not None and (lacking := _lacking(self.probed, found)):
            raise EngineUnusable(f"it has less than the others of this name: {', '.join(lacking)}")
        if not self._found:
            self._found_at = time.monotonic()
        self._found[endpoint.url] = found
        endpoint.slots = found.slots
        endpoint.ahead = found.slots if target.batch_ahead is None else target.batch_ahead
        endpoint.adapters = info.adapters
        if self.probed is not None:
            up = [each.url for each in self._endpoints if each.state is EndpointState.UP]
            found_up = [self._found[url] for url in {*up, endpoint.url} if url in self._found]
            self.probed = self.probed._replace(adapters=_common(found_up).adapters)


def _common(found: Sequence[Probed]) -> Probed:
    """What each of them has."""
    first, features = found[0], [each.features for each in found]
    takes_grammars = all(each.takes_grammars for each in features)
    counts = [each.max_logprobs for each in features]
    told = [each for each in counts if each is not None]
    return first._replace(
        adapters=frozenset.intersection(*(each.adapters for each in found)),
        features=Features(
            engine=" and ".join(dict.fromkeys(each.engine for each in features)),
            sampling=frozenset.intersection(*(each.sampling for each in features)),
            constraints=frozenset.intersection(*(each.constraints for each in features)),
            takes_grammars=takes_grammars,
            grammar_flag=next((each.grammar_flag for each in features if each.grammar_flag), ""),
            brackets_are_control=all(each.brackets_are_control for each in features),
            max_logprobs=min(told) if len(told) == len(counts) else None,
            min_tokens=all(each.min_tokens for each in features),
            ignore_eos=all(each.ignore_eos for each in features),
            generates=all(each.generates for each in features),
            vector_size=features[0].vector_size,  # the same, since it identifies the model
            mixes_adapters=all(each.mixes_adapters for each in features),
            separates_projects=all(each.separates_projects for each in features),
        ),
        slots=max(round(sum(each.slots for each in found) / len(found)), 1),
        context_tokens=min(each.context_tokens for each in found),
    )


def _lacking(served: Probed, found: Probed) -> list[str]:
    """The names of what is served, but would not be honoured."""
    both = _common([served, found])
    ours, left = served.features, both.features
    missing = sorted(ours.sampling - left.sampling)
    missing += sorted(each.value for each in ours.constraints - left.constraints)
    missing += [f"the adapter {each!r}" for each in sorted(served.adapters - both.adapters)]
    names = ("takes_grammars", "max_logprobs", "min_tokens", "ignore_eos", "generates")
    for name in (*names, "separates_projects"):
        if getattr(ours, name) != getattr(left, name):
            missing.append(name)
    if both.context_tokens < served.context_tokens:
        missing.append(f"a context of {served.context_tokens} tokens ({both.context_tokens})")
    return missing
