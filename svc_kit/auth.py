"""Who calls: API keys, the token of our own services, and the principal that a call acts for.

A credential is a bearer token. It is the service token, which proves one of our own services and
may say on whose behalf it calls; or an API key, which a verifier resolves; or nothing, where the
server allows keyless callers. Only hashes of keys are kept, and all comparisons take constant time.
"""

import contextvars
import hashlib
import hmac
import os
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import IntEnum
from pathlib import Path
from typing import Final, Protocol

from svc_kit.addresses import parse_address
from svc_kit.errors import ApiKeyExpired, ApiKeyInvalid, ApiKeyMissing, InvalidField
from svc_kit.scopes import GRANTABLE as GRANTABLE
from svc_kit.scopes import METHOD_SCOPES as METHOD_SCOPES
from svc_kit.scopes import Scope as Scope
from svc_kit.scopes import check_scopes_cover as check_scopes_cover
from svc_kit.settings import KeySettings, read_secret
from svc_kit.startup import StartupError

PROJECT_KEY: Final = "x-corral-project"
SCOPES_KEY: Final = "x-corral-scopes"
PRIORITY_KEY: Final = "x-corral-priority"
DEFAULT_PROJECT: Final = "default"


class Priority(IntEnum):
    """How urgent a caller's work may be; the values are those of `corral.inference.v1.Priority`."""

    BATCH = 1
    NORMAL = 2
    INTERACTIVE = 3


@dataclass(frozen=True, kw_only=True)
class Principal:
    """On whose behalf a call is made, and what it may do."""

    project: str = DEFAULT_PROJECT
    scopes: frozenset[str]
    priority: Priority = Priority.NORMAL
    """The highest priority the caller may ask for, and what it gets without asking."""
    key_id: str
    """What the log calls the credential; never the credential."""
    is_service: bool = False
    """Whether the credential is that of one of our own services."""

    def has(self, scope: Scope) -> bool:
        """Whether a method of this scope may be called."""
        return scope in (Scope.PUBLIC, Scope.KNOWN) or scope in self.scopes


_principal: contextvars.ContextVar[Principal | None] = contextvars.ContextVar(
    "principal", default=None
)


def current_principal() -> Principal:
    """Who the running call acts for. Raises ApiKeyMissing outside a call with a credential."""
    principal = _principal.get()
    if principal is None:
        raise ApiKeyMissing()
    return principal


def set_principal(principal: Principal | None) -> None:
    """Say who the running call, that is this asyncio task, acts for."""
    _principal.set(principal)


# ---- API keys


class KeyVerifier(Protocol):
    """Resolves an API key."""

    async def verify(self, key: str) -> Principal:
        """Raises ApiKeyInvalid or ApiKeyExpired."""
        ...


def create_key() -> str:
    """A new API key: 256 random bits."""
    return f"sk-corral-{secrets.token_urlsafe(32)}"


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


# ---- our own services


@dataclass(frozen=True)
class ServiceToken:
    """The secret that the services of one installation share."""

    secret: str = field(repr=False)

    @classmethod
    def create(cls, path: Path) -> "ServiceToken":
        """Write a new token to a file that only its owner can read, in place of an older one."""
        token = cls(f"svc-corral-{secrets.token_urlsafe(32)}")
        fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
        fresh.unlink(missing_ok=True)
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(token.secret + "\n")
        fresh.replace(path)
        return token

    @classmethod
    def read(cls, path: Path) -> "ServiceToken":
        """Raises StartupError where the file is missing, empty or readable by others."""
        return cls(read_secret(path))

    def matches(self, presented: str) -> bool:
        """Compare in constant time."""
        return hmac.compare_digest(self.secret.encode(), presented.encode("utf-8", "replace"))


def on_behalf_of(principal: Principal) -> tuple[tuple[str, str], ...]:
    """The metadata by which a service says whom it calls for; believed beside its token only."""
    return (
        (PROJECT_KEY, principal.project),
        (SCOPES_KEY, ",".join(sorted(principal.scopes))),
        (PRIORITY_KEY, principal.priority.name.lower()),
    )


