"""Restrictions of principals: addresses, models, and how services forward them."""

import pytest
from pydantic import ValidationError

from svc_kit.auth.authenticator import Authenticator, ServiceToken, principal_metadata
from svc_kit.auth.principal import Principal, Restrictions, peer_host
from svc_kit.errors import AddressNotAllowed, ModelNotAllowed
from svc_kit.settings.groups import KeySettings


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("ipv4:192.0.2.1:5000", "192.0.2.1"),
        ("ipv6:[2001:db8::1]:5000", "2001:db8::1"),
        ("ipv6:%5B2001:db8::1%5D:5000", "2001:db8::1"),
        ("unix:/run/corral.sock", None),
        ("", None),
    ],
)
def test_the_address_of_a_grpc_peer(peer: str, host: str | None) -> None:
    """As gRPC writes it, with brackets escaped or not."""
    assert peer_host(peer) == host


@pytest.mark.parametrize(
    ("host", "is_allowed"),
    [
        ("10.1.2.3", True),
        ("::ffff:10.1.2.3", True),
        ("11.0.0.1", False),
        ("2001:db8::5", True),
        ("2001:db9::5", False),
        ("fe80::1%eth0", False),
        ("testclient", False),
        (None, False),
    ],
)
def test_an_address_is_in_one_of_the_networks(host: str | None, is_allowed: bool) -> None:
    """Without a network, every address is allowed."""
    limits = Restrictions.of([], ["10.0.0.0/8", "2001:db8::/32"])
    Principal(scopes=frozenset(), key_id="k").check_address(host)
    limited = Principal(scopes=frozenset(), key_id="k", restrictions=limits)
    if is_allowed:
        limited.check_address(host)
        return
    with pytest.raises(AddressNotAllowed):
        limited.check_address(host)


async def test_services_forward_the_models_of_their_caller() -> None:
    """The networks were checked where the caller connected."""
    limits = Restrictions.of(["a,b", "org/größe:1%2C"], ["10.0.0.0/8"])
    caller = Principal(scopes=frozenset({"generate"}), key_id="k", restrictions=limits)
    metadata = dict(principal_metadata(caller))
    authenticator = Authenticator(service_token=ServiceToken("t"))
    received = await authenticator.identify("Bearer t", metadata)

    assert all(value.isascii() for value in metadata.values())
    assert received.restrictions == Restrictions(models=limits.models)
    received.check_model("a,b")
    for model in ("a", "", "c"):
        with pytest.raises(ModelNotAllowed):
            received.check_model(model)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"models": ["m"]}, 'scope "inference"'),
        ({"networks": ["10.0.0.1/8"]}, "host bits"),
        ({"scopes": ["service"]}, "admin_read"),
    ],
)
def test_keys_in_the_settings_are_validated(values: dict[str, object], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        KeySettings.model_validate({"name": "k", "sha256": "0" * 64, **values})
