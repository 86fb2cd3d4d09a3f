"""Output formats (response_format and its extensions), converted to a Constraint."""

from typing import Any, Literal

from corral.inference.v1 import generation_pb2
from pydantic import Field

from dialects.shared.fields import WireModel
from dialects.shared.json_body import json_text
from svc_kit.errors import InvalidField, MissingField


class JsonSchemaFormat(WireModel):
    """A JSON Schema with a name."""

    name: str | None = Field(None, description="A name for the schema.")
    schema_: dict[str, Any] | None = Field(None, alias="schema", description="The JSON Schema.")
    strict: bool | None = Field(None, description="Ignored: the schema is always enforced.")
    description: str | None = None


class ResponseFormat(WireModel):
    """The output format of the answer."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None
    schema_: dict[str, Any] | None = Field(
        None, alias="schema", description="The JSON Schema where llama-server expects it."
    )


class StructuredOutputs(WireModel):
    """A constraint in vLLM's format. Exactly one field must be set."""

    json_: dict[str, Any] | None = Field(None, alias="json", description="A JSON Schema.")
    regex: str | None = Field(None, description="A regular expression for the whole answer.")
    choice: list[str] | None = Field(None, min_length=1, description="The allowed answers.")
    grammar: str | None = Field(None, description="A GBNF grammar.")
    json_object: bool | None = Field(None, description="Any JSON object.")


def resolve_constraint(
    response_format: ResponseFormat | None,
    json_schema: dict[str, Any] | None,
    grammar: str | None,
    structured_outputs: StructuredOutputs | None,
) -> generation_pb2.Constraint | None:
    """The constraint of a body, or None. Raises InvalidField if there are two."""
    candidates = {
        "response_format": _from_response_format(response_format),
        "json_schema": _from_schema(json_schema),
        "grammar": None if grammar is None else generation_pb2.Constraint(gbnf=grammar),
        "structured_outputs": _from_structured_outputs(structured_outputs),
    }
    constraints = {field: each for field, each in candidates.items() if each is not None}
    if len(constraints) > 1:
        first, second = list(constraints)[:2]
        raise InvalidField(field=second, problem=f"it cannot be combined with '{first}'")
    return next(iter(constraints.values()), None)


def _from_response_format(output: ResponseFormat | None) -> generation_pb2.Constraint | None:
    if output is None or output.type == "text":
        return None
    nested = None if output.json_schema is None else output.json_schema.schema_
    schema = output.schema_ if nested is None else nested
    if output.type == "json_schema" and schema is None:
        raise MissingField(field="response_format.json_schema.schema")
    return _from_schema(schema) or generation_pb2.Constraint(json_object=True)


def _from_schema(schema: dict[str, Any] | None) -> generation_pb2.Constraint | None:
    if schema is None:
        return None
    return generation_pb2.Constraint(json_schema=json_text(schema))


def _from_structured_outputs(
    outputs: StructuredOutputs | None,
) -> generation_pb2.Constraint | None:
    if outputs is None:
        return None
    choices = outputs.choice
    fields: dict[str, Any] = {
        "json_schema": json_text(outputs.json_) or None,
        "regex": outputs.regex,
        "gbnf": outputs.grammar,
        "json_object": outputs.json_object or None,
        "choices": None if choices is None else generation_pb2.TextChoices(values=choices),
    }
    given = {name: value for name, value in fields.items() if value is not None}
    if len(given) != 1:
        raise InvalidField(field="structured_outputs", problem="exactly one field must be set")
    return generation_pb2.Constraint(**given)
