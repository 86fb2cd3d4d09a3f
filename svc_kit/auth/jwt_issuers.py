"""Accepts access tokens (JWTs) of OpenID Connect issuers as credentials.

Issuers and algorithms are those of the settings; what a token says about its issuer only selects
one of them. Groups of the token select the project, its scopes are translated.
"""

import asyncio
import logging
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import jwt
import orjson
from jwt import PyJWK, PyJWKSet

from svc_kit.auth.principal import Principal, Priority
from svc_kit.errors import (
    AccessTokenInvalid,
    AccessTokenWithoutProject,
    ApiKeyInvalid,
    UpstreamUnavailable,
)
from svc_kit.settings.groups import IssuerSettings

_log = logging.getLogger(__name__)
CACHE_S: Final = 300.0
"""Age of an issuer's keys at which they are fetched again, while the old ones stay in use."""
MAX_STALE_S: Final = 24 * 3600.0
"""Age at which keys are no longer used: the issuer was away since."""
UNKNOWN_KEY_INTERVAL_S: Final = 30.0
"""Tokens with an unknown key cause at most one fetch in this time."""
_TIMEOUT_S: Final = 5.0
_DOCUMENT_BYTES: Final = 256 * 1024
_MALFORMED: Final = (jwt.PyJWTError, ArithmeticError, RecursionError, TypeError, ValueError)
"""What PyJWT raises for tokens; JSON can have a list where it expects a text, or 1e999."""
_MAX_SUBJECT: Final = 255

ProjectCheck = Callable[[str], Awaitable[None]]
"""Raises ProjectArchived for an archived project, UpstreamUnavailable if its state is unknown."""
Fetch = Callable[[], Awaitable[Sequence[PyJWK]]]
"""Fetches the keys of an issuer. Raises OSError or ValueError."""


