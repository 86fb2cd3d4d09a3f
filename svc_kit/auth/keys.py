"""API keys: creation, hashing, and verification of the keys in settings."""

import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final, Protocol

from svc_kit.auth.principal import Principal, Priority, Restrictions
from svc_kit.errors import ApiKeyExpired, ApiKeyInvalid
from svc_kit.settings.groups import KeySettings

_PREFIX: Final = "sk-corral-"
_RANDOM_BYTES: Final = 32
_FORM: Final = re.compile(rf"{_PREFIX}[A-Za-z0-9_-]{{43}}")


class KeyVerifier(Protocol):
    """Resolves an API key."""

    async def verify(self, key: str) -> Principal:
        """Raises ApiKeyInvalid for an unknown key, another Unauthenticated or PermissionDenied for
        a known key that may not be used, and Unavailable if it cannot be verified now.
        """
        ...


def create_key() -> str:
    """A new API key with 256 random bits."""
    return f"{_PREFIX}{secrets.token_urlsafe(_RANDOM_BYTES)}"


def has_key_form(text: str) -> bool:
    """Whether a text has the format of a key."""
    return _FORM.fullmatch(text) is not None


def hash_key(key: str) -> str:
    """The SHA-256 that is stored for a key; without salt, because keys are random."""
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
        # Compares all keys, so that the time taken reveals nothing about them.
        matches = [key for digest, key in self._keys if hmac.compare_digest(digest, presented)]
        if not matches:
            raise ApiKeyInvalid()
        match = matches[0]
        if match.expires_at is not None and match.expires_at <= self._clock():
            raise ApiKeyExpired()
        return Principal(
            project=match.project,
            scopes=frozenset(match.scopes),
            priority=Priority[match.priority.upper()],
            key_id=match.name,
            restrictions=Restrictions.of(match.models, match.networks),
        )


class KeyChain:
    """Tries verifiers in order; the first one that knows the key decides."""

    def __init__(self, verifiers: Sequence[KeyVerifier]) -> None:
        self._verifiers = verifiers

    async def verify(self, key: str) -> Principal:
        """Raises the error of the verifier that knows the key, or ApiKeyInvalid."""
        for verifier in self._verifiers:
            try:
                return await verifier.verify(key)
            except ApiKeyInvalid:
                continue
        raise ApiKeyInvalid()
