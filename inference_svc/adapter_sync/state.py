"""The desired adapters, in memory and in a file for starts without the control service."""

import json
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from svc_kit.local_files import atomic_file


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
        return self.project, self.name

    @property
    def target(self) -> tuple[str, str, str]:
        """Where it is loaded: project, name and model."""
        return self.project, self.name, self.model

    @property
    def load_key(self) -> tuple[str, str, str, str, int]:
        """Everything that requires a new load if it changes."""
        return *self.target, self.digest, self.attempt


@dataclass(frozen=True, slots=True)
class DesiredState:
    """All adapters that this frontend should have, by id. `revision` is set by the control service
    and opaque."""

    revision: str = ""
    adapters: Mapping[str, DesiredAdapter] = field(default_factory=dict)


def save_state(path: Path, state: DesiredState) -> None:
    """Write a state to a file, atomically. Raises `OSError`."""
    entries = [asdict(desired) for desired in state.adapters.values()]
    with atomic_file(path) as file:
        file.write(json.dumps({"revision": state.revision, "adapters": entries}).encode())


def load_state(path: Path) -> DesiredState:
    """Read a state from a file; empty if the file is missing or of another release."""
    try:
        saved = json.loads(path.read_text())
        adapters = [DesiredAdapter(**entry) for entry in saved["adapters"]]
        return DesiredState(saved["revision"], {desired.id: desired for desired in adapters})
    except (OSError, ValueError, TypeError, LookupError):
        return DesiredState()


def frontend_id(path: Path) -> str:
    """Return the persistent id of this frontend, created on first use. Raises `OSError`."""
    if not path.exists():
        path.write_text(f"frontend_{secrets.token_hex(12)}")
    return path.read_text().strip()
