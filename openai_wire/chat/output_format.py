"""Output formats (response_format and local extensions), converted to a constraint."""

from typing import Any, Literal

import orjson
from corral.inference.v1 import generation_pb2
from pydantic import Field

from openai_wire.shared.fields import WireModel
from svc_kit.errors import InvalidField, MissingField


class JsonSchemaFormat(WireModel):
    """The named schema of response_format."""

    name: str | None = Field(None, description="A name for the schema.")
    schema_: dict[str, Any] | None = Field(None, alias="schema", description="The JSON Schema.")
    strict: bool | None = Field(None, description="The schema is always followed.")
    description: str | None = None


class ResponseFormat(WireModel):
    """The form of the answer."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None
    schema_: dict[str, Any] | None = Field(
        None, alias="schema", description="llama-server's place for the JSON Schema."
    )


class StructuredOutputs(WireModel):
    """vLLM's form of a constraint: exactly one field."""

    json_: dict[str, Any] | None = Field(None, alias="json", description="A JSON Schema.")
    regex: str | None = Field(None, description="A regular expression for the whole answer.")
    choice: list[str] | None = Field(None, min_length=1, description="The answers allowed.")
    grammar: str | None = Field(None, description="A GBNF grammar.")
    json_object: bool | None = Field(None, description="Any JSON object.")


def constraint_of(
    response_format: ResponseFormat | None,
    json_schema: dict[str, Any] | None,
    grammar: str | None,
    structured_outputs: StructuredOutputs | None,
) -> generation_pb2.Constraint | None:
    """The one constraint a body asks for, or None. Raises InvalidField when it asks for two."""
    request = {
        "response_format": _from_response_format(response_format),
        "json_schema": _from_schema(json_schema),
        "grammar": None if grammar is None else generation_pb2.Constraint(gbnf=grammar),
        "structured_outputs": _from_structured_outputs(structured_outputs),
    }
    given = {field: constraint for field, constraint in request.items() if constraint is not None}
    if len(given) > 1:
        first, second = list(given)[:2]
        raise InvalidField(field=second, problem=f"it cannot be combined with '{first}'")
    return next(iter(given.values()), None)


def _from_response_format(form: ResponseFormat | None) -> generation_pb2.Constraint | None:
    if form is None or form.type == "text":
        return None
    nested = None if form.json_schema is None else form.json_schema.schema_
    schema = form.schema_ if nested is None else nested
    if form.type == "json_schema" and schema is None:
        raise MissingField(field="response_format.json_schema.schema")
    return _from_schema(schema) or generation_pb2.Constraint(json_object=True)


def _from_schema(schema: dict[str, Any] | None) -> generation_pb2.Constraint | None:
    if schema is None:
        return None
    return generation_pb2.Constraint(json_schema=orjson.dumps(schema).decode())


def _from_structured_outputs(form: StructuredOutputs | None) -> generation_pb2.Constraint | None:
    if form is None:
        return None
    request = [
        _from_schema(form.json_),
        None if form.regex is None else generation_pb2.Constraint(regex=form.regex),
        None if form.grammar is None else generation_pb2.Constraint(gbnf=form.grammar),
        generation_pb2.Constraint(json_object=True) if form.json_object else None,
        None
        if form.choice is None
        else generation_pb2.Constraint(choices=generation_pb2.TextChoices(values=form.choice)),
    ]
    given = [constraint for constraint in request if constraint is not None]
    if len(given) != 1:
        raise InvalidField(field="structured_outputs", problem="exactly one form must be given")
    return given[0]
