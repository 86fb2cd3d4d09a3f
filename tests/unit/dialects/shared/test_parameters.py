"""The policy of request models: ignored and refused parameters, inherited and nested."""

from collections.abc import Iterator
from typing import ClassVar

import pytest

from dialects.shared import parameters
from dialects.shared.fields import WireModel, validate
from svc_kit.errors import UnknownField, UnsupportedField


class Part(WireModel):
    """A part with a rule of its own."""

    policy: ClassVar[parameters.Policy] = {"mark": parameters.Ignored("it is a mark")}
    text: str | None = None


class Body(WireModel):
    """A body with all kinds of rules."""

    policy: ClassVar[parameters.Policy] = {
        "user": parameters.Ignored("it is a label", ("nobody",)),
        "beams": parameters.Refused("there are none", (1,)),
    }
    model: str = ""
    parts: list[Part] | None = None
    stream: bool | None = None


class Heir(Body):
    """A body that implements one rule, and takes one field back."""

    policy: ClassVar[parameters.Policy] = {"stream": parameters.Refused("it is short", (False,))}
    user: str | None = None


class Open(WireModel):
    """A body of a dialect that ignores what it does not know."""

    policy: ClassVar[parameters.Policy] = {
        parameters.UNKNOWN: parameters.Ignored("it is not known here")
    }
    model: str = ""


@pytest.fixture
def report() -> Iterator[parameters.ParameterReport]:
    started = parameters.ParameterReport()
    token = parameters.parameter_report.set(started)
    yield started
    parameters.parameter_report.reset(token)


def test_an_ignored_parameter_is_reported(report: parameters.ParameterReport) -> None:
    """Once, without positions in lists, and also in nested objects; other fields are kept."""
    fields = {"model": "m", "user": "u", "parts": [{"mark": 1, "text": "a"}, {"mark": 2}, {}]}
    body = validate(Body, fields)

    assert body == Body(model="m", parts=[Part(text="a"), Part(), Part()])
    assert report.names == ("user", "parts[].mark")
    assert fields["parts"] == [{"mark": 1, "text": "a"}, {"mark": 2}, {}]


def test_values_without_effect_are_not_reported(report: parameters.ParameterReport) -> None:
    """Neither nulls; what was asked for is done."""
    validate(Body, {"user": "nobody", "beams": 1, "parts": [{"mark": None}]})
    validate(Body, {"user": None, "beams": None})

    assert report.names == ()


@pytest.mark.parametrize("beams", [2, True, "1", []])
def test_a_refused_parameter_is_an_error(beams: object) -> None:
    """It names the parameter and says why; true is not the number 1."""
    with pytest.raises(UnsupportedField, match="there are none") as caught:
        validate(Body, {"beams": beams})

    assert caught.value.field == "beams"


def test_a_strict_request_refuses_what_is_ignored() -> None:
    token = parameters.parameter_report.set(parameters.ParameterReport(strict=True))
    try:
        with pytest.raises(UnsupportedField, match="it is a mark") as caught:
            validate(Body, {"parts": [{}, {"mark": 1}]}, "body")
        validate(Body, {"user": "nobody"})
    finally:
        parameters.parameter_report.reset(token)

    assert caught.value.field == "body.parts[1].mark"


def test_rules_and_fields_replace_inherited_ones() -> None:
    """A field of a subclass is implemented, and a rule of it takes an inherited field away."""
    assert set(parameters.policy_of(Heir)) == {"beams", "stream"}
    assert set(parameters.policies(Heir)) == {"beams", "stream", "parts[].mark"}
    assert validate(Heir, {"user": "u"}).user == "u"
    with pytest.raises(UnsupportedField):
        validate(Heir, {"stream": True})


def test_unknown_parameters_are_ignored_only_by_rule(report: parameters.ParameterReport) -> None:
    """Where a dialect says so, they are reported."""
    validate(Open, {"model": "m", "what": 1})
    with pytest.raises(UnknownField):
        validate(Body, {"what": 1})

    assert report.names == ("what",)


def test_the_json_schema_describes_the_policy() -> None:
    """Ignored ones allow every value, refused ones those without effect."""
    properties = Heir.model_json_schema()["properties"]

    assert properties["stream"]["anyOf"] == [{"type": "null"}, {"const": False}]
    assert properties["beams"]["description"] == "Not supported: there are none."
    assert Body.model_json_schema()["properties"]["user"] == {
        "description": "Ignored: it is a label."
    }
