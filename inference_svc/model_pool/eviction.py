"""Decides which model is loaded or evicted next. Pure rules, no I/O.

AVAILABLE ─start_loading─► LOADING ─finish_loading─► READY ─start_unloading─► UNLOADING
"""

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field

from inference_svc.models.device_memory import DeviceBytes, LayerSplit
from svc_kit.errors import ModelTooLarge


class ModelState(enum.Enum):
    AVAILABLE = "available"
    LOADING = "loading"
    READY = "ready"
    UNLOADING = "unloading"
    FAILED = "failed"


class InvalidTransition(Exception):
    """A bug in the pool: the state of the model does not allow the operation."""


@dataclass(slots=True)
class Resident:
    """One model's residency in memory, as the eviction policy sees it.

    `used_at` is when its last use began or ended, on any monotonic clock. `num_waiting` is the
    number of calls that wait for it to load. A pinned model is never evicted; another is unloaded
    when it was idle for `idle_ttl_s`. `layer_split` gives the planned placement of its bytes;
    `memory` is planned while it loads, then measured.
    """

    name: str
    is_pinned: bool = False
    state: ModelState = ModelState.AVAILABLE
    num_uses: int = 0
    num_waiting: int = 0
    used_at: float = 0.0
    memory: DeviceBytes = field(default_factory=DeviceBytes)
    problem: str = ""
    layer_split: LayerSplit = field(default_factory=LayerSplit)
    idle_ttl_s: float | None = None

    @property
    def uses_memory(self) -> bool:
        """Whether its engine is running, starting or stopping."""
        return self.state in (ModelState.LOADING, ModelState.READY, ModelState.UNLOADING)

    @property
    def is_evictable(self) -> bool:
        """Whether it can be evicted now."""
        is_needed = self.num_uses or self.num_waiting or self.is_pinned
        return self.state is ModelState.READY and not is_needed

    def is_expired(self, now: float) -> bool:
        """Whether it was idle for so long that it is unloaded."""
        ttl_s = self.idle_ttl_s
        return self.is_evictable and ttl_s is not None and now - self.used_at >= ttl_s

    @property
    def is_reclaimable(self) -> bool:
        """Whether its memory becomes free, now or later, without an operator."""
        return self.uses_memory and (not self.is_pinned or self.state is ModelState.UNLOADING)

    def start_loading(self) -> None:
        """AVAILABLE or FAILED to LOADING."""
        self._set_state(ModelState.LOADING, ModelState.AVAILABLE, ModelState.FAILED)
        self.problem = ""

    def reserve(self, planned: DeviceBytes) -> None:
        """Count the memory that the load is expected to take."""
        self._require(ModelState.LOADING)
        self.memory = planned

    def finish_loading(self, now: float) -> None:
        """LOADING to READY."""
        self._set_state(ModelState.READY, ModelState.LOADING)
        self.used_at = now

    def cancel_loading(self) -> None:
        """LOADING back to AVAILABLE, for a reason other than a failure of the model."""
        self._set_state(ModelState.AVAILABLE, ModelState.LOADING)
        self.memory = DeviceBytes()

    def fail(self, problem: str) -> None:
        """LOADING to FAILED."""
        self._set_state(ModelState.FAILED, ModelState.LOADING)
        self.memory = DeviceBytes()
        self.problem = problem

    def acquire(self, now: float) -> None:
        self._require(ModelState.READY)
        self.num_uses += 1
        self.used_at = now

    def release(self, now: float) -> None:
        self._require(ModelState.READY, ModelState.UNLOADING)
        self.num_uses -= 1
        self.used_at = now

    def start_unloading(self) -> None:
        """READY to UNLOADING: no new uses, existing ones continue."""
        self._set_state(ModelState.UNLOADING, ModelState.READY)

    def finish_unloading(self) -> None:
        """UNLOADING to AVAILABLE: the engine has ended and its memory is free."""
        if self.num_uses:
            raise InvalidTransition(f"{self.name} has {self.num_uses} uses")
        self._set_state(ModelState.AVAILABLE, ModelState.UNLOADING)
        self.memory = DeviceBytes()

    def _set_state(self, target: ModelState, *sources: ModelState) -> None:
        self._require(*sources)
        self.state = target

    def _require(self, *states: ModelState) -> None:
        if self.state not in states:
            raise InvalidTransition(f"{self.name} is {self.state.value}")


