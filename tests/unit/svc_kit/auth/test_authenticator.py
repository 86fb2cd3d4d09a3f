"""Authentication by API key, by service token, and without a key."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from corral_cli.up.children import ensure_token
from svc_kit.auth.authenticator import (
    PRIORITY_KEY,
    PROJECT_KEY,
    SCOPES_KEY,
    Authenticator,
    ServiceToken,
    build_authenticator,
    keyless_scopes,
    principal_metadata,
)
from svc_kit.auth.keys import SettingsKeys, create_key, hash_key
from svc_kit.auth.principal import Principal, Priority, current_principal, set_principal
from svc_kit.auth.scopes import Scope
from svc_kit.errors import ApiKeyExpired, ApiKeyInvalid, ApiKeyMissing, DomainError, InvalidField
from svc_kit.lifecycle import StartupError
from svc_kit.settings.groups import KeySettings

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
KEY = "sk-corral-test"
TOKEN = ServiceToken("svc-corral-test")


def make_key(**values: Any) -> KeySettings:
    return KeySettings.model_validate({"name": "ci", "sha256": hash_key(KEY), **values})


def keys(*settings: KeySettings) -> SettingsKeys:
    """Return a verifier whose clock is NOW."""
    return SettingsKeys(settings, clock=lambda: NOW)


def bearer(credential: str) -> str:
    """Return an authorization header."""
    return f"Bearer {credential}"


# ---- keys


async def test_a_valid_key_has_its_project_scopes_and_priority() -> None:
    settings = make_key(project="blue", scopes=["inference", "admin"], priority="batch")

    assert await keys(settings).verify(KEY) == Principal(
        project="blue",
        scopes=frozenset({"inference", "admin"}),
        priority=Priority.BATCH,
        key_id="ci",
        is_service=False,
    )


async def test_an_unknown_key_is_invalid() -> None:
    """Also one that almost matches."""
    for presented in (KEY + "x", KEY[:-1], "", "ключ\ud800"):
        with pytest.raises(ApiKeyInvalid):
            await keys(make_key()).verify(presented)


@pytest.mark.parametrize("seconds", [0, -1])
async def test_a_key_expires_at_its_time(seconds: int) -> None:
    """It is refused with a specific reason."""
    with pytest.raises(ApiKeyExpired):
        await keys(make_key(expires_at=NOW + timedelta(seconds=seconds))).verify(KEY)


async def test_a_key_is_valid_until_its_expiry() -> None:
    """A time without a zone is UTC."""
    later = (NOW + timedelta(seconds=1)).replace(tzinfo=None)

    assert (await keys(make_key(expires_at=later)).verify(KEY)).key_id == "ci"


@pytest.mark.parametrize("project", ["", "größe", " blue", "blue\n", "x" * 256])
def test_a_project_that_is_not_valid_in_metadata_is_refused(project: str) -> None:
    """The settings do not load; otherwise each call would fail."""
    with pytest.raises(ValidationError, match="project"):
        make_key(project=project)


def test_new_keys_are_long_and_unique() -> None:
    """256 bits, so that a plain hash is safe to store."""
    made = {create_key() for _ in range(50)}

    assert len(made) == 50
    assert all(key.startswith("sk-corral-") and len(key) == 53 for key in made)


def test_the_hash_of_a_key_is_its_sha256() -> None:
    """Any tool can compute it."""
    assert hash_key("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


# ---- the service token


@pytest.mark.parametrize(("mode", "text"), [(0o644, "secret"), (0o600, " \n")])
def test_a_token_file_that_others_read_or_that_is_empty_is_refused(
    tmp_path: Path, mode: int, text: str
) -> None:
    """The service does not start."""
    path = tmp_path / "token"
    path.write_text(text)
    path.chmod(mode)

    with pytest.raises(StartupError, match="token"):
        ServiceToken.read(path)


def test_a_missing_token_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"nothing.*No such file"):
        ServiceToken.read(tmp_path / "nothing")


def test_a_token_is_hidden_in_its_repr() -> None:
    """Tracebacks and logs do not reveal it."""
    assert TOKEN.secret not in repr(TOKEN)


async def test_a_service_calls_on_behalf_of_a_principal() -> None:
    """The next service receives its project, scopes and priority."""
    principal = Principal(
        project="blue", scopes=frozenset({"inference"}), priority=Priority.BATCH, key_id="ci"
    )
    authenticator = Authenticator(service_token=TOKEN)
    caller = await authenticator.identify(bearer(TOKEN.secret), dict(principal_metadata(principal)))

    assert (caller.project, caller.priority) == ("blue", Priority.BATCH)
    assert caller.scopes == {"inference"}
    assert caller.is_service


async def test_a_service_without_a_project_has_all_scopes() -> None:
    """The call is the service's own."""
    caller = await Authenticator(service_token=TOKEN).identify(bearer(TOKEN.secret))

    assert caller.scopes == {"inference", "admin", "service"}
    assert caller.priority is Priority.INTERACTIVE


