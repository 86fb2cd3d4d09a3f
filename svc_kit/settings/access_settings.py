"""The settings of who may call a service."""

from collections.abc import Iterator

from svc_kit.network import parse_address
from svc_kit.settings.checks import Problem, find_access_problem
from svc_kit.settings.groups import IssuerSettings, KeySettings, ListenAddress, ServiceSettings


class AccessSettings(ServiceSettings):
    """Settings of a service whose callers have keys or access tokens."""

    listen: ListenAddress
    """Address of the listener."""
    keys: tuple[KeySettings, ...] = ()
    """Accepted API keys, beside those of `corral keys create`. Without keys here, callers on a
    loopback address need none."""
    issuers: tuple[IssuerSettings, ...] = ()
    """OpenID Connect issuers whose access tokens are accepted like keys."""
    allow_keyless: bool = False
    """Serve without keys on an address that other machines can reach."""
    require_keys: bool = False
    """Require an API key, also on loopback. Keys of `corral keys create` are accepted."""

    def find_access_problems(
        self, *, has_service_token: bool, verifies_stored_keys: bool = True
    ) -> Iterator[Problem]:
        """Yield why callers with and without keys cannot be served, as `find_access_problem`."""
        access = find_access_problem(
            parse_address(self.listen),
            has_keys=bool(self.keys or self.issuers),
            allow_keyless=self.allow_keyless,
            require_keys=self.require_keys,
            has_service_token=has_service_token,
            verifies_stored_keys=verifies_stored_keys,
        )
        if access is not None:
            yield self.problem(*access)
