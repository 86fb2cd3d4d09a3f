"""The fields that all objects and chunks of one response share."""

from dataclasses import dataclass, replace

from typing_extensions import TypedDict


class EnvelopeFields(TypedDict):
    """The model and the time of a response. `created` is in unix seconds."""

    created: int
    model: str
    system_fingerprint: str


@dataclass(frozen=True, slots=True)
class Envelope:
    """Identity of one response. `created` is in unix seconds."""

    id: str
    created: int
    model: str
    system_fingerprint: str

    def with_model(self, model: str) -> "Envelope":
        """Replace the model by the resolved name of the one that answers, unless that is empty."""
        return replace(self, model=model) if model else self

    def fields(self) -> EnvelopeFields:
        """The leading fields of an object, without its id and its name."""
        return {
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.system_fingerprint,
        }
