"""Authenticates calls with an API key, with the service token, or without a key.

Credentials are bearer tokens. A call with the service token comes from one of Corral's services;
its metadata names the caller on whose behalf it is made.
"""

import hmac
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, unquote

from svc_kit.auth.keys import KeyChain, KeyVerifier, SettingsKeys, has_key_form
from svc_kit.auth.principal import UNRESTRICTED, Principal, Priority, Restrictions
from svc_kit.auth.scopes import ALL_SCOPES, GRANTABLE, Scope
from svc_kit.errors import ApiKeyInvalid, ApiKeyMissing, InvalidField
from svc_kit.lifecycle import StartupError
from svc_kit.logs import KEYLESS_ID
from svc_kit.network import parse_address
from svc_kit.settings.checks import find_access_problem
from svc_kit.settings.groups import IssuerSettings, KeySettings, read_secret

if TYPE_CHECKING:
    from svc_kit.auth.jwt_issuers import ProjectCheck

_log = logging.getLogger(__name__)
PROJECT_KEY: Final = "x-corral-project"
SCOPES_KEY: Final = "x-corral-scopes"
PRIORITY_KEY: Final = "x-corral-priority"
API_KEY_KEY: Final = "x-corral-key"
"""The id of the caller's API key, percent-encoded."""
MODELS_KEY: Final = "x-corral-models"
"""The names of the models that the caller may use, percent-encoded; absent: all."""
SERVICE_KEY_ID: Final = "service"


_CREDENTIAL_HEADERS: Final = ("authorization", "x-api-key", "api-key")
"""Where clients of the APIs that are served send a credential."""


def find_credential(headers: Iterable[tuple[str, str]]) -> str | None:
    """The Authorization header of a request or the metadata of a call, whose names are in lower
    case, or one made of x-api-key or api-key, which clients of Anthropic's API and of Azure send.
    None: there is none.

    Raises InvalidField if there are several credentials, unless headers of different names have the
    same: a proxy and Corral could choose others.
    """
    found = [
        (name, value if name == "authorization" else f"Bearer {value}")
        for name, value in headers
        if name in _CREDENTIAL_HEADERS
    ]
    names = [name for name, _ in found]
    if len({value for _, value in found}) > 1 or len(names) > len({*names}):
        problem = f"the request has {len(found)} credentials ({', '.join(names)}); send one"
        raise InvalidField(field=names[-1], problem=problem)
    return found[0][1] if found else None


@dataclass(frozen=True)
class ServiceToken:
    """The secret shared by the services of one installation."""

    secret: str = field(repr=False)

    @classmethod
    def read(cls, path: Path) -> "ServiceToken":
        """Raises StartupError if the file is missing, empty or readable by others."""
        return cls(read_secret(path))

    def matches(self, presented: str) -> bool:
        """Compare in constant time."""
        return hmac.compare_digest(self.secret.encode(), presented.encode("utf-8", "replace"))


def principal_metadata(principal: Principal) -> tuple[tuple[str, str], ...]:
    """Metadata that names the caller of a service; honoured only with the service token."""
    metadata = (
        (PROJECT_KEY, principal.project),
        (SCOPES_KEY, ",".join(sorted(principal.scopes))),
        (PRIORITY_KEY, principal.priority.name.lower()),
        (API_KEY_KEY, quote(principal.key_id)),
    )
    if not principal.restrictions.models:
        return metadata
    models = ",".join(quote(model, safe="") for model in sorted(principal.restrictions.models))
    return (*metadata, (MODELS_KEY, models))


def _service_principal(metadata: Mapping[str, str]) -> Principal:
    if PROJECT_KEY not in metadata:
        # The service calls on its own behalf.
        return Principal(
            scopes=ALL_SCOPES | {Scope.SERVICE},
            priority=Priority.INTERACTIVE,
            key_id=SERVICE_KEY_ID,
            is_service=True,
        )
    named = {name for name in metadata.get(SCOPES_KEY, "").split(",") if name}
    return Principal(
        project=metadata[PROJECT_KEY],
        scopes=frozenset(named & GRANTABLE),
        priority=_priority(metadata.get(PRIORITY_KEY, "normal")),
        key_id=unquote(metadata.get(API_KEY_KEY, "")) or SERVICE_KEY_ID,
        is_service=True,
        restrictions=_named_restrictions(metadata),
    )


def _named_restrictions(metadata: Mapping[str, str]) -> Restrictions:
    """The restrictions of a caller whose address the calling service has checked."""
    if MODELS_KEY not in metadata:
        return UNRESTRICTED
    return Restrictions(models=frozenset(map(unquote, metadata[MODELS_KEY].split(","))))


def _priority(name: str) -> Priority:
    try:
        return Priority[name.upper()]
    except KeyError:
        raise InvalidField(field=PRIORITY_KEY, problem=f"'{name}' is not a priority") from None


