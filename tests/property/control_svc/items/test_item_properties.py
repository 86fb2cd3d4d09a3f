"""Filtering of items by `include`."""

from hypothesis import given, settings
from hypothesis import strategies as st

from control_svc.items.input_items import Include, apply_include
from control_svc.items.model import Item
from tests.support.examples import examples
from tests.support.items import ITEMS


@settings(max_examples=examples(50))
@given(item=ITEMS, include=st.frozensets(st.sampled_from(Include)))
def test_include_removes_only_optional_fields(item: Item, include: frozenset[Include]) -> None:
    """All values keep the whole item; removal is idempotent and does not depend on order."""
    assert apply_include(item, frozenset(Include)) == item

    filtered = apply_include(item, include)

    assert apply_include(filtered, include) == filtered
    assert filtered.kind == item.kind
    assert apply_include(filtered, ()) == apply_include(item, ())
