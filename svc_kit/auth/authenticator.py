"""Authenticates calls: API keys, the service token, callers without a key.

A credential is a bearer token. The service token proves one of Corral's services, whose metadata
then names the caller.
"""

import hmac
import logging
import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from svc_kit.auth.keys import KeyChain, KeyVerifier, SettingsKeys, has_key_form
from svc_kit.auth.principal import Principal, Priority
from svc_kit.auth.scopes import GRANTABLE, Scope
from svc_kit.errors import ApiKeyInvalid, ApiKeyMissing, InvalidField
from svc_kit.lifecycle import StartupError
from svc_kit.network import parse_address
from svc_kit.settings.groups import KeySettings, read_secret

_log = logging.getLogger(__name__)
PROJECT_KEY: Final = "x-corral-project"
SCOPES_KEY: Final = "x-corral-scopes"
PRIORITY_KEY: Final = "x-corral-priority"


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
    """Metadata that names the caller of a service; accepted only with the service token."""
    return (
        (PROJECT_KEY, principal.project),
        (SCOPES_KEY, ",".join(sorted(principal.scopes))),
        (PRIORITY_KEY, principal.priority.name.lower()),
    )


def _service_principal(metadata: Mapping[str, str]) -> Principal:
    if PROJECT_KEY not in metadata:
        # The service calls for itself.
        return Principal(
            scopes=GRANTABLE | {Scope.SERVICE},
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
    listen: str,
    *,
    has_keys: bool,
    allow_keyless: bool,
    require_keys: bool = False,
    has_service_token: bool = False,
) -> frozenset[str] | None:
    """The scopes of callers without a key on this address; None if a key is required.

    With no keys in the settings, a loopback address grants every scope. `require_keys` ends that;
    keys of the control service count as keys then. `allow_keyless` grants inference, but not admin,
    on any address. Keys stored by the control service do not change the result by themselves,
    because it must not depend on whether control is reachable.

    Raises StartupError for an address other than loopback with neither a credential nor one of the
    flags, and for flags that contradict one another.
    """
    address = parse_address(listen)
    if allow_keyless and require_keys:
        raise StartupError("allow_keyless and require_keys contradict one another: set one of them")
    if not has_keys and not require_keys and address.is_loopback:
        return frozenset(GRANTABLE)
    if allow_keyless:
        return frozenset({Scope.INFERENCE})
    if not (has_keys or require_keys or has_service_token):
        raise StartupError(
            f"Others can reach {address}, and no API key is configured. Set require_keys and make "
            "one with `corral keys create`, or listen on 127.0.0.1, or set allow_keyless."
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
        takes_any_key: bool = False,
    ) -> None:
        """`keyless` are the scopes of callers without a key, from `keyless_scopes`.

        With `takes_any_key` they may show something else than a key of ours in its place: OpenAI's
        SDKs cannot be used without a key.
        """
        self._verifier = verifier
        self._service_token = service_token
        self._takes_any_key = takes_any_key or verifier is None
        self._keyless = None
        if keyless is not None:
            self._keyless = Principal(
                scopes=frozenset(keyless), priority=Priority.INTERACTIVE, key_id="keyless"
            )

    @property
    def serves_keyless(self) -> bool:
        """Whether callers without a key are served."""
        return self._keyless is not None

    async def identify(
        self, authorization: str | None, metadata: Mapping[str, str] | None = None
    ) -> Principal:
        """Resolve an `authorization` value; `metadata` is believed beside the service token only.

        Who says for whom it calls is a service of ours: with another token than ours it is refused,
        lest all its callers' data come together in the project of those without a key. Raises
        ApiKeyMissing, and what the verifier raises.
        """
        if not authorization:
            if self._keyless is None:
                raise ApiKeyMissing()
            return self._keyless
        scheme, _, credential = authorization.partition(" ")
        credential = credential.strip()
        if self._service_token is not None and self._service_token.matches(credential):
            return _service_principal(metadata or {})
        says_for_whom = PROJECT_KEY in (metadata or {})
        if self._keyless is not None and not says_for_whom and self._counts_as_none(credential):
            return self._keyless
        if self._verifier is None or scheme.lower() != "bearer":
            raise ApiKeyInvalid()
        return await self._verifier.verify(credential)

    def _counts_as_none(self, credential: str) -> bool:
        """A credential in the form of a key is verified, never ignored."""
        return self._takes_any_key and not (self._verifier and has_key_form(credential))


def build_authenticator(
    *,
    listen: str,
    keys: Sequence[KeySettings] = (),
    allow_keyless: bool = False,
    require_keys: bool = False,
    service_token_file: Path | None = None,
    stored_keys: KeyVerifier | None = None,
) -> Authenticator:
    """The authenticator of a service's settings. `stored_keys` verifies those that the control
    service keeps; None: it cannot be asked. Raises StartupError as its parts do."""
    token = None if service_token_file is None else ServiceToken.read(service_token_file)
    keyless = keyless_scopes(
        listen,
        has_keys=bool(keys),
        allow_keyless=allow_keyless,
        require_keys=require_keys,
        has_service_token=token is not None,
    )
    verifiers: list[KeyVerifier] = [SettingsKeys(keys)] if keys else []
    if stored_keys is not None:
        verifiers.append(stored_keys)
    if require_keys and not verifiers:
        raise StartupError(
            "require_keys leaves nobody who may call: there is no key in the settings, and keys "
            "of the control service need service_token_file and control_target."
        )
    _log.info(
        "callers without a key have the scopes: %s", ", ".join(sorted(keyless or ())) or "none"
    )
    return Authenticator(
        verifier=KeyChain(verifiers) if verifiers else None,
        service_token=token,
        keyless=keyless,
        takes_any_key=not keys,
    )
