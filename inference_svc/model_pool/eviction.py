"""Which models are loaded, and which are loaded or evicted next: pure rules.

AVAILABLE ──begin──► LOADING ──ready──► READY ──retire──► UNLOADING ──gone──► AVAILABLE
"""

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field

from inference_svc.models.device_memory import DeviceBytes, LayerSplit
from svc_kit.errors import ModelTooLarge


class ModelState(enum.Enum):
    """Where a model is in its life."""

    AVAILABLE = "available"
    LOADING = "loading"
    READY = "ready"
    UNLOADING = "unloading"
    FAILED = "failed"


class InvalidTransition(Exception):
    """A defect of the pool: a model cannot go from its state to the asked one."""


@dataclass(slots=True)
class Resident:
    """One model's residency in memory, as the eviction policy sees it.

    `used_at` is when its last use began or ended, on any monotonic clock. `awaited` is the number
    of calls that wait for it to load. A model with `is_pinned` is never evicted. `spread` gives the
    placement of its bytes as planned, `held` as measured.
    """

    name: str
    is_pinned: bool = False
    state: ModelState = ModelState.AVAILABLE
    uses: int = 0
    awaited: int = 0
    used_at: float = 0.0
    held: DeviceBytes = field(default_factory=DeviceBytes)
    problem: str = ""
    spread: LayerSplit = field(default_factory=LayerSplit)

    @property
    def held_bytes(self) -> int:
        """All that it holds, of the machine and of GPUs."""
        return self.held.total

    @property
    def uses_memory(self) -> bool:
        """Whether its engine is there, or coming, or going."""
        return self.state in (ModelState.LOADING, ModelState.READY, ModelState.UNLOADING)

    @property
    def may_give_way(self) -> bool:
        """Whether its memory can be had now."""
        wanted = self.uses or self.awaited or self.is_pinned
        return self.state is ModelState.READY and not wanted

    @property
    def will_give_way(self) -> bool:
        """Whether its memory can be had some time, without an operator."""
        return self.uses_memory and (not self.is_pinned or self.state is ModelState.UNLOADING)

    def begin(self) -> None:
        """Start to load."""
        self._move(ModelState.LOADING, ModelState.AVAILABLE, ModelState.FAILED)
        self.problem = ""

    def plan(self, planned: DeviceBytes) -> None:
        """Hold the memory that the load is expected to take."""
        self._require(ModelState.LOADING)
        self.held = planned

    def ready(self, now: float) -> None:
        """Answer from now on."""
        self._move(ModelState.READY, ModelState.LOADING)
        self.used_at = now

    def abandon(self) -> None:
        """Stop loading; nothing is wrong with the model."""
        self._move(ModelState.AVAILABLE, ModelState.LOADING)
        self.held = DeviceBytes()

    def fail(self, problem: str) -> None:
        """It cannot be loaded."""
        self._move(ModelState.FAILED, ModelState.LOADING)
        self.held = DeviceBytes()
        self.problem = problem

    def acquire(self, now: float) -> None:
        """One more use."""
        self._require(ModelState.READY)
        self.uses += 1
        self.used_at = now

    def release(self, now: float) -> None:
        """One use less."""
        self._require(ModelState.READY, ModelState.UNLOADING)
        self.uses -= 1
        self.used_at = now

    def retire(self) -> None:
        """Take no more uses."""
        self._move(ModelState.UNLOADING, ModelState.READY)

    def gone(self) -> None:
        """Its engine has ended and its memory is free."""
        if self.uses:
            raise InvalidTransition(f"{self.name} has {self.uses} uses")
        self._move(ModelState.AVAILABLE, ModelState.UNLOADING)
        self.held = DeviceBytes()

    def _move(self, target: ModelState, *sources: ModelState) -> None:
        self._require(*sources)
        self.state = target

    def _require(self, *states: ModelState) -> None:
        if self.state not in states:
            raise InvalidTransition(f"{self.name} is {self.state.value}")


@dataclass(frozen=True, slots=True)
class Fits:
    """The load may start; so many bytes are free for it."""

    free_bytes: int


@dataclass(frozen=True, slots=True)
class MakeRoom:
    """This model, idle for the longest time, has to go first."""

    victim: Resident


@dataclass(frozen=True, slots=True)
class Wait:
    """Models that are in use hold the memory; so many bytes are free."""

    free_bytes: int


Verdict = Fits | MakeRoom | Wait


def plan_load(
    newcomer: Resident,
    residents: Iterable[Resident],
    needed_bytes: int,
    *,
    budget_bytes: int,
    available: DeviceBytes,
) -> Verdict:
    """Say how `newcomer` gets `needed_bytes`.

    Args:
        budget_bytes: what all models together may take.
        available: what the machine and its GPUs can give now, whatever the budget says.

    Raises:
        ModelTooLarge: it cannot have them, even if every model went that may.
    """
    others = [each for each in residents if each is not newcomer and each.uses_memory]
    held_bytes = sum(each.held_bytes for each in others)

    def free_without(gone: Iterable[Resident]) -> int:
        gone_bytes = sum((each.held for each in gone), DeviceBytes())
        left = budget_bytes - held_bytes + gone_bytes.total
        return max(0, min(left, newcomer.spread.fitting_bytes(available + gone_bytes)))

    free = free_without(())
    if needed_bytes <= free:
        return Fits(free)
    most = free_without(each for each in others if each.will_give_way)
    if needed_bytes > most:
        raise ModelTooLarge(model=newcomer.name, needed_bytes=needed_bytes, available_bytes=most)
    idle = [each for each in others if each.may_give_way]
    helping = [each for each in idle if free_without((each,)) > free]
    # Where several are short it takes more than one; who is elsewhere, on another GPU say, stays.
    places = newcomer.spread.places(available)
    leaving = helping or [each for each in idle if each.held.is_on(places)]
    return MakeRoom(min(leaving, key=_last_use)) if leaving else Wait(free)


def over_budget(
    residents: Iterable[Resident], budget_bytes: int, newest: Resident
) -> Resident | None:
    """The model to evict because the residents exceed the budget together, as measured.

    None if they fit, or if none may be evicted. `newest`, which was just loaded, never is.
    """
    loaded = [each for each in residents if each.uses_memory]
    if sum(each.held_bytes for each in loaded) <= budget_bytes:
        return None
    idle = [each for each in loaded if each.may_give_way and each is not newest]
    return min(idle, key=_last_use, default=None)


def _last_use(resident: Resident) -> float:
    return resident.used_at


def check_integrity(residents: Iterable[Resident]) -> None:
    """Raise `InvalidTransition` where the numbers contradict a state."""
    for each in residents:
        if each.uses < 0 or (each.uses and not each.uses_memory):
            raise InvalidTransition(f"{each.name} is {each.state.value} with {each.uses} uses")
        if each.uses and each.state is ModelState.LOADING:
            raise InvalidTransition(f"{each.name} is used while it loads")
        if each.held_bytes and not each.uses_memory:
            raise InvalidTransition(f"{each.name} is {each.state.value} and holds memory")
        if (each.state is ModelState.FAILED) != bool(each.problem):
            raise InvalidTransition(f"{each.name} is {each.state.value}: {each.problem!r}")
