"""The id, time, model and fingerprint that all objects of one answer share."""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Envelope:
    """The identity of one answer. `created` is in unix seconds."""

    id: str
    created: int
    model: str
    system_fingerprint: str

    def answered_by(self, model: str) -> "Envelope":
        """The same answer under the name of the model that gives it, where it is known."""
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