async def test_a_project_without_scopes_has_none() -> None:
    """Missing scopes do not grant access."""
    caller = await Authenticator(service_token=TOKEN).identify(
        bearer(TOKEN.secret), {PROJECT_KEY: "blue"}
    )

    assert (caller.scopes, caller.priority) == (frozenset(), Priority.NORMAL)


async def test_a_service_cannot_invent_scopes() -> None:
    """Only scopes that a key can have are accepted."""
    metadata = {PROJECT_KEY: "blue", SCOPES_KEY: "public,inference,root,service"}
    caller = await Authenticator(service_token=TOKEN).identify(bearer(TOKEN.secret), metadata)

    assert caller.scopes == {"inference"}


async def test_an_unknown_priority_is_an_invalid_field() -> None:
    """The error names the field."""
    metadata = {PROJECT_KEY: "blue", PRIORITY_KEY: "urgent"}

    with pytest.raises(InvalidField, match=PRIORITY_KEY):
        await Authenticator(service_token=TOKEN).identify(bearer(TOKEN.secret), metadata)


@pytest.mark.parametrize("authorization", [None, bearer(KEY)])
async def test_identity_metadata_without_the_service_token_is_ignored(
    authorization: str | None,
) -> None:
    """Project and scopes are those of the key, or of keyless callers."""
    authenticator = Authenticator(
        verifier=keys(make_key(project="mine")), service_token=TOKEN, keyless=["inference"]
    )
    metadata = {PROJECT_KEY: "theirs", SCOPES_KEY: "admin", PRIORITY_KEY: "interactive"}
    caller = await authenticator.identify(authorization, metadata)

    assert caller.project in {"mine", "default"}
    assert caller.scopes == {"inference"}
    assert not caller.is_service


@pytest.mark.parametrize("own", [TOKEN, None])
async def test_a_service_of_another_installation_is_refused(
    own: ServiceToken | None,
) -> None:
    """Otherwise the data of all its callers would be stored in the default project."""
    authenticator = Authenticator(service_token=own, keyless=["inference", "admin"])
    blue = Principal(project="blue", scopes=frozenset({"inference"}), key_id="ci")

    with pytest.raises(ApiKeyInvalid):
        await authenticator.identify(bearer("svc-corral-theirs"), dict(principal_metadata(blue)))


# ---- credentials, right and wrong


@pytest.mark.parametrize(
    ("authorization", "error"),
    [
        (None, ApiKeyMissing),
        ("", ApiKeyMissing),
        (bearer("wrong"), ApiKeyInvalid),
        (f"Basic {KEY}", ApiKeyInvalid),
        (KEY, ApiKeyInvalid),
        ("Bearer", ApiKeyInvalid),
    ],
)
async def test_a_server_with_keys_requires_one(
    authorization: str | None, error: type[DomainError]
) -> None:
    """Missing and wrong keys have different reasons; the scheme must be Bearer."""
    with pytest.raises(error):
        await Authenticator(verifier=keys(make_key())).identify(authorization)