class IssuerKeys:
    """The public keys of one issuer, cached."""

    def __init__(
        self, name: str, fetch: Fetch, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`clock` is in seconds."""
        self._name = name
        self._fetch = fetch
        self._clock = clock
        self._keys: Mapping[str | None, PyJWK] = {}
        self._fetched_at = self._tried_at = -MAX_STALE_S
        self._fetching: asyncio.Task[None] | None = None

    async def find(self, key_id: str | None) -> PyJWK:
        """The key with an id; without an id, the only key.

        Raises AccessTokenInvalid if there is none, and UpstreamUnavailable if the issuer was not
        reachable for so long that its keys are unknown.
        """
        now = self._clock()
        is_stale, is_expired = (now - self._fetched_at >= s for s in (CACHE_S, MAX_STALE_S))
        if is_expired:
            await self._refresh(now)
            if self._clock() - self._fetched_at >= MAX_STALE_S:
                raise UpstreamUnavailable(service=f"the issuer {self._name}")
        elif now - self._tried_at >= UNKNOWN_KEY_INTERVAL_S:
            if self._select(key_id) is None:
                await self._refresh(now)
            elif is_stale:
                self._start_fetch(now)
        key = self._select(key_id)
        if key is None:
            raise AccessTokenInvalid(problem="its key is none of the issuer's")
        return key

    def _select(self, key_id: str | None) -> PyJWK | None:
        if key_id is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(key_id)

    async def _refresh(self, now: float) -> None:
        """Fetch the keys, or wait for the fetch in progress."""
        # A caller that disconnects must not cancel the fetch for the others.
        await asyncio.shield(self._start_fetch(now))

    def _start_fetch(self, now: float) -> asyncio.Task[None]:
        if self._fetching is None or self._fetching.done():
            self._tried_at = now
            self._fetching = asyncio.create_task(self._fetch_keys())
        return self._fetching

    async def _fetch_keys(self) -> None:
        try:
            keys = await self._fetch()
        except (OSError, ValueError) as error:
            _log.warning("the keys of the issuer %s cannot be fetched: %s", self._name, error)
            return
        self._keys = {key.key_id: key for key in keys if key.public_key_use in ("sig", None)}
        self._fetched_at = self._clock()


class _Issuer:
    def __init__(self, settings: IssuerSettings, keys: IssuerKeys) -> None:
        self._settings = settings
        self._keys = keys

    async def verify(self, token: str, header: Mapping[str, Any]) -> Principal:
        """Raises AccessTokenInvalid, AccessTokenWithoutProject or UpstreamUnavailable."""
        settings, algorithm = self._settings, header.get("alg")
        # Before its key is looked for.
        if not isinstance(algorithm, str) or algorithm not in settings.algorithms:
            raise AccessTokenInvalid(problem="its algorithm is not accepted")
        key = await self._keys.find(header.get("kid"))
        try:
            claims = jwt.decode(
                token,
                key,
                algorithms=sorted(settings.algorithms),
                issuer=settings.issuer,
                audience=settings.audience,
                leeway=settings.leeway_s,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
        except jwt.InvalidTokenError as error:
            raise AccessTokenInvalid(problem=str(error)) from None
        except _MALFORMED:
            raise AccessTokenInvalid(problem="a claim is malformed") from None
        return self._principal(claims)

    def _principal(self, claims: Mapping[str, Any]) -> Principal:
        settings, subject = self._settings, claims["sub"]
        if not 0 < len(subject) <= _MAX_SUBJECT or not subject.isprintable():
            raise AccessTokenInvalid(problem=f"its sub is not 1 to {_MAX_SUBJECT} characters")
        groups = _texts(_claim(claims, settings.groups_claim))
        mapped = (project for group, project in settings.projects.items() if group in groups)
        project = next(mapped, settings.default_project)
        if project is None:
            raise AccessTokenWithoutProject(claim=settings.groups_claim)
        granted = _texts(_claim(claims, settings.scope_claim))
        scopes = {scope for name, scope in settings.scopes.items() if name in granted}
        return Principal(
            project=project,
            scopes=frozenset(scopes | settings.default_scopes),
            priority=Priority[settings.priority.upper()],
            key_id=f"{settings.name}:{subject}",
        )


class JwtIssuers:
    """Verifies access tokens, as a KeyVerifier."""

    def __init__(
        self,
        issuers: Sequence[tuple[IssuerSettings, IssuerKeys]],
        check_project: ProjectCheck | None = None,
    ) -> None:
        """`check_project` refuses tokens of archived projects."""
        self._issuers = {each.issuer: _Issuer(each, keys) for each, keys in issuers}
        self._check_project = check_project

    @classmethod
    def from_settings(
        cls, settings: Sequence[IssuerSettings], check_project: ProjectCheck | None = None
    ) -> "JwtIssuers":
        """Accept the tokens of these issuers. Raises OSError if a file cannot be read."""
        issuers = [(each, IssuerKeys(each.name, _fetcher(each))) for each in settings]
        return cls(issuers, check_project)

    async def verify(self, key: str) -> Principal:
        """Raises ApiKeyInvalid for a text that is no JWT, AccessTokenInvalid,
        AccessTokenWithoutProject, ProjectArchived, and UpstreamUnavailable if the issuer's keys or
        the state of the project are unknown."""
        try:
            unverified = jwt.decode_complete(key, options={"verify_signature": False})
        except _MALFORMED:
            raise ApiKeyInvalid() from None
        issuer = unverified["payload"].get("iss")
        found = self._issuers.get(issuer) if isinstance(issuer, str) else None
        if found is None:
            raise AccessTokenInvalid(problem="its issuer is not accepted")
        principal = await found.verify(key, unverified["header"])
        if self._check_project is not None:
            await self._check_project(principal.project)
        return principal


def _fetcher(settings: IssuerSettings) -> Fetch:
    context = ssl.create_default_context(cafile=settings.ca_file)  # None: those of the system

    async def fetch_json(url: str) -> Mapping[str, Any]:
        # Imported here because httpx2 is slow to import and seldom needed.
        import httpx2

        from svc_kit import http_client

        try:
            response = await http_client.get(
                url, max_bytes=_DOCUMENT_BYTES, timeout_s=_TIMEOUT_S, verify=context
            )
            response.raise_for_status()  # also for redirects, which are not followed
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise ValueError(f"{url}: {error!r}") from error
        document = orjson.loads(response.content)
        if not isinstance(document, dict):
            raise ValueError(f"{url} is not a JSON object")
        return document

    async def fetch() -> Sequence[PyJWK]:
        url = settings.jwks_url
        if url is None:
            base = settings.issuer.rstrip("/")
            document = await fetch_json(f"{base}/.well-known/openid-configuration")
            if document.get("issuer") != settings.issuer:
                raise ValueError(f"{base} describes the issuer {document.get('issuer')!r:.200}")
            url = str(document.get("jwks_uri"))
            settings.check_url(url)
        return await asyncio.to_thread(_keys, await fetch_json(url))

    return fetch


def _keys(document: Mapping[str, Any]) -> Sequence[PyJWK]:
    """The keys of a set that can be used. Raises ValueError if there is none."""
    keys = document.get("keys")
    if not isinstance(keys, list):
        raise ValueError("the set of keys has no list of keys")
    texts = [each for each in keys if isinstance(each, dict) and _are_texts(each)]
    try:
        return PyJWKSet.from_dict({"keys": texts}).keys
    except (jwt.PyJWTError, AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"the set of keys cannot be used: {error!r:.200}") from error


def _are_texts(key: Mapping[str, Any]) -> bool:
    return all(isinstance(key.get(name, ""), str) for name in ("kty", "kid", "alg", "use", "crv"))


def _claim(claims: Mapping[str, Any], name: str) -> Any:
    """A claim by its name, or by the names on the path to it, joined by dots."""
    if name in claims:
        return claims[name]
    value: Any = claims
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _texts(value: Any) -> frozenset[str]:
    """The texts of a claim, which is a list or a text with spaces between them."""
    if isinstance(value, str):
        return frozenset(value.split())
    values = value if isinstance(value, list) else []
    return frozenset(each for each in values if isinstance(each, str))
