"""Items between protos and the domain, over all items."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from control_svc.items.input_items import Include, apply_include
from control_svc.items.model import ITEM_PREFIXES, Content, Item
from control_svc.items.proto import input_item, item_to_pb
from tests.support.examples import examples
from tests.support.items import ITEMS, contents_of, items_with


@pytest.mark.parametrize("kind", ITEM_PREFIXES)
@settings(max_examples=examples(25))
@given(data=st.data())
def test_items_survive_the_way_over_the_wire(kind: type[Content], data: st.DataObject) -> None:
    """What is written into a message and read from it again is the same, for every kind."""
    sent = data.draw(items_with(contents_of(kind)))

    read = input_item(item_to_pb(sent), "item")

    assert (read.content, read.status) == (sent.content, sent.status)


@settings(max_examples=examples(50))
@given(item=ITEMS, include=st.frozensets(st.sampled_from(Include)))
def test_what_is_left_out_is_nothing_but_what_was_not_asked_for(
    item: Item, include: frozenset[Include]
) -> None:
    """With everything included an item is whole; with less it says less, and nothing else."""
    assert apply_include(item, frozenset(Include)) == item

    less = apply_include(item, include)

    assert apply_include(less, include) == less
    assert less.kind == item.kind
    assert apply_include(less, ()) == apply_include(item, ())
