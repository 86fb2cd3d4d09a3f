"""The fields that all objects and chunks of one response share."""

from dataclasses import dataclass, replace


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

    def fields(self, object_name: str) -> dict[str, object]:
        """The leading fields of an object."""
        return {
            "id": self.id,
            "object": object_name,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.system_fingerprint,
        }
