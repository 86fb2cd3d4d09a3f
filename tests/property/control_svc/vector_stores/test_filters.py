"""Filters agree with a plain implementation, and with their JSON."""

import asyncio
import json
from collections.abc import Iterator, Mapping

import orjson
import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from control_svc.vector_stores import filters
from control_svc.vector_stores.filter_sql import filter_condition
from control_svc.vector_stores.model import AttributeValue
from tests.support.examples import examples, timeout
from tests.support.postgres import create_database, run_test_postgres

TEXTS = st.text(st.characters(exclude_categories=["Cc", "Cs"]), max_size=4)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
VALUES: st.SearchStrategy[AttributeValue] = (
    st.sampled_from(["", "a", "b", "1", "true"])
    | st.sampled_from([0.0, 1.0, 2.0, 0.1 + 0.2])
    | st.booleans()
    | TEXTS
    | NUMBERS
)
KEYS = st.sampled_from(["x", "y", 'z"', "$.x", "\u00e9"])
ATTRIBUTES = st.dictionaries(KEYS, VALUES)
LIST_COMPARATORS = (filters.Comparator.IN, filters.Comparator.NIN)
COMPARISONS: st.SearchStrategy[filters.Filter] = st.sampled_from(filters.Comparator).flatmap(
    lambda comparator: st.builds(
        filters.Comparison,
        KEYS,
        st.just(comparator),
        st.lists(VALUES).map(tuple) if comparator in LIST_COMPARATORS else VALUES,
    )
)
FILTERS = st.recursive(
    COMPARISONS,
    lambda inner: st.builds(
        filters.Compound, st.sampled_from(filters.Junction), st.lists(inner, min_size=1).map(tuple)
    ),
    max_leaves=8,
)


def kind(value: AttributeValue) -> str:
    if isinstance(value, bool):
        return "boolean"
    return "string" if isinstance(value, str) else "number"


def matches_plainly(condition: filters.Filter, attributes: Mapping[str, AttributeValue]) -> bool:
    """A literal implementation of the documentation."""
    if isinstance(condition, filters.Compound):
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


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    """The URL of an empty PostgreSQL database."""
    with run_test_postgres() as server:
        yield create_database(server)


def open_engine(database: str, request: pytest.FixtureRequest) -> AsyncEngine:
    url = "sqlite+aiosqlite://" if database == "sqlite" else request.getfixturevalue("postgres")
    return create_async_engine(url.replace("postgresql:", "postgresql+asyncpg:"))


def as_document(attributes: dict[str, AttributeValue], database: str) -> sa.ColumnElement[str]:
    document = sa.literal(orjson.dumps(attributes).decode(), sa.Text)
    return document if database == "sqlite" else sa.cast(document, JSONB)


@timeout(120)  # the server starts
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_filters_match_as_documented(database: str, request: pytest.FixtureRequest) -> None:
    """For all combinations of types, and missing attributes."""
    engine = open_engine(database, request)

    async def matches(condition: filters.Filter, attributes: dict[str, AttributeValue]) -> bool:
        document = as_document(attributes, database)
        async with engine.connect() as connection:
            query = sa.select(filter_condition(condition, document, database))
            return bool(await connection.scalar(query))

    with asyncio.Runner() as runner:

        @settings(deadline=None, max_examples=examples(50))
        @given(FILTERS, ATTRIBUTES)
        def check(condition: filters.Filter, attributes: dict[str, AttributeValue]) -> None:
            result = runner.run(matches(condition, attributes))
            assert result is matches_plainly(condition, attributes)

        check()
        runner.run(engine.dispose())


@timeout(120)  # the server starts
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
@pytest.mark.parametrize("value", ["a", 0.5])
def test_the_largest_filter_fits_into_a_statement(
    database: str, value: AttributeValue, request: pytest.FixtureRequest
) -> None:
    """A list is one parameter of the compiled statement, and each value one when it is executed:
    the databases limit their number, and many expressions take seconds to compile.
    """
    condition = filters.Comparison("x", filters.Comparator.IN, (value,) * filters.MAX_CONDITIONS)
    largest = filters.Compound(filters.Junction.OR, (condition,) * filters.MAX_CONDITIONS)
    filters.check_filter(largest)
    engine = open_engine(database, request)

    async def matches(attribute: AttributeValue) -> bool:
        document = as_document({"x": attribute}, database)
        query = sa.select(filter_condition(largest, document, database))
        assert len(query.compile(dialect=engine.dialect).params) < 10 * filters.MAX_CONDITIONS
        async with engine.connect() as connection:
            return bool(await connection.scalar(query))

    with asyncio.Runner() as runner:
        assert runner.run(matches(value))
        assert not runner.run(matches("b"))
        runner.run(engine.dispose())


def to_json(condition: filters.Filter) -> dict[str, object]:
    """A filter in the JSON of the OpenAI API."""
    if isinstance(condition, filters.Compound):
        return {
            "type": condition.junction,
            "filters": [to_json(inner) for inner in condition.filters],
        }
    value = list(condition.value) if isinstance(condition.value, tuple) else condition.value
    return {"type": condition.comparator, "key": condition.key, "value": value}


@given(FILTERS.filter(lambda condition: _depth(condition) <= filters.MAX_DEPTH))
def test_filters_are_parsed_from_json(condition: filters.Filter) -> None:
    """Within the maximum depth."""
    assert filters.filter_from_json(json.dumps(to_json(condition))) == condition


def _depth(condition: filters.Filter) -> int:
    if isinstance(condition, filters.Comparison):
        return 1
    return 1 + max(map(_depth, condition.filters))
