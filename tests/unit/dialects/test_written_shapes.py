"""Responses and events that are filled by hand have their declared types."""

from typing import Any

import jsonschema  # type: ignore[import-untyped]  # it has no types
import orjson
import pytest
from pydantic import TypeAdapter

from dialects.shared.wire import WRITTEN
from gateway.app import build
from gateway.config import GatewaySettings
from gateway.http.docs import declared_shapes
from tests.support.checked_client import closed
from tests.support.written_shapes import WRITTEN_SHAPES


@pytest.mark.parametrize("shape", list(WRITTEN_SHAPES), ids=lambda shape: shape.__name__)
def test_what_is_written_has_the_declared_type(shape: Any) -> None:
    """All its keys, in every case of its writer, and no others."""
    schema = TypeAdapter(shape).json_schema(mode="serialization")
    validator = jsonschema.Draft202012Validator(closed(schema))

    texts = {orjson.dumps(value) for value in WRITTEN_SHAPES[shape]()}
    written = [text for text in texts if b'"unspecified"' not in text]
    assert written
    for text in written:
        problems = validator.iter_errors(orjson.loads(text))
        assert (problem := jsonschema.exceptions.best_match(problems)) is None, (text, problem)


async def test_every_type_of_a_response_is_tried() -> None:
    """Here, or in the test of the types that are made from messages."""
    async with build(GatewaySettings()) as gateway:
        shapes = set(declared_shapes(gateway.api))

    assert shapes - WRITTEN.keys() == WRITTEN_SHAPES.keys()
