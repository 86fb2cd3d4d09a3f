"""Settings: sources, precedence, and error messages."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import pytest
from pydantic import Field, SecretStr, ValidationError

from svc_kit.lifecycle import StartupError
from svc_kit.settings.groups import (
    KeySettings,
    ListenAddress,
    ServerSettings,
    ServiceSettings,
    SettingsGroup,
    TlsSettings,
    default_data_dir,
    load_settings,
    read_secret,
)
from svc_kit.settings.toml_text import settings_toml

DIGEST = "a" * 64


class KilnSettings(SettingsGroup):
    """A settings group of the sample service."""

    slots: int = Field(4, ge=1)
    heat: float = 1.5
    limit: int | None = 7


class SampleSettings(ServiceSettings):
    """A small service with every kind of setting."""

    toml_table: ClassVar[str] = "gateway"

    listen: ListenAddress = "127.0.0.1:1"
    management: ListenAddress | None = "127.0.0.1:2"
    label: str = "a"
    models: tuple[str, ...] = ("bundled",)
    prices: Mapping[str, float] = Field({})
    kiln: KilnSettings = KilnSettings()
    server: ServerSettings = ServerSettings()
    tls: TlsSettings | None = None
    keys: tuple[KeySettings, ...] = ()
    secret: SecretStr | None = None


def write_config(folder: Path, text: str) -> Path:
    path = folder / "corral.toml"
    path.write_text(text)
    return path


def load(
    toml: Path | None = None, environment: dict[str, str] | None = None, **flags: object
) -> SampleSettings:
    """Load settings, by default with an empty environment. `__` in a flag's name is a dot."""
    overrides = {name.replace("__", "."): value for name, value in flags.items()}
    return load_settings(
        SampleSettings, toml=toml, overrides=overrides, environment=environment or {}
    )


def test_later_sources_override_earlier_ones(tmp_path: Path) -> None:
    """Defaults, file, environment, flags; for each setting."""
    toml = write_config(tmp_path, "[gateway]\nlisten = 'a:2'\nmodels = ['f']\nkiln.slots = 5\n")
    environment = {"CORRAL_GATEWAY_MODELS": "e,g", "CORRAL_GATEWAY_KILN__SLOTS": "6"}
    settings = load(toml, environment, kiln__slots=7)

    assert settings.kiln == KilnSettings(slots=7, heat=1.5)
    assert (settings.listen, settings.models) == ("a:2", ("e", "g"))


def test_without_sources_there_are_the_defaults() -> None:
    """Every setting has a default."""
    assert load() == SampleSettings()


def test_a_group_in_a_table_is_merged(tmp_path: Path) -> None:
    """A flag for one setting of a group does not change the others."""
    toml = write_config(tmp_path, "[gateway.kiln]\nslots = 5\nheat = 2.5\n")

    assert load(toml, None, kiln={"slots": 9}).kiln == KilnSettings(slots=9, heat=2.5)


def test_flags_are_not_modified() -> None:
    """The caller's dictionary is copied."""
    given = {"slots": 9}
    load(None, {"CORRAL_GATEWAY_KILN__HEAT": "3"}, kiln=given, kiln__heat=4)

    assert given == {"slots": 9}


def test_the_environment_accepts_json_and_lists() -> None:
    """Groups and lists of tables are JSON; plain lists may be comma-separated."""
    environment = {
        "CORRAL_GATEWAY_KEYS": f'[{{"name": "ci", "sha256": "{DIGEST}"}}]',
        "CORRAL_GATEWAY_KILN": '{"slots": 2, "heat": 3}',
        "CORRAL_GATEWAY_KILN__SLOTS": "8",
        "CORRAL_GATEWAY_MODELS": "one, two",
    }
    settings = load(None, environment)

    assert [key.name for key in settings.keys] == ["ci"]
    assert settings.kiln == KilnSettings(slots=8, heat=3)
    assert settings.models == ("one", "two")


def test_an_empty_variable_is_ignored() -> None:
    """Compose files pass unset variables as empty ones."""
    assert load(None, {"CORRAL_GATEWAY_LISTEN": ""}).listen == "127.0.0.1:1"


@pytest.mark.parametrize("source", ["file", "environment"])
def test_none_unsets_an_optional_setting(tmp_path: Path, source: str) -> None:
    """TOML and the environment have no null."""
    lines = "[gateway]\nmanagement = 'none'\nlabel = 'none'\nkiln.limit = 'none'\n"
    variables = {f"CORRAL_GATEWAY_{n}": "none" for n in ("MANAGEMENT", "LABEL", "KILN__LIMIT")}
    if source == "file":
        settings = load(write_config(tmp_path, lines))
    else:
        settings = load(None, {**variables, "CORRAL_GATEWAY_TLS": "none"})

    assert (settings.management, settings.kiln.limit, settings.tls) == (None, None, None)
    assert settings.label == "none"


