"""Filters agree with a plain implementation, and with their JSON."""

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
LIST_COMPARATORS = (Comparator.IN, Comparator.NIN)
COMPARISONS: st.SearchStrategy[Filter] = st.sampled_from(Comparator).flatmap(
    lambda comparator: st.builds(
        Comparison,
        st.sampled_from("xyz"),
        st.just(comparator),
        st.lists(VALUES).map(tuple) if comparator in LIST_COMPARATORS else VALUES,
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
    """The JSON type of a value."""
    if isinstance(value, bool):
        return "boolean"
    return "string" if isinstance(value, str) else "number"


def matches_plainly(condition: Filter, attributes: Mapping[str, AttributeValue]) -> bool:
    """A literal implementation of the documentation."""
    if isinstance(condition, Compound):
        results = [matches_plainly(inner, attributes) for inner in condition.filters]
        return all(results) if condition.junction == "and" else any(results)
    value = condition.value
    values = value if isinstance(value, tuple) else (value,)
    actual = attributes.get(condition.key)
    equal = actual is not None and (kind(actual), actual) in [(kind(v), v) for v in values]
    if condition.comparator in ("eq", "in"):
        return equal
    if condition.comparator in ("ne", "nin"):
        return not equal
    expected = values[0]
    if actual is None or kind(actual) != kind(expected) or kind(actual) == "boolean":
        return False
    less = sorted([actual, expected], key=lambda each: (each, each is actual))[0] is actual
    match condition.comparator:
        case "gt":
            return not less and actual != expected
        case "gte":
            return not less or actual == expected
        case "lt":
            return less and actual != expected
    return less or actual == expected


@given(FILTERS, ATTRIBUTES)
def test_filters_match_as_documented(
    condition: Filter, attributes: dict[str, AttributeValue]
) -> None:
    """For all combinations of types, and missing attributes."""
    assert condition.matches(attributes) is matches_plainly(condition, attributes)


def to_json(condition: Filter) -> dict[str, object]:
    """A filter in the JSON of the OpenAI API."""
    if isinstance(condition, Compound):
        return {
            "type": condition.junction,
            "filters": [to_json(inner) for inner in condition.filters],
        }
    value = list(condition.value) if isinstance(condition.value, tuple) else condition.value
    return {"type": condition.comparator, "key": condition.key, "value": value}


@given(FILTERS.filter(lambda condition: _depth(condition) <= MAX_DEPTH))
def test_filters_are_parsed_from_json(condition: Filter) -> None:
    """Within the maximum depth."""
    assert filter_from_json(json.dumps(to_json(condition))) == condition


def _depth(condition: Filter) -> int:
    if isinstance(condition, Comparison):
        return 1
    return 1 + max(map(_depth, condition.filters))
