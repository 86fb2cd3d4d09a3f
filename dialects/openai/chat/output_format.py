"""Output formats (response_format and its extensions), converted to a Constraint."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import orjson
from corral.inference.v1 import generation_pb2
from pydantic import Field, Tag

from dialects.shared.fields import BY_KIND, Gbnf, WireModel
from dialects.shared.json_body import json_bytes, json_text, load_exact
from dialects.shared.parameters import Policy, Refused, ignore_parameter
from svc_kit.errors import InvalidField, MissingField
from svc_kit.rpc.field_limits import limit

JsonSchema = Annotated[
    Annotated[dict[str, Any], Tag("~object")] | Annotated[str, Tag("~string")], BY_KIND
]
Choices = Annotated[list[str], limit(generation_pb2.TextChoices, "values")]


class GuidedFields(WireModel):
    """Constraints of vLLM until release 0.12."""

    guided_json: JsonSchema | None = Field(None, description="As structured_outputs.json.")
    guided_regex: str | None = Field(None, description="As structured_outputs.regex.")
    guided_choice: Choices | None = Field(None, description="As structured_outputs.choice.")
    guided_grammar: Gbnf = Field(None, description="As structured_outputs.grammar.")

    @property
    def guided_constraints(self) -> dict[str, generation_pb2.Constraint]:
        return {
            field: constraint
            for field in GuidedFields.model_fields
            if (constraint := _constraint(**{field.removeprefix("guided_"): getattr(self, field)}))
            is not None
        }


class JsonSchemaFormat(WireModel):
    """A JSON Schema with a name."""

    name: str | None = Field(None, description="A name for the schema.")
    schema_: dict[str, Any] | None = Field(None, alias="schema", description="The JSON Schema.")
    strict: bool | None = Field(None, description="The schema is enforced in any case.")
    description: str | None = None


class ResponseFormat(WireModel):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None
    schema_: dict[str, Any] | None = Field(
        None, alias="schema", description="The JSON Schema where llama-server expects it."
    )
    value: dict[str, Any] | None = Field(
        None, description="The JSON Schema where Hugging Face's clients have it."
    )


class StructuredOutputs(WireModel):
    """A constraint in vLLM's format. Exactly one field must be set."""

    policy: ClassVar[Policy] = {"structural_tag": Refused("use 'json', 'regex' or 'grammar'")}

    json_: JsonSchema | None = Field(
        None, alias="json", description="A JSON Schema, as an object or as text."
    )
    regex: str | None = Field(None, description="A regular expression for the whole answer.")
    choice: Choices | None = Field(None, description="The allowed answers.")
    grammar: Gbnf = Field(None, description="A GBNF grammar.")
    json_object: bool | None = Field(None, description="Any JSON object.")


def resolve_constraint(
    response_format: ResponseFormat | None,
    json_schema: dict[str, Any] | None,
    grammar: str | None,
    structured_outputs: StructuredOutputs | None,
    guided: Mapping[str, generation_pb2.Constraint],
) -> generation_pb2.Constraint | None:
    """The constraint of a body, or None. Raises InvalidField if two fields have different ones."""
    candidates = {
        "response_format": _from_response_format(response_format),
        "json_schema": _from_schema(json_schema),
        "grammar": None if grammar is None else generation_pb2.Constraint(gbnf=grammar),
        "structured_outputs": _from_structured_outputs(structured_outputs),
    }
    constraints = {field: each for field, each in candidates.items() if each is not None}
    constraints |= guided
    first = next(iter(constraints), "")
    for field, constraint in constraints.items():
        if not _same(constraint, constraints[first]):
            raise InvalidField(field=field, problem=f"it cannot be combined with '{first}'")
    return constraints.get(first)


def _same(one: generation_pb2.Constraint, other: generation_pb2.Constraint) -> bool:
    """Whether two constraints are equal. Schemas may be spaced differently; the order of their
    members counts, because answers have it."""
    if one == other:
        return True
    if not (one.json_schema and other.json_schema):
        return False
    try:
        first, second = (json_bytes(load_exact(each.json_schema.encode())) for each in (one, other))
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):
        return False
    return first == second


def _from_response_format(output: ResponseFormat | None) -> generation_pb2.Constraint | None:
    if output is None or output.type == "text":
        return None
    if output.json_schema is not None and output.json_schema.description:
        ignore_parameter(
            "response_format.json_schema.description", "the model reads no description of a format"
        )
    nested = None if output.json_schema is None else output.json_schema.schema_
    if output.value is not None and (output.schema_ is not None or nested is not None):
        problem = "it cannot be combined with another schema"
        raise InvalidField(field="response_format.value", problem=problem)
    local = output.value if output.schema_ is None else output.schema_
    schema = local if nested is None else nested
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
    values = outputs.model_dump(by_alias=True)
    given = {name: value for name, value in values.items() if value not in (None, False)}
    if len(given) != 1:
        raise InvalidField(field="structured_outputs", problem="exactly one field must be set")
    return _constraint(**given)


def _constraint(
    *,
    json: dict[str, Any] | str | None = None,
    regex: str | None = None,
    choice: Sequence[str] | None = None,
    grammar: str | None = None,
    json_object: bool | None = None,
) -> generation_pb2.Constraint | None:
    """The constraint of the one argument that is given."""
    if json is not None:
        return generation_pb2.Constraint(
            json_schema=json if isinstance(json, str) else json_text(json)
        )
    if choice is not None:
        return generation_pb2.Constraint(choices=generation_pb2.TextChoices(values=choice))
    if regex is None and grammar is None and not json_object:
        return None
    return generation_pb2.Constraint(regex=regex, gbnf=grammar, json_object=json_object)