@dataclass(frozen=True, slots=True)
class Fits:
    """The load may start and use up to `free_bytes`."""

    free_bytes: int


@dataclass(frozen=True, slots=True)
class Evict:
    """The least recently used idle model must be evicted first."""

    victim: Resident


@dataclass(frozen=True, slots=True)
class Wait:
    """Models in use hold the memory; `free_bytes` are free."""

    free_bytes: int


LoadDecision = Fits | Evict | Wait


def plan_load(
    candidate: Resident,
    residents: Iterable[Resident],
    needed_bytes: int,
    *,
    budget_bytes: int,
    available: DeviceBytes,
) -> LoadDecision:
    """Decide how `candidate` gets `needed_bytes`.

    Args:
        candidate: the model to load.
        residents: all models; those without memory are ignored.
        needed_bytes: of the machine's memory and of GPUs together.
        budget_bytes: limit of all models together.
        available: free memory of the machine and its GPUs, regardless of the budget.

    Raises:
        ModelTooLarge: it does not fit even if every reclaimable model is unloaded.
    """
    others = [each for each in residents if each is not candidate and each.uses_memory]
    used_bytes = sum(each.memory.total for each in others)

    def free_without(evicted: Iterable[Resident]) -> int:
        freed = sum((each.memory for each in evicted), DeviceBytes())
        remaining = budget_bytes - used_bytes + freed.total
        return max(0, min(remaining, candidate.layer_split.fitting_bytes(available + freed)))

    free = free_without(())
    if needed_bytes <= free:
        return Fits(free)
    limit = free_without(each for each in others if each.is_reclaimable)
    if needed_bytes > limit:
        raise ModelTooLarge(model=candidate.name, needed_bytes=needed_bytes, available_bytes=limit)
    idle = [each for each in others if each.is_evictable]
    helpful = [each for each in idle if free_without((each,)) > free]
    # If several devices are full, no single eviction helps: evict models on the same devices, and
    # keep those that only use others.
    devices = candidate.layer_split.places(available)
    victims = helpful or [each for each in idle if each.memory.is_on(devices)]
    return Evict(min(victims, key=_last_use)) if victims else Wait(free)


def find_over_budget(
    residents: Iterable[Resident], budget_bytes: int, loaded: Resident
) -> Resident | None:
    """Return the model to evict because the measured memory of all exceeds the budget.

    None if they fit or none is evictable. `loaded`, the model loaded last, is never evicted.
    """
    using = [each for each in residents if each.uses_memory]
    if sum(each.memory.total for each in using) <= budget_bytes:
        return None
    idle = [each for each in using if each.is_evictable and each is not loaded]
    return min(idle, key=_last_use, default=None)


def _last_use(resident: Resident) -> float:
    return resident.used_at


def check_integrity(residents: Iterable[Resident]) -> None:
    """Raise `InvalidTransition` if the counts of a model contradict its state."""
    for each in residents:
        if each.num_uses < 0 or (each.num_uses and not each.uses_memory):
            raise InvalidTransition(f"{each.name} is {each.state.value} with {each.num_uses} uses")
        if each.num_uses and each.state is ModelState.LOADING:
            raise InvalidTransition(f"{each.name} is used while it loads")
        if each.memory.total and not each.uses_memory:
            raise InvalidTransition(f"{each.name} is {each.state.value} and holds memory")
        if (each.state is ModelState.FAILED) != bool(each.problem):
            raise InvalidTransition(f"{each.name} is {each.state.value}: {each.problem!r}")