async def test_the_scheme_is_case_insensitive() -> None:
    authenticator = Authenticator(verifier=keys(make_key()))

    assert (await authenticator.identify(f"bearer  {KEY}")).key_id == "ci"


async def test_a_server_without_keys_accepts_any_key() -> None:
    """SDKs require one."""
    caller = await Authenticator(keyless=["inference"]).identify(bearer("sk-anything"))

    assert caller.key_id == "keyless"
    assert caller.scopes == {"inference"}


async def test_a_wrong_key_is_refused_although_keyless_callers_are_allowed() -> None:
    """If keys are configured."""
    authenticator = Authenticator(verifier=keys(make_key()), keyless=["inference"])

    assert (await authenticator.identify(None)).key_id == "keyless"
    with pytest.raises(ApiKeyInvalid):
        await authenticator.identify(bearer("wrong"))


class StoredKeys:
    """Accepts one key and records the verified ones."""

    def __init__(self, known: str) -> None:
        self._known = known
        self.verified: list[str] = []

    async def verify(self, key: str) -> Principal:
        """Verify the key. Raises ApiKeyInvalid."""
        self.verified.append(key)
        if key != self._known:
            raise ApiKeyInvalid()
        return Principal(scopes=frozenset({"admin"}), key_id="stored")


async def test_keys_of_the_settings_and_stored_keys_are_accepted() -> None:
    """The settings are checked first."""
    mine = create_key()
    stored = StoredKeys(mine)
    authenticator = build_authenticator(
        listen="127.0.0.1:1",
        keys=[make_key(), make_key(sha256=hash_key("old"), expires_at=NOW - timedelta(days=400))],
        stored_keys=stored,
    )

    assert (await authenticator.identify(bearer(KEY))).key_id == "ci"
    assert (await authenticator.identify(bearer(mine))).key_id == "stored"
    with pytest.raises(ApiKeyExpired):
        await authenticator.identify(bearer("old"))
    with pytest.raises(ApiKeyInvalid):
        await authenticator.identify(bearer("wrong"))
    assert stored.verified == [mine, "wrong"]


async def test_a_keyless_server_verifies_well_formed_keys_only() -> None:
    """SDKs may send any text; a wrong key in Corral's format is refused."""
    mine, wrong = create_key(), create_key()
    stored = StoredKeys(mine)
    authenticator = build_authenticator(listen="127.0.0.1:1", stored_keys=stored)

    assert (await authenticator.identify(bearer(mine))).key_id == "stored"
    assert (await authenticator.identify(bearer("none"))).key_id == "keyless"
    assert (await authenticator.identify(None)).key_id == "keyless"
    with pytest.raises(ApiKeyInvalid):
        await authenticator.identify(bearer(wrong))
    assert stored.verified == [mine, wrong]


async def test_all_keys_may_be_stored_if_keys_are_required() -> None:
    """Requests without a key are refused, also on loopback."""
    mine = create_key()
    for listen in ("127.0.0.1:1", "0.0.0.0:1"):
        authenticator = build_authenticator(
            listen=listen, require_keys=True, stored_keys=StoredKeys(mine)
        )
        assert not authenticator.serves_keyless
        assert (await authenticator.identify(bearer(mine))).key_id == "stored"
        with pytest.raises(ApiKeyMissing):
            await authenticator.identify(None)
        with pytest.raises(ApiKeyInvalid):
            await authenticator.identify(bearer("none"))


