"""Reference counts of shared cells."""

from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from inference_svc.engine.kv_cache.copies import CellRefCounts

SLOTS = 4
_slots = st.integers(0, SLOTS - 1)
_lengths = st.integers(0, 20)
_operations = st.lists(st.tuples(st.sampled_from("acs"), _slots, _slots, _lengths), max_size=60)


@given(_operations)
def test_counts_agree_with_a_model_that_names_every_cell(
    operations: list[tuple[str, int, int, int]],
) -> None:
    """Counts are exact after any appends, cuts and shares."""
    counts, names = CellRefCounts(SLOTS), count()
    slots: list[list[int]] = [[] for _ in range(SLOTS)]
    for kind, slot, other, requested in operations:
        length = min(requested, len(slots[slot]))
        if kind == "a":
            slots[slot] += [next(names) for _ in range(requested)]
        elif kind == "c":
            del slots[slot][length:]
            counts.cut(slot, length)
        elif slot != other:
            slots[other] = slots[slot][:length]
            counts.share(slot, other, length)
        lengths = [len(cells) for cells in slots]
        assert counts.used(lengths) == len(set().union(*slots))
        for index in range(SLOTS):
            others = set().union(*(cells for i, cells in enumerate(slots) if i != index))
            assert counts.freed_by(index, lengths) == len(set(slots[index]) - others)
