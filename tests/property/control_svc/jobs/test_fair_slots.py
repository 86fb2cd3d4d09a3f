"""No project holds all slots of a kind of job while another one waits."""

from collections import Counter
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from control_svc.jobs.dispatcher import SHARE_SLICE_S, TIME_SLICE_S, Slot, choose_released
from tests.support.examples import examples

LONGEST_S = 5 * TIME_SLICE_S
"""How long a job without progress may keep a slot that another project waits for."""


@dataclass
class Slots:
    """The slots of a kind with endless jobs, and the jobs that wait: their projects and times."""

    capacity: int
    waiting: list[tuple[str, float]]
    running: list[tuple[str, float, bool]] = field(default_factory=list)
    """Project, start and progress of each running job."""
    now_s: float = 0.0

    def claim(self) -> None:
        """Fill the free slots in the order of the queue: the fewest running jobs, then age."""
        while len(self.running) < self.capacity and self.waiting:
            counts = self.num_running
            job = min(self.waiting, key=lambda each: (counts[each[0]], each[1]))
            self.waiting.remove(job)
            self.running.append((job[0], self.now_s, len(job[0]) % 2 == 0))

    def poll(self) -> str | None:
        """A second passes; then a job may be released. Returns its project."""
        self.now_s += 1
        slots = [Slot(project, self.now_s - at, done) for project, at, done in self.running]
        released = choose_released(slots, {project for project, _ in self.waiting})
        if released is None:
            return None
        del self.running[slots.index(released)]
        self.waiting.append((released.project, self.now_s))
        return released.project

    @property
    def num_running(self) -> Counter[str]:
        """How many jobs of each project run."""
        return Counter(project for project, _, _ in self.running)


QUEUES = st.dictionaries(st.sampled_from(["a", "bb", "c", "dd"]), st.integers(1, 9), min_size=1)


@settings(max_examples=examples(200))
@given(capacity=st.integers(1, 6), first=QUEUES, later=QUEUES)
def test_a_project_that_waits_gets_its_share(
    capacity: int, first: dict[str, int], later: dict[str, int]
) -> None:
    """Within seconds where another one has two jobs more, and within minutes a turn of its own."""
    slots = Slots(capacity, [*queue(first)])
    slots.claim()
    slots.waiting += queue(later)
    soon_s = capacity * (SHARE_SLICE_S + 1)
    rounds = -(-len(first.keys() | later.keys()) // capacity)
    served_at = dict.fromkeys((*first, *later), 0.0)
    for _ in range(int(2 * LONGEST_S)):
        before = slots.num_running
        released = slots.poll()
        if released is not None:
            assert any(before[each] < before[released] for each, _ in slots.waiting)
        slots.claim()
        counts = slots.num_running
        served_at |= dict.fromkeys(counts, slots.now_s)
        fewest = min((counts[each] for each, _ in slots.waiting), default=capacity)
        if slots.now_s > soon_s:
            assert max(counts.values()) <= fewest + 1
        assert slots.now_s - min(served_at.values()) <= rounds * (LONGEST_S + 1) + soon_s


def queue(jobs: dict[str, int]) -> list[tuple[str, float]]:
    """So many jobs of each project, all of the same age."""
    return [(project, 0.0) for project, count in jobs.items() for _ in range(count)]


def test_one_project_alone_keeps_all_slots() -> None:
    """Nothing is released while only its own jobs wait."""
    slots = [Slot("a", 1e6, has_progress=True)] * 3

    assert choose_released(slots, {"a"}) is None
    assert choose_released(slots, set()) is None


@given(age=st.floats(0, 1e4), has_progress=st.booleans())
def test_the_only_job_of_a_project_keeps_its_slot_for_a_slice(
    age: float, has_progress: bool
) -> None:
    """Longer while it would have to begin again."""
    slot = Slot("a", age, has_progress)
    limit = TIME_SLICE_S if has_progress else LONGEST_S

    assert choose_released([slot], {"b"}) == (slot if age >= limit else None)
