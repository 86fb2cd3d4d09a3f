"""Wrong settings: every command refuses the same ones, with the same words, once."""

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from corral_cli.__main__ import cli
from corral_cli.doctor.findings import Level
from corral_cli.doctor.installation_checks import check_installation
from corral_cli.serve import load_alone
from corral_cli.up.command import run_services
from corral_cli.up.plan import Plan, UpFlags
from inference_svc.models.sources import BUNDLED_PATH
from svc_kit.lifecycle import StartupError
from tests.support.certificates import Authority

_WIDE = "0.0.0.0"
CASES = {
    "two listeners on one port": (
        "gateway", '[gateway]\nlisten = "127.0.0.1:8081"\n',
        "[gateway] management_listen (CORRAL_GATEWAY_MANAGEMENT_LISTEN): 127.0.0.1:8081 is the port"
        " of [gateway] listen (CORRAL_GATEWAY_LISTEN) too, 127.0.0.1:8081",
    ),
    "two listeners, one on all interfaces": (
        "control",
        f'[control]\nlisten = "{_WIDE}:50062"\nrequire_keys = true\n',
        "management_listen (CORRAL_CONTROL_MANAGEMENT_LISTEN): 127.0.0.1:50062 is the port of",
    ),
    "other machines without keys": (
        "gateway", f'[gateway]\nlisten = "{_WIDE}:0"\n',
        f"[gateway] listen (CORRAL_GATEWAY_LISTEN): {_WIDE}:0 is reachable from other machines, but"
        " no API key is configured",
    ),
    "required keys without keys": (
        "gateway", "[gateway]\nrequire_keys = true\nallow_keyless = true\n",
        "allow_keyless (CORRAL_GATEWAY_ALLOW_KEYLESS): allow_keyless and require_keys exclude",
    ),
    "an unknown model": (
        "inference", "[inference.per_model.nope]\nslots = 2\n",
        "per_model (CORRAL_INFERENCE_PER_MODEL): no model is called 'nope'; there are demo-chat",
    ),
    "an alias of two models": (
        "inference",
        '[inference]\nmodels = ["a=bundled", "b=bundled"]\n'
        '[inference.per_model.a]\naliases = ["x"]\n[inference.per_model.b]\naliases = ["x"]\n',
        "per_model (CORRAL_INFERENCE_PER_MODEL): the name 'x' is given to 'a' and to 'b'",
    ),
    "a model that does not exist": (
        "inference", '[inference]\nmodels = ["/nowhere/x.gguf"]\n',
        "models (CORRAL_INFERENCE_MODELS): model '/nowhere/x.gguf': there is no such file",
    ),
    "an adapter that does not exist": (
        "inference", '[inference.adapters.a]\npath = "/nowhere/a.gguf"\n',
        "adapters (CORRAL_INFERENCE_ADAPTERS): 'a' (/nowhere/a.gguf): there is no such file",
    ),
    "an adapter that is a model": (
        "inference", f'[inference.adapters.a]\npath = "{BUNDLED_PATH}"\n',
        "not a LoRA adapter (general.type is 'model')",
    ),
    "an adapter of an unknown model": (
        "inference",
        '[inference.adapters.a]\npath = "demo-lora-pirate-f16.gguf"\nmodel = "nope"\n',
        "demo-lora-pirate-f16.gguf): no model is called 'nope'; there are demo-chat",
    ),
    "an adapter with the name of a model": (
        "inference", '[inference.adapters.demo-chat]\npath = "demo-lora-pirate-f16.gguf"\n',
        "'demo-chat' (demo-lora-pirate-f16.gguf): a model has this name",
    ),
    "an engine with token ids without a tokenizer": (
        "inference", '[inference.upstreams.big]\nurls = ["http://127.0.0.1:9"]\nkind = "vllm"\n',
        "[inference] upstreams.big: tokenizer: name that of the engine",
    ),
    "a tokenizer in text mode": (
        "inference",
        '[inference.upstreams.big]\nurls = ["http://127.0.0.1:9"]\nkind = "openai"\n'
        'tokenizer = "bundled"\n',
        "[inference] upstreams.big: tokenizer: kind openai is text mode, which has none",
    ),
    "a format of calls in text mode": (
        "inference",
        '[inference.upstreams.big]\nurls = ["http://127.0.0.1:9"]\n'
        '[inference.turn_formats.big]\ntool_calls = "hermes"\n',
        "turn_formats.big: 'big' is used in text mode, where the engine parses",
    ),
    "an engine's URL with a password": (
        "inference",
        '[inference.upstreams.big]\nurls = ["http://me:secret@h"]\ntokenizer = "bundled"\n',
        "upstreams.big.urls.0: an engine's URL is http(s)://host[:port][/prefix], without a user",
    ),
    "a URL that is no engine's": (
        "inference", '[inference.upstreams.big]\nurls = ["h:8000"]\ntokenizer = "bundled"\n',
        "upstreams.big.urls.0: an engine's URL is http(s)://host[:port][/prefix]",
    ),
    "a limit of memory for an upstream": (
        "inference",
        '[inference.upstreams.big]\nurls = ["http://127.0.0.1:9"]\ntokenizer = "bundled"\n'
        "[inference.per_model.big]\nslots = 2\n",
        "per_model.big.slots: 'big' is an upstream, whose engine has its own settings",
    ),
    "a draft model of an upstream": (
        "inference",
        '[inference.upstreams.big]\nurls = ["http://127.0.0.1:9"]\ntokenizer = "bundled"\n'
        '[inference.per_model.big]\ndraft_model = "small.gguf"\n',
        "per_model.big.draft_model: 'big' is an upstream, whose engine has its own settings",
    ),
    "a draft model without drafts": (
        "inference",
        '[inference.engine]\ndraft_tokens = 0\n'
        '[inference.per_model.demo-chat]\ndraft_model = "small.gguf"\n',
        "per_model.demo-chat.draft_model: engine.draft_tokens is 0, so that nothing is drafted",
    ),
    "an adapter of an upstream": (
        "inference",
        '[inference.upstreams.big]\nurls = ["http://127.0.0.1:9"]\ntokenizer = "bundled"\n'
        '[inference.adapters.a]\npath = "demo-lora-pirate-f16.gguf"\nmodel = "big"\n',
        "adapters.a.model: 'big' is an upstream, which loads no GGUF adapters",
    ),
    "an adapter of an engine in text mode": (
        "inference",
        '[inference.upstreams.big]\nurls = ["http://127.0.0.1:9"]\nadapters = ["a"]\n',
        "[inference] upstreams.big: adapters: in text mode, one is an upstream of its own",
    ),
    "an adapter of an engine listed twice": (
        "inference",
        '[inference.upstreams.big]\nurls = ["http://127.0.0.1:9"]\ntokenizer = "bundled"\n'
        'adapters = ["a", "a"]\n',
        "[inference] upstreams.big: adapters: one is listed twice",
    ),
    "a folder of adapters without their names": (
        "inference",
        '[inference.upstreams.big]\nurls = ["http://127.0.0.1:9"]\ntokenizer = "bundled"\n'
        'adapter_folder = "/loras"\n',
        "[inference] upstreams.big: adapter_folder: name those to load in adapters",
    ),
    "a folder of adapters for llama-server": (
        "inference",
        '[inference.upstreams.big]\nurls = ["http://127.0.0.1:9"]\ntokenizer = "bundled"\n'
        'kind = "llama_server"\nadapters = ["a"]\nadapter_folder = "/loras"\n',
        "[inference] upstreams.big: adapter_folder: llama-server loads adapters at its start only",
    ),
    "a folder of adapters without a root": (
        "inference",
        '[inference.upstreams.big]\nurls = ["http://127.0.0.1:9"]\ntokenizer = "bundled"\n'
        'adapters = ["a"]\nadapter_folder = "loras"\n',
        "upstreams.big.adapter_folder: String should match pattern",
    ),
    "an adapter of an engine with an invalid name": (
        "inference",
        '[inference.upstreams.big]\nurls = ["http://127.0.0.1:9"]\ntokenizer = "bundled"\n'
        'adapters = ["a b"]\n',
        "upstreams.big.adapters.0: 'a b' is no name of an adapter",
    ),
    "an adapter of an engine with the name of its model": (
        "inference",
        '[inference.upstreams.big]\nurls = ["http://127.0.0.1:9"]\ntokenizer = "bundled"\n'
        'adapters = ["big"]\n',
        "the name 'big' is given twice",
    ),
    "an adapter of an engine with the name of an adapter here": (
        "inference",
        '[inference]\nmodels = ["bundled"]\n'
        '[inference.upstreams.big]\nurls = ["http://127.0.0.1:9"]\ntokenizer = "bundled"\n'
        'adapters = ["a"]\n[inference.adapters.a]\npath = "demo-lora-pirate-f16.gguf"\n',
        "the name 'a' is given twice",
    ),
    "an upstream with the name of a model": (
        "inference",
        '[inference]\nmodels = ["big=bundled"]\n'
        '[inference.upstreams.big]\nurls = ["http://127.0.0.1:9"]\ntokenizer = "bundled"\n',
        "upstreams (CORRAL_INFERENCE_UPSTREAMS): a model is called 'big' too",
    ),
    "a tokenizer that does not exist": (
        "inference",
        '[inference.upstreams.big]\nurls = ["http://127.0.0.1:9"]\ntokenizer = "/nowhere/t.gguf"\n',
        "model '/nowhere/t.gguf': there is no such file",
    ),
    "a header that HTTP sets": (
        "inference",
        '[inference.upstreams.big]\nurls = ["http://127.0.0.1:9"]\ntokenizer = "bundled"\n'
        'headers = { Host = "h" }\n',
        "upstreams.big: headers: Host is set by HTTP itself",
    ),
    "no model at all": (
        "inference", "[inference]\nmodels = []\n", "models: name at least one, or an upstream"
    ),
    "a context that cannot fit": (
        "inference", "[inference]\npool.memory_mib = 900\nengine.context_tokens = 100000000\n",
        "engine.context_tokens (CORRAL_INFERENCE_ENGINE__CONTEXT_TOKENS): The model 'demo-chat'",
    ),
    "a bucket without a name": (
        "control", '[control]\nblobs_url = "s3:/bucket"\n',
        "[control] blobs_url: blobs_url is not valid: use s3://BUCKET/PREFIX?endpoint=URL",
    ),
    "an endpoint that is no URL": (
        "control", '[control]\nblobs_url = "s3://b?endpoint=minio:9000"\n',
        "[control] blobs_url: the endpoint in blobs_url is not valid",
    ),
    "a key without its secret": (
        "control", '[control]\nblobs_access_key_id = "AKIA"\n',
        "blobs_access_key_id (CORRAL_CONTROL_BLOBS_ACCESS_KEY_ID): blobs_secret_access_key belongs",
    ),
    "another kind of database": (
        "control", '[control]\ndatabase_url = "mysql://u:secret@h/d"\n',
        "[control] database_url: database_url is of kind 'mysql': use postgresql://",
    ),
    "an unknown option of a database": (
        "control", '[control]\ndatabase_url = "postgresql://u:secret@h/d?sslmod=require"\n',
        "[control] database_url: database_url has unknown options: sslmod; allowed are host, port",
    ),
    "a host with a scheme": (
        "gateway", '[gateway]\nallowed_hosts = ["https://chat.example"]\n',
        "[gateway] allowed_hosts.0: 'https://chat.example' is not a host",
    ),
    "a host with a port": (
        "gateway", '[gateway]\nallowed_hosts = ["chat.example:8080"]\n',
        "[gateway] allowed_hosts.0: 'chat.example:8080' is not a host",
    ),
    "an origin without a scheme": (
        "gateway", '[gateway]\nallowed_origins = ["chat.example"]\n',
        "[gateway] allowed_origins.0: 'chat.example' is not an origin",
    ),
    "an origin with a path": (
        "gateway", '[gateway]\nallowed_origins = ["https://chat.example/app"]\n',
        "[gateway] allowed_origins.0: 'https://chat.example/app' is not an origin",
    ),
    "an origin that no browser sends": (
        "gateway", '[gateway]\nallowed_origins = ["https://chat.example:443"]\n',
        "browsers leave out the port 443",
    ),
    "a target that is a URL": (
        "gateway", '[gateway]\ninference_target = "http://inference"\n',
        "[gateway] inference_target: 'http://inference' is not an address",
    ),
    "an unknown level of the log": (
        "control", '[control]\nlog_level = "loud"\n', "[control] log_level: String should match"
    ),
    "a label for two servers": (
        "control",
        '[control]\nmcp_servers = [{label = "a", url = "http://x"}, {label = "a", url = "http://y"}]',
        "[control] mcp_servers: the label 'a' is used twice",
    ),
    "an unknown table": ("", "[gatway]\n", "unknown table [gatway] (did you mean gateway?)"),
    "an unknown setting in a group": (
        "inference", "[inference.engine]\nslot = 2\n", "unknown setting (did you mean slots?)"
    ),
}  # fmt: skip


