"""API keys of launched programs: one for each program, project and gateway, created with the
caller's credential and stored in files that only the user can read."""

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Final

import click
from corral.control.v1 import key_service_pb2 as pb

from corral_cli.access import Access, is_credential
from corral_cli.connection import command_name
from corral_cli.keys import budget_limits
from corral_cli.launch.gateway_models import KeyRefused
from corral_cli.launch.programs import Program, ServedModel
from corral_cli.output import echo_line
from svc_kit.errors.access import ScopeMissing
from svc_kit.local_files import atomic_file
from svc_kit.settings.groups import read_secret

PLACEHOLDER: Final = "none"
"""Programs need a key; a server that requires none accepts any text."""
Models = list[ServedModel]


@dataclass(frozen=True)
class StoredKey:
    gateway: str
    project: str
    key_id: str
    secret: str = field(repr=False)


@dataclass(frozen=True)
class Budget:
    """What a new key may cost in each period."""

    amount: Decimal
    period: str


@dataclass(frozen=True)
class ProgramKeys:
    """The keys of a program at a gateway. `list_models` returns the models that a key may use;
    `project` is None if none was named."""

    program: Program
    gateway: str
    project: str | None
    folder: Path
    access: Access
    list_models: Callable[[str], Models]

    def find(self, budget: Budget | None) -> tuple[str, Models] | None:
        """A key that the gateway accepts, and its models: the stored one, or the placeholder where
        no key is needed. None if a key has to be created. Raises click.ClickException."""
        stored = self._read()
        if stored is None and (self.project is not None or budget is not None):
            return None
        key = PLACEHOLDER if stored is None else stored.secret
        try:
            models = self.list_models(key)
        except KeyRefused:
            return None
        if stored is not None and budget is not None:
            raise click.UsageError(
                f"--budget is that of a new key, and {self.program.title} has {stored.key_id}:"
                f" revoke it first ({command_name()} keys revoke {stored.key_id})"
            )
        return key, models

    def create(self, budget: Budget | None) -> tuple[str, Models]:
        """Create a key and store it. A credential that may not create keys is used itself, unless a
        project or a budget is asked for. Raises click.ClickException."""
        request = pb.CreateKeyRequest(
            project_id=self.project or "default",
            name=f"launch {self.program.name}",
            scopes=[f"KEY_SCOPE_{self.program.scope.upper()}"],
            limits=budget_limits(budget.period, enforced=budget.amount) if budget else [],
        )
        try:
            created = self.access("control").call(request, pb.CreateKeyResponse)
        except click.ClickException as error:
            credential = self.access.credential
            may_not = isinstance(error.__cause__, ScopeMissing)
            if credential is None or not may_not or self.project is not None or budget is not None:
                raise
            text = f"corral: {self.program.title} uses the key given, which may not create keys"
            echo_line(text, err=True)
            return credential, self.list_models(credential)
        key = StoredKey(self.gateway, created.key.project, created.key.id, created.secret)
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with atomic_file(self._path) as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(json.dumps(asdict(key), indent=2).encode())
        echo_line(
            f"corral: {key.key_id} is created for {self.program.title} (project {key.project}); to"
            f" revoke it: {command_name()} keys revoke {key.key_id}",
            err=True,
        )
        return key.secret, self.list_models(key.secret)

    @property
    def _path(self) -> Path:
        place = f"{self.gateway} {self.project or 'default'}"
        digest = hashlib.sha256(place.encode()).hexdigest()[:16]
        return self.folder / f"{self.program.name}-{digest}.json"

    def _read(self) -> StoredKey | None:
        if not self._path.exists():
            return None
        try:
            key = StoredKey(**json.loads(read_secret(self._path)))
        except (ValueError, TypeError):
            key = None
        if key is None or not is_credential(key.secret):
            raise click.ClickException(f"{self._path} is damaged; delete it")
        return key