def test_constructing_settings_reads_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the arguments are used."""
    monkeypatch.setenv("CORRAL_GATEWAY_LISTEN", "elsewhere:9")

    assert SampleSettings().listen == "127.0.0.1:1"
    assert load_settings(SampleSettings).listen == "elsewhere:9"


def test_names_with_an_underscore_are_no_settings(tmp_path: Path) -> None:
    """No option of the class that reads settings can be set in a file."""
    with pytest.raises(StartupError, match=r"\[gateway\] _env_file: unknown setting"):
        load(write_config(tmp_path, "[gateway]\n_env_file = 'x'\n"))


def test_settings_are_frozen() -> None:
    """They cannot be changed after validation."""
    with pytest.raises(ValidationError, match="frozen"):
        SampleSettings().listen = "b:3"  # type: ignore[misc]


def test_all_problems_are_reported_at_once(tmp_path: Path) -> None:
    """Each with the name in its source."""
    toml = write_config(
        tmp_path,
        f"[gateway]\nlisten = 'x'\ncolor = 'red'\nkiln.slts = 3\n[[gateway.keys]]\nname = 'a'\n"
        f"sha256 = 'zz{DIGEST}'\n[bogus]\n",
    )
    environment = {
        "CORRAL_GATEWAY_KILN__SLOTS": "0",
        "CORRAL_GATEWAY_MODLS": "m",
        "CORRAL_GATEWAY_PRICES": "[1]",
        "CORRAL_GATEWAY_TLS": "{",
        "OTHER": "1",
    }
    with pytest.raises(StartupError) as raised:
        load(toml, environment, server__max_deadline_s=-1, tls__key_file=3, models=4)
    lines = str(raised.value).splitlines()

    assert [line for line in lines if not line.startswith("  - ")] == [
        "The settings have 1 problem(s):",
        "The gateway settings have 12 problem(s):",
    ]
    for line in (
        f"  - {toml}: unknown table [bogus]",
        f"  - {toml}: [gateway] color: unknown setting",
        f"  - {toml}: [gateway] kiln.slts: unknown setting (did you mean slots?)",
        f"  - {toml}: [gateway] listen: 'x' is not an address; write host:port, as in "
        "127.0.0.1:50051",
        "  - CORRAL_GATEWAY_MODLS: unknown setting (did you mean models?)",
        "  - CORRAL_GATEWAY_KILN__SLOTS: Input should be greater than or equal to 1",
        "  - --server-max-deadline-s: Input should be greater than 0",
        "  - CORRAL_GATEWAY_PRICES: must be a table",
        "  - --models: must be a list",
        "  - --tls-key-file: must be a path",
    ):
        assert line in lines
    assert any(line.startswith("  - CORRAL_GATEWAY_TLS: is not JSON") for line in lines)
    assert any("keys.0.sha256: must be 64" in line for line in lines)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("[gateway", "Expected ']'"),
        ("gateway = 3", r"\[gateway\] must be a table"),
        (None, "No such file"),
    ],
)
def test_an_invalid_file_is_reported_with_its_path(
    tmp_path: Path, content: str | None, expected: str
) -> None:
    """Invalid TOML, a value instead of a table, a missing file."""
    path = tmp_path / "absent.toml" if content is None else write_config(tmp_path, content)

    with pytest.raises(StartupError, match=rf"{path.name}.*{expected}"):
        load(path)


def test_problems_do_not_show_values() -> None:
    """A value may be a secret."""
    with pytest.raises(StartupError) as raised:
        load(None, {"CORRAL_GATEWAY_KEYS": '[{"name": "a", "sha256": "sk-secret"}]'})

    assert "sk-secret" not in str(raised.value)


def test_a_tls_file_must_exist(tmp_path: Path) -> None:
    """It is checked when the settings are loaded."""
    with pytest.raises(StartupError, match=r"tls\.certificate_file: there is no file"):
        load(None, None, tls={"certificate_file": tmp_path / "c", "key_file": tmp_path / "k"})


def test_description_is_toml_without_secrets() -> None:
    """As printed by `corral config check`."""
    import tomllib

    settings = load(
        None,
        None,
        secret="hunter2",
        keys=[{"name": "ci", "sha256": DIGEST, "expires_at": "2027-01-01T00:00:00"}],
    )
    text = settings_toml(settings)
    document = tomllib.loads(text)["gateway"]

    assert "hunter2" not in text
    assert DIGEST not in text
    assert document["kiln"] == {"slots": 4, "heat": 1.5, "limit": 7}
    assert document["keys"][0]["scopes"] == ["inference"]
    assert document["keys"][0]["expires_at"].year == 2027
    assert document["tls"] == "none"


def test_a_description_without_secrets_loads_again(tmp_path: Path) -> None:
    """It gives the same settings."""
    prices = {"qwen2.5": 1.5, "acme/llama:8b": 2.0, "plain": 0.0}
    settings = load(None, None, kiln__slots=9, models=['say "hi"'], prices=prices)

    assert load(write_config(tmp_path, settings_toml(settings))) == settings


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"CORRAL_DATA_DIR": "/data"}, Path("/data")),
        ({"XDG_DATA_HOME": "/xdg"}, Path("/xdg/corral")),
        ({}, Path.home() / ".local/share/corral"),
    ],
)
def test_the_default_data_folder(environment: dict[str, str], expected: Path) -> None:
    """CORRAL_DATA_DIR, else the XDG folder, else its default."""
    assert default_data_dir(environment) == expected


def test_the_newline_of_a_secret_file_is_removed(tmp_path: Path) -> None:
    """Editors add one."""
    path = tmp_path / "s"
    path.write_text("hunter2\n")
    path.chmod(0o600)

    assert read_secret(path) == "hunter2"


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to another user, which only root may")
def test_the_group_may_read_a_secret_of_another_owner(tmp_path: Path) -> None:
    """So Kubernetes (fsGroup) and systemd (LoadCredential) hand secrets over; nobody else may."""
    path = tmp_path / "s"
    path.write_text("hunter2")
    path.chmod(0o440)
    with pytest.raises(StartupError, match="accessible to other users"):
        read_secret(path)

    os.chown(path, 12345, 0)

    assert read_secret(path) == "hunter2"
    path.chmod(0o444)
    with pytest.raises(StartupError, match="accessible to other users"):
        read_secret(path)


def test_a_secret_file_must_be_text(tmp_path: Path) -> None:
    """Other bytes than UTF-8 are refused."""
    path = tmp_path / "s"
    path.write_bytes(b"\xff")

    with pytest.raises(StartupError, match="is not text"):
        read_secret(path)