def _service_principal(metadata: Mapping[str, str]) -> Principal:
    if PROJECT_KEY not in metadata:
        # The service calls for itself.
        return Principal(
            scopes=frozenset(GRANTABLE),
            priority=Priority.INTERACTIVE,
            key_id="service",
            is_service=True,
        )
    named = {name for name in metadata.get(SCOPES_KEY, "").split(",") if name}
    return Principal(
        project=metadata[PROJECT_KEY],
        scopes=frozenset(named & GRANTABLE),
        priority=_priority(metadata.get(PRIORITY_KEY, "normal")),
        key_id="service",
        is_service=True,
    )


def _priority(name: str) -> Priority:
    try:
        return Priority[name.upper()]
    except KeyError:
        raise InvalidField(field=PRIORITY_KEY, problem=f"{name} is no priority") from None


# ---- all of it together


def keyless_scopes(
    listen: str, *, has_keys: bool, allow_keyless: bool, has_service_token: bool = False
) -> frozenset[str] | None:
    """What callers without a key may do on this address; None: nothing, a key is needed.

    Without keys a loopback address serves everything to everybody on the machine. `allow_keyless`
    opens inference, never admin, to whoever reaches the address. Raises StartupError for an address
    that others reach, with neither a credential configured nor that flag.
    """
    address = parse_address(listen)
    if not has_keys and address.is_loopback:
        return frozenset(GRANTABLE)
    if allow_keyless:
        return frozenset({Scope.INFERENCE})
    if not has_keys and not has_service_token:
        raise StartupError(
            f"Others can reach {address}, and no API key is configured. Make one with "
            "`corral keys create`, or listen on 127.0.0.1, or set allow_keyless."
        )
    return None


class Authenticator:
    """Turns the credential of a call into a principal."""

    def __init__(
        self,
        *,
        verifier: KeyVerifier | None = None,
        service_token: ServiceToken | None = None,
        keyless: Iterable[str] | None = None,
    ) -> None:
        """`keyless` are the scopes of callers without a key, from `keyless_scopes`."""
        self._verifier = verifier
        self._service_token = service_token
        self._keyless = None
        if keyless is not None:
            self._keyless = Principal(
                scopes=frozenset(keyless), priority=Priority.INTERACTIVE, key_id="keyless"
            )

    async def identify(
        self, authorization: str | None, metadata: Mapping[str, str] | None = None
    ) -> Principal:
        """Resolve an `authorization` value; `metadata` is believed beside the service token only.

        Raises ApiKeyMissing, ApiKeyInvalid or ApiKeyExpired.
        """
        if not authorization:
            if self._keyless is None:
                raise ApiKeyMissing()
            return self._keyless
        scheme, _, credential = authorization.partition(" ")
        credential = credential.strip()
        if self._service_token is not None and self._service_token.matches(credential):
            return _service_principal(metadata or {})
        if self._verifier is None and self._keyless is not None:
            # OpenAI's SDKs cannot be used without a key; a server without keys takes any.
            return self._keyless
        if self._verifier is None or scheme.lower() != "bearer":
            raise ApiKeyInvalid()
        return await self._verifier.verify(credential)


def build_authenticator(
    *,
    listen: str,
    keys: Sequence[KeySettings] = (),
    allow_keyless: bool = False,
    service_token_file: Path | None = None,
) -> Authenticator:
    """The authenticator of a service's settings. Raises StartupError as its parts do."""
    token = None if service_token_file is None else ServiceToken.read(service_token_file)
    keyless = keyless_scopes(
        listen,
        has_keys=bool(keys),
        allow_keyless=allow_keyless,
        has_service_token=token is not None,
    )
    verifier = SettingsKeys(keys) if keys else None
    return Authenticator(verifier=verifier, service_token=token, keyless=keyless)
