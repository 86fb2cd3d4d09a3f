"""Filters over attributes say what a plain reading of them says."""

import json
from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from control_svc.vector_stores.filters import (
    MAX_DEPTH,
    Comparator,
    Comparison,
    Compound,
    Filter,
    Junction,
    filter_from_json,
)
from control_svc.vector_stores.model import AttributeValue

VALUES: st.SearchStrategy[AttributeValue] = (
    st.sampled_from(["", "a", "b"]) | st.sampled_from([0.0, 1.0, 2.0]) | st.booleans()
)
ATTRIBUTES = st.dictionaries(st.sampled_from("xyz"), VALUES)
SEVERAL = (Comparator.IN, Comparator.NIN)
COMPARISONS: st.SearchStrategy[Filter] = st.sampled_from(Comparator).flatmap(
    lambda comparator: st.builds(
        Comparison,
        st.sampled_from("xyz"),
        st.just(comparator),
        st.lists(VALUES).map(tuple) if comparator in SEVERAL else VALUES,
    )
)
FILTERS = st.recursive(
    COMPARISONS,
    lambda inner: st.builds(
        Compound, st.sampled_from(Junction), st.lists(inner, min_size=1).map(tuple)
    ),
    max_leaves=8,
)


def kind(value: AttributeValue) -> str:
    """What JSON calls it."""
    if isinstance(value, bool):
        return "boolean"
    return "string" if isinstance(value, str) else "number"


def plainly(condition: Filter, attributes: Mapping[str, AttributeValue]) -> bool:
    """What the contract says, word for word."""
    if isinstance(condition, Compound):
        each = [plainly(inner, attributes) for inner in condition.filters]
        return all(each) if condition.junction == "and" else any(each)
    value = condition.value
    values = value if isinstance(value, tuple) else (value,)
    found = attributes.get(condition.key)
    equal = found is not None and (kind(found), found) in [(kind(v), v) for v in values]
    if condition.comparator in ("eq", "in"):
        return equal
    if condition.comparator in ("ne", "nin"):
        return not equal
    wanted = values[0]
    if found is None or kind(found) != kind(wanted) or kind(found) == "boolean":
        return False
    less = sorted([found, wanted], key=lambda each: (each, each is found))[0] is found
    match condition.comparator:
        case "gt":
            return not less and found != wanted
        case "gte":
            return not less or found == wanted
        case "lt":
            return less and found != wanted
    return less or found == wanted


@given(FILTERS, ATTRIBUTES)
def test_a_filter_is_what_it_says(condition: Filter, attributes: dict[str, AttributeValue]) -> None:
    """For every combination of kinds, also where the attribute is not there."""
    assert condition.matches(attributes) is plainly(condition, attributes)


def written(condition: Filter) -> dict[str, object]:
    """A condition as callers write it."""
    if isinstance(condition, Compound):
        return {
            "type": condition.junction,
            "filters": [written(each) for each in condition.filters],
        }
    value = list(condition.value) if isinstance(condition.value, tuple) else condition.value
    return {"type": condition.comparator, "key": condition.key, "value": value}


@given(FILTERS.filter(lambda condition: _depth(condition) <= MAX_DEPTH))
def test_a_condition_comes_back_from_its_json(condition: Filter) -> None:
    """Nothing of it is lost on the way."""
    assert filter_from_json(json.dumps(written(condition))) == condition


def _depth(condition: Filter) -> int:
    if isinstance(condition, Comparison):
        return 1
    return 1 + max(map(_depth, condition.filters))
