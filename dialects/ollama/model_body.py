"""Base of Ollama's request bodies, which are more lenient than OpenAI's.

Null means "not given", unknown keys have no effect, and integers may be written with a fraction.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Final

from pydantic import BeforeValidator, ConfigDict, Field

from dialects.shared.fields import WireModel, validate
from dialects.shared.parameters import UNKNOWN, Ignored, Policy
from svc_kit.errors import MissingField

DEFAULT_TAG: Final = ":latest"


OTHERS: Final[Policy] = {UNKNOWN: Ignored("Ollama ignores unknown keys")}
"""The policy of what callers write, unlike messages, which they play back."""


class LenientModel(WireModel):
    """A part of a body. Unknown keys are ignored, types are not coerced."""

    model_config = ConfigDict(extra="ignore")


def _truncate(value: object) -> object:
    is_number = isinstance(value, float) and abs(value) < 2**63
    return int(value) if is_number else value  # type: ignore[call-overload]  # it is a float


TRUNCATED: Final = BeforeValidator(_truncate)
"""Cuts the fraction of a number."""


class ModelBody(LenientModel):
    policy: ClassVar[Policy] = OTHERS

    model: str | None = Field(None, description="The model's name, with or without ':latest'.")
    name: str | None = Field(None, description="The older name of `model`.")

    @property
    def written_name(self) -> str:
        """The name as the caller wrote it, which answers repeat."""
        return self.model or self.name or ""

    @property
    def model_name(self) -> str:
        """The name without the default tag. Raises MissingField."""
        if not self.written_name:
            raise MissingField(field="model")
        return untagged(self.written_name)


class NamedModelBody(ModelBody):
    """A body that is about one model, and that can ask for a stream."""

    stream: bool | None = Field(None, description="Send lines of JSON. Default: true.")


class CopyModelBody(LenientModel):
    """The body of a request for another name of a model."""

    policy: ClassVar[Policy] = OTHERS

    source: str = Field(description="The model's name, with or without ':latest'.")
    destination: str = Field(description="Its other name.")


def untagged(name: str) -> str:
    """A model's name without the default tag."""
    return name.removesuffix(DEFAULT_TAG) or name


def tagged(name: str) -> str:
    """A model's name as Ollama lists it, with a tag."""
    return name if ":" in name else name + DEFAULT_TAG


def parse_model(fields: Mapping[str, Any]) -> NamedModelBody:
    """Validate a body that is about one model. Raises DomainErrors, also without a model."""
    body = validate(NamedModelBody, fields)
    _ = body.model_name
    return body
