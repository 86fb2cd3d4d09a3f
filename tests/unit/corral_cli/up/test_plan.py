"""The plan of `corral up` from flags, a file and the environment."""

import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from corral_cli.serve import load
from corral_cli.up.children import environment_variables
from corral_cli.up.command import make_services
from corral_cli.up.plan import Plan, UpFlags
from inference_svc.machine import available_cores
from svc_kit.lifecycle import StartupError
from svc_kit.network import parse_address
from svc_kit.settings.checks import SettingsInvalid


def write_config(folder: Path, text: str) -> Path:
    config = folder / "corral.toml"
    config.write_text(text)
    return config


def test_port_zero_becomes_a_port_that_other_services_connect_to(tmp_path: Path) -> None:
    """The targets of the services are the chosen addresses."""
    plan = Plan.load(
        UpFlags(
            data_dir=tmp_path,
            listen="127.0.0.1:0",
            inference_listen="127.0.0.1:0",
            control_listen="127.0.0.1:0",
        )
    ).with_ports()

    assert parse_address(plan.gateway.listen).port > 0
    assert plan.gateway.inference_target == plan.inference.listen
    assert plan.gateway.control_target == plan.control.listen
    assert plan.inference.control_target == plan.control.listen
    plan.check_ports()


def test_commands_on_this_machine_reach_the_gateway_by_loopback(tmp_path: Path) -> None:
    """Also if it listens on all addresses."""
    plan = Plan.load(UpFlags(data_dir=tmp_path, listen="0.0.0.0:18080"))

    assert plan.access()["gateway"] == "http://127.0.0.1:18080"


def test_stateless_prefixes_are_archived_where_only_this_machine_sends_requests(
    tmp_path: Path,
) -> None:
    """Unless the settings say which are."""
    config = write_config(tmp_path, '[inference.snapshots]\narchive_scope = "stored"\n')
    flags = UpFlags(data_dir=tmp_path, replicas=2)
    scopes = [
        [each.snapshots.archive_scope for each in Plan.load(changed).replica_settings]
        for changed in (
            flags,
            replace(flags, listen="0.0.0.0:8080", require_keys=True),
            replace(flags, inference_listen="0.0.0.0:50051", require_keys=True),
            replace(flags, config=config),
        )
    ]

    assert scopes == [["all"] * 2, ["stored"] * 2, ["stored"] * 2, ["stored"] * 2]


def test_flags_become_settings_of_the_inference_service(tmp_path: Path) -> None:
    """Models and sizes."""
    plan = Plan.load(
        UpFlags(data_dir=tmp_path, models=("a.gguf", "b.gguf"), slots=3, context_tokens=512)
    ).with_ports()

    assert plan.inference.models == ["a.gguf", "b.gguf"]
    assert (plan.inference.engine.slots, plan.inference.engine.context_tokens) == (3, 512)
    assert plan.overrides["inference"]["engine.slots"] == 3


def test_an_engine_of_others_replaces_the_bundled_model(tmp_path: Path) -> None:
    """It is passed as one JSON setting; models that are named are served beside it."""
    engines = (("big", ("http://h:1", "http://h:2")),)
    flags = UpFlags(data_dir=tmp_path, engines=engines, tokenizer="bundled")
    plan = Plan.load(flags).with_ports()
    beside = Plan.load(replace(flags, embedding_model="e=bundled"))
    embedded = Plan.load(replace(flags, embedding_model="big"))
    in_text_mode = Plan.load(replace(flags, tokenizer=None))
    upstreams = {"big": {"urls": ["http://h:1", "http://h:2"], "tokenizer": "bundled"}}

    assert plan.inference.models == []
    assert plan.inference.upstreams["big"].urls == ["http://h:1", "http://h:2"]
    assert plan.overrides["inference"]["upstreams"] == upstreams
    assert in_text_mode.inference.upstreams["big"].is_text_mode
    assert (beside.inference.models, beside.control.embedding_model) == (["e=bundled"], "e")
    assert (embedded.inference.models, embedded.control.embedding_model) == ([], "big")


def test_adapters_are_passed_in_the_environment(tmp_path: Path) -> None:
    """As one JSON setting."""
    plan = Plan.load(UpFlags(data_dir=tmp_path, adapters=(("voice", "v=1.gguf"),))).with_ports()
    passed = environment_variables(
        "CORRAL_INFERENCE_", {"adapters": plan.overrides["inference"]["adapters"]}
    )

    assert plan.inference.adapters["voice"].path == "v=1.gguf"
    assert passed == {"CORRAL_INFERENCE_ADAPTERS": '{"voice": {"path": "v=1.gguf"}}'}


