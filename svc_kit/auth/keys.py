"""API keys: creation, hashing, and verification of the keys in settings."""

import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final, Protocol

from svc_kit.auth.principal import Principal, Priority
from svc_kit.errors import ApiKeyExpired, ApiKeyInvalid
from svc_kit.settings.groups import KeySettings

_PREFIX: Final = "sk-corral-"
_RANDOM_BYTES: Final = 32
_FORM: Final = re.compile(rf"{_PREFIX}[A-Za-z0-9_-]{{43}}")


class KeyVerifier(Protocol):
    """Resolves an API key."""

    async def verify(self, key: str) -> Principal:
        """Raises ApiKeyInvalid for an unknown key, Unauthenticated or PermissionDenied for a known
        one that may not be used, and Unavailable if the key cannot be checked now.
        """
        ...


def create_key() -> str:
    """A new API key: 256 random bits."""
    return f"{_PREFIX}{secrets.token_urlsafe(_RANDOM_BYTES)}"


def has_key_form(text: str) -> bool:
    """Whether `create_key` could have made it."""
    return _FORM.fullmatch(text) is not None


def hash_key(key: str) -> str:
    """What is kept of a key. Plain SHA-256 suffices: a key is no password, it cannot be guessed."""
    return hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()


class SettingsKeys:
    """Verifies keys against the hashes in a service's settings."""

    def __init__(
        self,
        keys: Sequence[KeySettings],
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._keys = [(key.sha256.get_secret_value(), key) for key in keys]
        self._clock = clock

    async def verify(self, key: str) -> Principal:
        """Raises ApiKeyInvalid or ApiKeyExpired."""
        presented = hash_key(key)
        # No early exit: the time taken tells nothing about which key nearly matched.
        found = [
            settings for known, settings in self._keys if hmac.compare_digest(known, presented)
        ]
        if not found:
            raise ApiKeyInvalid()
        match = found[0]
        if match.expires_at is not None and match.expires_at <= self._clock():
            raise ApiKeyExpired()
        return Principal(
            project=match.project,
            scopes=frozenset(match.scopes),
            priority=Priority[match.priority.upper()],
            key_id=match.name,
        )


class KeyChain:
    """Asks one verifier after the other; the first that knows a key decides."""

    def __init__(self, verifiers: Sequence[KeyVerifier]) -> None:
        self._verifiers = verifiers

    async def verify(self, key: str) -> Principal:
        """Raises what the verifier that knows the key raises; ApiKeyInvalid where none does."""
        for verifier in self._verifiers:
            try:
                return await verifier.verify(key)
            except ApiKeyInvalid:
                continue
        raise ApiKeyInvalid()