def config_check(config: Path, service: str) -> str:
    return str(CliRunner().invoke(cli, ["config", "check", "--config", str(config)]).exception)


def config_check_of_one(config: Path, service: str) -> str:
    command = ["config", "check", "--service", service or "gateway", "--config", str(config)]
    return str(CliRunner().invoke(cli, command).exception)


def doctor(config: Path, service: str) -> str:
    errors = [
        each
        for each in check_installation(config, None)
        if each.level is Level.ERROR and each.check.startswith("settings")
    ]
    assert [each.check for each in errors] == [f"settings of {service}" if service else "settings"]
    head = f"{service} settings" if service else "settings"
    return f"The {head} have 1 problem(s):\n  - {errors[0].message}"


def up(config: Path, service: str) -> str:
    async def supervise(plan: Plan, _inherited: int) -> None:
        raise AssertionError("it was started")

    with pytest.raises(StartupError) as refused:
        run_services(UpFlags(config=config), supervise)
    return str(refused.value)


def serve(config: Path, service: str) -> str:
    with pytest.raises(StartupError) as refused:
        load_alone(service or "gateway", config)
    return str(refused.value)


TOGETHER = [config_check, doctor, up]
COMMANDS = [*TOGETHER, config_check_of_one, serve]


@pytest.fixture(autouse=True)
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every command has a data folder of its own."""
    monkeypatch.setenv("CORRAL_DATA_DIR", str(tmp_path / "data"))
    return tmp_path / "data"


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", CASES)
def test_every_command_refuses_a_wrong_setting_once(
    tmp_path: Path, name: str, command: Callable[[Path, str], str]
) -> None:
    """With the setting, what is wrong and what is allowed, under the right service."""
    service, text, problem = CASES[name]
    config = tmp_path / "corral.toml"
    config.write_text(text)
    said = command(config, service)

    head = f"The {service} settings" if service else "The settings"
    assert said.startswith(f"{head} have 1 problem(s):\n  - ")
    assert said.count("\n  - ") == 1
    assert problem in said
    assert "secret@" not in said


@pytest.mark.parametrize("command", TOGETHER)
@pytest.mark.parametrize(
    ("text", "service", "problem"),
    [
        (
            '[control]\nembedding_model = "nope"\n', "control",
            "embedding_model (CORRAL_CONTROL_EMBEDDING_MODEL): the inference service has no model"
            " 'nope'; there are demo-chat",
        ),
        (
            '[control]\nembedding_model = "e"\n[inference]\nmodels = ["bundled", "e=/nowhere"]\n',
            "control",
            "embedding_model (CORRAL_CONTROL_EMBEDDING_MODEL): model '/nowhere': there is no such",
        ),
        (
            f'[control]\nlisten = "{_WIDE}:50051"\nrequire_keys = true\n', "control",
            f"listen (CORRAL_CONTROL_LISTEN): {_WIDE}:50051 is the port of [inference] listen",
        ),
        (
            '[gateway]\nmanagement_listen = "[::]:50062"\n', "gateway",
            "management_listen (CORRAL_GATEWAY_MANAGEMENT_LISTEN): [::]:50062 is the port of"
            " [control] management_listen",
        ),
    ],
)  # fmt: skip
def test_services_on_one_machine_are_checked_together(
    tmp_path: Path, text: str, service: str, problem: str, command: Callable[[Path, str], str]
) -> None:
    """A service alone cannot know what the others do."""
    config = tmp_path / "corral.toml"
    config.write_text(text)

    assert problem in command(config, service)
    load_alone(service, config)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_refuses_a_key_file_that_others_can_read(
    tmp_path: Path, command: Callable[[Path, str], str]
) -> None:
    """As a file with another secret; the group may read one that root hands over."""
    certificate, key = Authority().issue("gateway").write(tmp_path, "gateway")
    key.chmod(0o644)
    config = tmp_path / "corral.toml"
    config.write_text(f'[gateway.tls]\ncertificate_file = "{certificate}"\nkey_file = "{key}"\n')
    said = command(config, "gateway")

    assert f"[gateway] tls.key_file: {key} is accessible to other users; run: chmod 600" in said
    key.chmod(0o600)
    load_alone("gateway", config)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_refuses_a_certificate_of_another_key(
    tmp_path: Path, command: Callable[[Path, str], str]
) -> None:
    """It is loaded as the service would load it."""
    certificate, _ = Authority().issue("gateway").write(tmp_path, "gateway")
    _, key = Authority().issue("other").write(tmp_path, "other")
    config = tmp_path / "corral.toml"
    config.write_text(f'[gateway.tls]\ncertificate_file = "{certificate}"\nkey_file = "{key}"\n')

    assert "[gateway] tls.certificate_file (CORRAL_GATEWAY_TLS__CERTIFICATE_FILE): the" in command(
        config, "gateway"
    )


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("variable", "service", "problem"),
    [
        ("CORRAL_FOO", "", "CORRAL_FOO: unknown variable; settings begin with CORRAL_INFERENCE_"),
        ("CORRAL_DATADIR", "", "CORRAL_DATADIR: unknown variable (did you mean CORRAL_DATA_DIR?)"),
        ("CORRAL_GATEWAY_LISTN", "gateway", "CORRAL_GATEWAY_LISTN: unknown setting (did you mean"),
        (
            "CORRAL_CONTROL_SERVER__DRAIN_GRACE", "control",
            "CORRAL_CONTROL_SERVER__DRAIN_GRACE: unknown setting (did you mean drain_grace_s?)",
        ),
    ],
)  # fmt: skip
def test_every_command_refuses_an_unknown_variable(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    service: str,
    problem: str,
    command: Callable[[Path, str], str],
) -> None:
    """A misspelt setting would be ignored in silence."""
    config = tmp_path / "corral.toml"
    config.touch()
    monkeypatch.setenv(variable, "1")
    said = command(config, service)

    assert problem in said
    assert said.count("\n  - ") == 1


@pytest.mark.parametrize("command", TOGETHER)
def test_a_token_that_others_can_read_is_refused_once(
    data_dir: Path, tmp_path: Path, command: Callable[[Path, str], str]
) -> None:
    """All services have it, and no table of the file needs to name it."""
    config = tmp_path / "corral.toml"
    config.touch()
    data_dir.mkdir()
    (data_dir / "service-token").write_text("secret")
    (data_dir / "service-token").chmod(0o644)
    said = command(config, "")

    assert said.startswith("The settings have 1 problem(s):\n  - service_token_file: The secret")


@pytest.mark.parametrize("command", [config_check_of_one, serve])
def test_a_service_alone_needs_its_token_file(
    tmp_path: Path, command: Callable[[Path, str], str]
) -> None:
    config = tmp_path / "corral.toml"
    token = tmp_path / "token"
    config.write_text(f'[control]\nservice_token_file = "{token}"\n')

    assert "service_token_file (CORRAL_CONTROL_SERVICE_TOKEN_FILE): The secret file" in command(
        config, "control"
    )
    Plan.load(UpFlags(config=config)).check_settings()