def test_all_services_get_the_same_token_file(tmp_path: Path) -> None:
    """By default in the data folder."""
    plan = Plan.load(UpFlags(data_dir=tmp_path)).with_ports()

    assert plan.token_file == tmp_path / "service-token"
    assert plan.gateway.service_token_file == plan.inference.service_token_file
    assert plan.control.service_token_file == plan.token_file
    assert plan.control.data_dir == tmp_path


def test_a_configured_token_file_is_used_by_all_services(tmp_path: Path) -> None:
    """Also if it is configured for one only."""
    config = write_config(tmp_path, f'[inference]\nservice_token_file = "{tmp_path}/mine"\n')

    plan = Plan.load(UpFlags(config=config, data_dir=tmp_path)).with_ports()

    assert plan.gateway.service_token_file == tmp_path / "mine"


def test_the_control_service_uses_the_data_folder_of_inference(tmp_path: Path) -> None:
    """Unless it has its own."""
    config = write_config(tmp_path, f'[inference]\ndata_dir = "{tmp_path}/ours"\n')

    shared = Plan.load(UpFlags(config=config)).with_ports()
    config.write_text(config.read_text() + f'[control]\ndata_dir = "{tmp_path}/files"\n')
    apart = Plan.load(UpFlags(config=config)).with_ports()

    assert shared.overrides["control"]["data_dir"] == tmp_path / "ours"
    assert shared.control.data_dir == tmp_path / "ours"
    assert apart.control.data_dir == tmp_path / "files"


def test_a_configured_target_is_not_overridden(tmp_path: Path) -> None:
    """The gateway connects to the configured address."""
    config = write_config(tmp_path, '[gateway]\ninference_target = "dns:///inference:50051"\n')

    plan = Plan.load(UpFlags(config=config, data_dir=tmp_path)).with_ports()

    assert plan.gateway.inference_target == "dns:///inference:50051"


def test_an_address_of_another_machine_is_refused(tmp_path: Path) -> None:
    flags = UpFlags(data_dir=tmp_path, inference_listen="192.0.2.1:0")

    with pytest.raises(StartupError, match=r"^cannot listen on 192\.0\.2\.1:0: "):
        Plan.load(flags).with_ports()


def test_a_default_management_port_in_use_is_replaced(tmp_path: Path) -> None:
    """A second Corral can start on the same machine."""
    first = Plan.load(UpFlags(data_dir=tmp_path)).with_ports().gateway.management_listen
    with socket.create_server(parse_address(str(first))):
        second = Plan.load(UpFlags(data_dir=tmp_path)).with_ports().gateway.management_listen

    assert second != first


def test_an_invalid_configuration_file_is_refused(tmp_path: Path) -> None:
    """Before a service is started."""
    config = write_config(tmp_path, "[inference]\nmodel = 3\n")

    with pytest.raises(StartupError, match=r"\[inference\] model"):
        Plan.load(UpFlags(config=config, data_dir=tmp_path)).with_ports()


def test_a_reload_is_checked_for_all_services(tmp_path: Path) -> None:
    """With the flags and ports that the running services have, and all checks of a start."""
    config = write_config(tmp_path, "[gateway]\n")
    plan = Plan.load(UpFlags(config=config, data_dir=tmp_path, listen="127.0.0.1:0")).with_ports()

    plan.check_reload()
    write_config(
        tmp_path,
        "[gateway]\nrequire_keys = true\nallow_keyless = true\n"
        '[inference]\nmodels = ["nowhere.gguf"]\n',
    )
    with pytest.raises(SettingsInvalid) as refused:
        plan.check_reload()

    assert ["allow_keyless" in text for text in refused.value.texts("gateway")] == [True]
    assert ["no such file" in text for text in refused.value.texts("inference")] == [True]


def test_required_keys_are_required_by_every_service(tmp_path: Path) -> None:
    """Other machines may be served then."""
    plan = Plan.load(UpFlags(data_dir=tmp_path, listen="0.0.0.0:0", require_keys=True)).with_ports()
    plan.check_settings()

    assert all(settings.require_keys for settings in plan.by_service.values())


def test_all_services_send_their_traces_to_the_endpoint(tmp_path: Path) -> None:
    """One flag turns traces on."""
    plan = Plan.load(UpFlags(data_dir=tmp_path, otlp_endpoint="http://127.0.0.1:4317")).with_ports()

    endpoints = {settings.tracing.endpoint for settings in plan.by_service.values()}
    assert endpoints == {"http://127.0.0.1:4317"}


def test_the_inference_service_connects_to_the_control_service(tmp_path: Path) -> None:
    """Unless that is disabled in the settings."""
    config = write_config(tmp_path, '[inference]\ncontrol_target = "none"\n')
    flags = UpFlags(data_dir=tmp_path, control_listen="127.0.0.1:0")

    plan = Plan.load(flags).with_ports()
    assert plan.inference.control_target == plan.control.listen
    assert Plan.load(replace(flags, config=config)).with_ports().inference.control_target is None


