"""Shared cells are counted once."""

from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from inference_svc.engine.kv_cache.copies import CellRefCounts

SLOTS = 4
_slots = st.integers(0, SLOTS - 1)
_lengths = st.integers(0, 20)
_operations = st.lists(st.tuples(st.sampled_from("acs"), _slots, _slots, _lengths), max_size=60)


@given(_operations)
def test_the_books_agree_with_cells_that_have_names(
    operations: list[tuple[str, int, int, int]],
) -> None:
    """Whatever is appended, cut and shared, in whatever order."""
    book, names = CellRefCounts(SLOTS), count()
    slots: list[list[int]] = [[] for _ in range(SLOTS)]
    for kind, slot, other, asked in operations:
        length = min(asked, len(slots[slot]))
        if kind == "a":
            slots[slot] += [next(names) for _ in range(asked)]
        elif kind == "c":
            del slots[slot][length:]
            book.cut(slot, length)
        elif slot != other:
            slots[other] = slots[slot][:length]
            book.share(slot, other, length)
        lengths = [len(cells) for cells in slots]
        assert book.used(lengths) == len(set().union(*slots))
        for index in range(SLOTS):
            left = set().union(*(cells for i, cells in enumerate(slots) if i != index))
            assert book.freed_by(index, lengths) == len(set(slots[index]) - left)