def keyless_scopes(
    listen: str,
    *,
    has_keys: bool,
    allow_keyless: bool,
    require_keys: bool = False,
    has_service_token: bool = False,
    verifies_stored_keys: bool = True,
) -> frozenset[str] | None:
    """The scopes of callers without a key on this address; None if a key is required.

    A loopback address grants every scope unless the settings have keys or `require_keys`.
    `allow_keyless` grants inference, but not admin, on any address. Keys stored by the control
    service have no influence, because the result must not depend on whether control is reachable.

    Raises StartupError as `find_access_problem` says.
    """
    address = parse_address(listen)
    if problem := find_access_problem(
        address,
        has_keys=has_keys,
        allow_keyless=allow_keyless,
        require_keys=require_keys,
        has_service_token=has_service_token,
        verifies_stored_keys=verifies_stored_keys,
    ):
        raise StartupError(problem[1])
    if not has_keys and not require_keys and address.is_loopback:
        return frozenset(ALL_SCOPES)
    if allow_keyless:
        return frozenset({Scope.INFERENCE})
    return None


class Authenticator:
    """Resolves the credential of a call to a principal."""

    def __init__(
        self,
        *,
        verifier: KeyVerifier | None = None,
        service_token: ServiceToken | None = None,
        keyless: Iterable[str] | None = None,
        accept_any_key: bool = False,
    ) -> None:
        """`keyless`: the scopes of callers without a key, from `keyless_scopes`.

        `accept_any_key`: such callers may send a placeholder, because OpenAI's SDKs always send a
        key. A credential in the form of a Corral key is always verified.
        """
        self._verifier = verifier
        self._service_token = service_token
        self._takes_any_key = accept_any_key or verifier is None
        self._keyless = None
        if keyless is not None:
            self._keyless = Principal(
                scopes=frozenset(keyless), priority=Priority.INTERACTIVE, key_id=KEYLESS_ID
            )

    @property
    def serves_keyless(self) -> bool:
        """Whether calls without a key are accepted."""
        return self._keyless is not None

    async def identify(
        self, authorization: str | None, metadata: Mapping[str, str] | None = None
    ) -> Principal:
        """Resolve an `authorization` header; `metadata` is honoured only with the service token.

        A call that names another caller comes from a service. With a wrong service token it is
        rejected rather than treated as keyless, which would mix the data of all its callers.

        Raises ApiKeyMissing, and what the verifier raises.
        """
        if not authorization:
            if self._keyless is None:
                raise ApiKeyMissing()
            return self._keyless
        scheme, _, credential = authorization.partition(" ")
        credential = credential.strip(" \t")
        if self._service_token is not None and self._service_token.matches(credential):
            return _service_principal(metadata or {})
        names_caller = PROJECT_KEY in (metadata or {})
        if self._keyless is not None and not names_caller and self._is_placeholder(credential):
            return self._keyless
        if self._verifier is None or scheme.lower() != "bearer":
            raise ApiKeyInvalid()
        return await self._verifier.verify(credential)

    def _is_placeholder(self, credential: str) -> bool:
        return self._takes_any_key and not (self._verifier and has_key_form(credential))


def build_authenticator(
    *,
    listen: str,
    keys: Sequence[KeySettings] = (),
    allow_keyless: bool = False,
    require_keys: bool = False,
    service_token_file: Path | None = None,
    stored_keys: KeyVerifier | None = None,
    issuers: Sequence[IssuerSettings] = (),
    check_project: "ProjectCheck | None" = None,
) -> Authenticator:
    """Build the authenticator of a service from its settings.

    `stored_keys` verifies the keys of the control service; None if control is not configured.
    Access tokens of `issuers` are accepted too, and so are keys required as if there were `keys`;
    `check_project` refuses those of archived projects.
    Raises StartupError for settings that contradict each other or let nobody call.
    """
    token = None if service_token_file is None else ServiceToken.read(service_token_file)
    keyless = keyless_scopes(
        listen,
        has_keys=bool(keys or issuers),
        allow_keyless=allow_keyless,
        require_keys=require_keys,
        has_service_token=token is not None,
        verifies_stored_keys=stored_keys is not None,
    )
    verifiers: list[KeyVerifier] = [SettingsKeys(keys)] if keys else []
    if stored_keys is not None:
        verifiers.append(stored_keys)
    if issuers:
        # Imported here because cryptography is slow to import, and seldom needed.
        from svc_kit.auth.jwt_issuers import JwtIssuers

        verifiers.append(JwtIssuers.from_settings(issuers, check_project))
    _log.info(
        "callers without a key have the scopes: %s", ", ".join(sorted(keyless or ())) or "none"
    )
    return Authenticator(
        verifier=KeyChain(verifiers) if verifiers else None,
        service_token=token,
        keyless=keyless,
        accept_any_key=not (keys or issuers),
    )