@pytest.mark.parametrize(
    ("settings", "scopes"), [({}, "admin, inference"), ({"require_keys": True}, "none")]
)
def test_a_start_logs_the_scopes_of_callers_without_a_key(
    settings: dict[str, Any], scopes: str, caplog: pytest.LogCaptureFixture
) -> None:
    """So that an operator can see whether keys are required."""
    caplog.set_level("INFO")
    build_authenticator(listen="127.0.0.1:1", stored_keys=StoredKeys(""), **settings)

    assert f"callers without a key have the scopes: {scopes}" in caplog.messages


def test_requiring_keys_without_any_source_of_keys_is_refused() -> None:
    """The server would refuse all requests."""
    with pytest.raises(StartupError, match="no key can be verified"):
        build_authenticator(listen="127.0.0.1:1", require_keys=True)


# ---- who may come without a key


@pytest.mark.parametrize(
    ("listen", "has_keys", "allow", "scopes"),
    [
        ("127.0.0.1:1", False, False, {"inference", "admin"}),
        ("[::1]:1", False, False, {"inference", "admin"}),
        ("127.0.0.1:1", True, False, None),
        ("127.0.0.1:1", True, True, {"inference"}),
        ("0.0.0.0:1", True, False, None),
        ("0.0.0.0:1", False, True, {"inference"}),
        ("0.0.0.0:1", True, True, {"inference"}),
    ],
)
def test_keyless_callers_are_allowed_on_loopback_by_default(
    listen: str, has_keys: bool, allow: bool, scopes: set[str] | None
) -> None:
    """Elsewhere with the flag only, and without the scope admin."""
    assert keyless_scopes(listen, has_keys=has_keys, allow_keyless=allow) == scopes


def test_contradicting_flags_for_keyless_callers_are_refused() -> None:
    with pytest.raises(StartupError, match="exclude each other"):
        keyless_scopes("0.0.0.0:1", has_keys=True, allow_keyless=True, require_keys=True)


def test_a_public_address_without_credentials_is_refused() -> None:
    """The message has the address and the remedies."""
    with pytest.raises(
        StartupError, match=r"0\.0\.0\.0:1.*require_keys.*keys create.*127.*allow_keyless"
    ):
        keyless_scopes("0.0.0.0:1", has_keys=False, allow_keyless=False)


async def test_a_service_token_is_sufficient_for_a_public_address(tmp_path: Path) -> None:
    """A service that only other services call needs no keys."""
    path = tmp_path / "token"
    ensure_token(path)
    authenticator = build_authenticator(listen="0.0.0.0:1", service_token_file=path)

    token = ServiceToken.read(path)
    assert (await authenticator.identify(bearer(token.secret))).is_service
    with pytest.raises(ApiKeyMissing):
        await authenticator.identify(None)


async def test_settings_become_an_authenticator() -> None:
    """Keys are verified, and requests without one are refused."""
    authenticator = build_authenticator(listen="127.0.0.1:1", keys=[make_key()])

    assert (await authenticator.identify(bearer(KEY))).key_id == "ci"
    with pytest.raises(ApiKeyMissing):
        await authenticator.identify(None)


# ---- the principal of a call


def test_a_principal_has_its_granted_scopes() -> None:
    """Public and known methods require no scope."""
    principal = Principal(scopes=frozenset({"inference"}), key_id="ci")

    assert {scope for scope in Scope if not principal.has(scope)} == {
        *(Scope.ADMIN, Scope.ADMIN_READ, Scope.SERVICE),
    }


def test_priorities_have_the_values_of_the_proto() -> None:
    """They are compared with the priority of the request."""
    from corral.inference.v1 import generation_pb2

    assert {f"PRIORITY_{p.name}": p.value for p in Priority} == {
        name: value for name, value in generation_pb2.Priority.items() if value
    }


async def test_the_principal_is_bound_to_the_task() -> None:
    """There is none outside a call."""
    with pytest.raises(ApiKeyMissing):
        current_principal()
    principal = Principal(scopes=frozenset(), key_id="ci")
    set_principal(principal)

    assert current_principal() is principal
