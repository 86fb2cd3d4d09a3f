"""The wanted adapters, in memory and in a file that is loaded while the control service is away."""

import json
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class DesiredAdapter:
    """An adapter that this frontend should have."""

    id: str
    project: str
    name: str
    model: str
    """The base model's name; empty: the first."""
    digest: str
    file_bytes: int
    default_scale: float
    standing_scale: float
    attempt: int
    """Increases with each requested retry."""

    @property
    def key(self) -> tuple[str, str]:
        """What requests find it by."""
        return self.project, self.name

    @property
    def place(self) -> tuple[str, str, str]:
        """Where it is loaded: under its name, for its model."""
        return self.project, self.name, self.model

    @property
    def content(self) -> tuple[str, str, str, str, int]:
        """What a load depends on; another one is another load."""
        return *self.place, self.digest, self.attempt


@dataclass(frozen=True, slots=True)
class DesiredState:
    """Everything that this frontend should have, by id; `revision` is control's name for it."""

    revision: str = ""
    adapters: Mapping[str, DesiredAdapter] = field(default_factory=dict)


def save_state(path: Path, state: DesiredState) -> None:
    """Write a state to a file, atomically. Raises `OSError`."""
    entries = [asdict(wanted) for wanted in state.adapters.values()]
    draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    draft.write_text(json.dumps({"revision": state.revision, "adapters": entries}))
    draft.replace(path)


def load_state(path: Path) -> DesiredState:
    """The state in a file; an empty one where there is none, or one of another release."""
    try:
        saved = json.loads(path.read_text())
        adapters = [DesiredAdapter(**entry) for entry in saved["adapters"]]
        return DesiredState(saved["revision"], {wanted.id: wanted for wanted in adapters})
    except (OSError, ValueError, TypeError, LookupError):
        return DesiredState()


def frontend_id(path: Path) -> str:
    """The name that this installation of a frontend has made for itself. Raises `OSError`."""
    if not path.exists():
        path.write_text(f"frontend_{secrets.token_hex(12)}")
    return path.read_text().strip()