@pytest.mark.parametrize(
    ("text", "folder"),
    [
        ('[inference]\ndata_dir = "one"', "one"),
        ('[inference]\ndata_dir = "one"\n[control]\ndata_dir = "two"', "two"),
    ],
)
def test_a_control_service_alone_has_the_same_data_folder(
    tmp_path: Path, text: str, folder: str
) -> None:
    """As under `corral up`."""
    config = write_config(tmp_path, text)
    standalone = load("control", config).data_dir

    assert (
        standalone
        == Plan.load(UpFlags(config=config)).with_ports().control.data_dir
        == Path(folder)
    )


def test_an_embedding_model_is_served_in_addition(tmp_path: Path) -> None:
    """The control service gets its name."""
    flags = UpFlags(data_dir=tmp_path, embedding_model="meaning=minilm.gguf")
    standalone, beside = (
        Plan.load(flags).with_ports(),
        Plan.load(replace(flags, models=("chat.gguf",))).with_ports(),
    )

    assert standalone.inference.models == ["bundled", "meaning=minilm.gguf"]
    assert beside.inference.models == ["chat.gguf", "meaning=minilm.gguf"]
    assert standalone.control.embedding_model == beside.control.embedding_model == "meaning"


@pytest.mark.parametrize(
    ("name", "model"), [("both", "both=a.gguf"), ("demo-chat", "bundled"), ("a", "a.gguf")]
)
def test_a_served_model_can_be_the_embedding_model(tmp_path: Path, name: str, model: str) -> None:
    """It is given by its name, and not served twice."""
    plan = Plan.load(UpFlags(data_dir=tmp_path, models=(model,), embedding_model=name)).with_ports()

    assert plan.inference.models == [model]
    assert plan.control.embedding_model == name


def test_there_is_no_default_embedding_model(tmp_path: Path) -> None:
    """A chat model is not used for embeddings."""
    assert Plan.load(UpFlags(data_dir=tmp_path)).with_ports().control.embedding_model is None


def test_replicas_have_ports_and_data_folders_of_their_own(tmp_path: Path) -> None:
    """All share the settings, the files to load, and the machine."""
    config = write_config(tmp_path, '[inference.snapshots]\nfolder = "states"\n')
    flags = UpFlags(config=config, data_dir=tmp_path, slots=3, replicas=3)
    plan = Plan.load(flags).with_ports()
    replicas = [plan.by_service[name] for name in plan.replicas]

    assert list(plan.by_service) == [
        *("inference", "inference-2", "inference-3", "control", "gateway")
    ]
    assert plan.gateway.inference_target == ",".join(each.listen for each in replicas)
    assert plan.control.inference_target == plan.gateway.inference_target
    assert len({listener.address for listener in plan.listeners}) == 2 * 5
    assert [each.data_dir for each in plan.replica_settings] == [
        *(tmp_path, tmp_path / "replica-2", tmp_path / "replica-3")
    ]
    assert plan.replica_settings[1].download_folder == tmp_path / "models"
    assert {each.engine.slots for each in (plan.inference, plan.replica_settings[2])} == {3}
    assert plan.replica_settings[1].snapshots.folder == Path("states/replica-2")
    assert tmp_path / "adapters" in plan.replica_settings[1].adapter_folders
    plan.check_ports()


def test_replicas_see_the_gpus_that_are_theirs(tmp_path: Path) -> None:
    """Other services keep what they have inherited."""
    flags = UpFlags(data_dir=tmp_path, replicas=2, gpus=("0", "1,2"))
    services = {each.name: each for each in make_services(Plan.load(flags).with_ports())}
    seen = {
        name: each.environment.get("CUDA_VISIBLE_DEVICES")
        for name, each in services.items()
        if each.environment is not None
    }
    inherited = os.environ.get("CUDA_VISIBLE_DEVICES")

    assert seen["inference"] == "0"
    assert seen["inference-2"] == "1,2"
    assert seen["control"] == seen["gateway"] == inherited


def test_replicas_divide_cores_and_memory_that_nobody_has_assigned(tmp_path: Path) -> None:
    alone = Plan.load(UpFlags(data_dir=tmp_path))
    divided = Plan.load(UpFlags(data_dir=tmp_path, replicas=2))
    assigned = Plan.load(UpFlags(data_dir=tmp_path, replicas=2, threads=9))

    assert (alone.inference.engine.threads, alone.inference.pool.memory_mib) == (None, None)
    assert {each.engine.threads for each in divided.replica_settings} == {
        max(1, available_cores() // 2)
    }
    assert {each.pool.memory_mib is None for each in divided.replica_settings} == {False}
    assert {each.engine.threads for each in assigned.replica_settings} == {9}
