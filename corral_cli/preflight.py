"""What `corral up` looks at and puts in place before anything starts."""

import os
import secrets
from collections.abc import Sequence
from pathlib import Path

from inference_svc.models.sources import RemoteFile, parse_reference, resolve_models
from svc_kit.settings import StartupError


def check_models(references: Sequence[str]) -> None:
    """Read the header of every model that is on this machine. Raises StartupError.

    What Hugging Face holds is fetched by the service, which knows where to keep it; here only the
    reference is read.
    """
    here = [text for text in references if parse_reference(text).remote is None]
    if here:
        resolve_models(here, download=_not_here)


def _not_here(remote: RemoteFile) -> Path:
    raise StartupError(f"model {remote}: it is not on this machine")


def ensure_token(path: Path) -> None:
    """Make the file with the token by which our services know each other, readable by us alone.

    An existing one is kept: another service may already hold it. Raises StartupError.
    """
    if path.is_file():
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Made under its final mode, so that there is no moment at which others could read it.
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise StartupError(f"cannot write {path}: {error.strerror}") from error
    with os.fdopen(handle, "w") as file:
        file.write(secrets.token_urlsafe(32) + "\n")
