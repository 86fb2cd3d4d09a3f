"""Proto conversion of items, and `include`."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from control_svc.items.input_items import Include, apply_include
from control_svc.items.model import ITEM_PREFIXES, Content, Item
from control_svc.items.proto import ITEM, input_item
from tests.support.examples import examples
from tests.support.items import ITEMS, contents_of_kind, items_with


@pytest.mark.parametrize("kind", ITEM_PREFIXES)
@settings(max_examples=examples(25))
@given(data=st.data())
def test_items_round_trip_through_protos(kind: type[Content], data: st.DataObject) -> None:
    """Content and status of every kind of item."""
    item = data.draw(items_with(contents_of_kind(kind)))

    converted = input_item(ITEM.to_message(item), "item")

    assert (converted.content, converted.status) == (item.content, item.status)


@settings(max_examples=examples(50))
@given(item=ITEMS, include=st.frozensets(st.sampled_from(Include)))
def test_include_removes_only_optional_fields(item: Item, include: frozenset[Include]) -> None:
    """All values keep the whole item; removal is idempotent and does not depend on order."""
    assert apply_include(item, frozenset(Include)) == item

    filtered = apply_include(item, include)

    assert apply_include(filtered, include) == filtered
    assert filtered.kind == item.kind
    assert apply_include(filtered, ()) == apply_include(item, ())
