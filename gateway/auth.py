"""Authentication of HTTP requests, and credentials of the gRPC calls made for them."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection

from svc_kit.auth.authenticator import (
    Authenticator,
    ServiceToken,
    find_credential,
    principal_metadata,
)
from svc_kit.auth.principal import Principal, set_principal
from svc_kit.auth.scopes import Scope
from svc_kit.errors import ApiKeyInvalid, ScopeMissing
from svc_kit.logs import KEYLESS_ID, add_call_fields, current_request_id, project_var
from svc_kit.tracing.span import trace_metadata

MAX_LABEL_BYTES = 256

Metadata = Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Caller:
    """The authenticated caller of an HTTP request."""

    principal: Principal
    authorization: str | None = field(repr=False)
    """The Authorization header, or one made of x-api-key; None: neither was sent."""
    label: str = ""
    """The client's request id, for logs only."""


class Authentication:
    """Authenticates the callers of HTTP requests and WebSockets."""

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator

    async def identify(self, request: HTTPConnection, method: str, scope: Scope) -> Caller:
        """Authenticate a caller who must have a scope. `method` is the method in errors. A page of
        another origin does not administer a server without a key.

        Raises InvalidField for several credentials, ApiKeyMissing, the errors of the authenticator,
        or ScopeMissing.
        """
        authorization = find_credential(request.headers.items())
        principal = await self._authenticator.identify(authorization)
        if principal.key_id == KEYLESS_ID and _is_from_other_page(request.headers):
            principal = replace(principal, scopes=principal.scopes & {Scope.INFERENCE})
        set_principal(principal)
        project_var.set(principal.project)
        add_call_fields(key=principal.key_id)
        if not principal.has(scope):
            raise ScopeMissing(scope=scope, method=method)
        principal.check_address(request.client and request.client.host)
        label = request.headers.get("x-request-id", "").encode()[:MAX_LABEL_BYTES]
        return Caller(
            principal=principal,
            authorization=authorization,
            label=label.decode(errors="ignore"),
        )


class Credentials:
    """Credentials of calls to other services.

    With a service token, the gateway authenticates as itself and sends the verified principal.
    Without one, it forwards the caller's key, which the other service verifies.
    """

    def __init__(self, service_token: ServiceToken | None) -> None:
        self._service_token = service_token

    def for_service(self) -> Metadata:
        """The metadata of a call on the gateway's own behalf; anonymous without a service token."""
        common = [("x-request-id", current_request_id()), *trace_metadata()]
        if self._service_token is None:
            return common
        return [*common, ("authorization", f"Bearer {self._service_token.secret}")]

    def for_caller(self, caller: Caller) -> Metadata:
        """The metadata of a call for a caller. Raises ApiKeyInvalid for a malformed key."""
        common = self.for_service()
        if self._service_token is not None:
            return [*common, *principal_metadata(caller.principal)]
        if caller.authorization is not None:
            if not (caller.authorization.isascii() and caller.authorization.isprintable()):
                raise ApiKeyInvalid
            return [*common, ("authorization", caller.authorization)]
        return common


def _is_from_other_page(headers: Headers) -> bool:
    """Whether a browser sends a request for a page of another origin, as far as headers tell.

    Browsers send Sec-Fetch-Site (W3C, Fetch Metadata) to loopback and over TLS, and elsewhere
    Origin alone.
    """
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site not in ("same-origin", "none")
    origin = headers.get("origin")
    return origin is not None and origin.partition("://")[2] != headers.get("host")
