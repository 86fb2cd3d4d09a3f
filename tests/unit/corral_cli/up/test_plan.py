"""What `corral up` decides from flags, a file and the environment, before it starts anything."""

import socket
from dataclasses import replace
from pathlib import Path

import pytest

from corral_cli.serve import load
from corral_cli.up.children import as_variables
from corral_cli.up.plan import Plan, UpFlags
from svc_kit.lifecycle import StartupError
from svc_kit.network import parse_address


def test_open_ports_are_chosen(tmp_path: Path) -> None:
    """Port 0 becomes a port that the gateway can be told of."""
    plan = Plan.make(
        UpFlags(
            data_dir=tmp_path,
            listen="127.0.0.1:0",
            inference_listen="127.0.0.1:0",
            control_listen="127.0.0.1:0",
        )
    )

    assert parse_address(plan.gateway.listen).port > 0
    assert plan.gateway.inference_target == plan.inference.listen
    assert plan.gateway.control_target == plan.control.listen
    assert plan.inference.control_target == plan.control.listen
    plan.check_ports()


def test_flags_reach_the_inference_service(tmp_path: Path) -> None:
    """Sizes and models are passed on under the names of its settings."""
    plan = Plan.make(
        UpFlags(data_dir=tmp_path, models=("a.gguf", "b.gguf"), slots=3, context_tokens=512)
    )

    assert plan.inference.models == ["a.gguf", "b.gguf"]
    assert (plan.inference.engine.slots, plan.inference.engine.context_tokens) == (3, 512)
    assert plan.overrides["inference"]["engine.slots"] == 3


def test_adapters_reach_the_inference_service_through_its_environment(tmp_path: Path) -> None:
    """As the one setting that holds them all."""
    plan = Plan.make(UpFlags(data_dir=tmp_path, adapters=(("voice", "v=1.gguf"),)))
    passed = as_variables(
        "CORRAL_INFERENCE_", {"adapters": plan.overrides["inference"]["adapters"]}
    )

    assert plan.inference.adapters["voice"].path == "v=1.gguf"
    assert passed == {"CORRAL_INFERENCE_ADAPTERS": '{"voice": {"path": "v=1.gguf"}}'}


def test_all_services_get_the_same_token_file(tmp_path: Path) -> None:
    """It stands in the data folder, where the operator did not choose another place."""
    plan = Plan.make(UpFlags(data_dir=tmp_path))

    assert plan.token_file == tmp_path / "service-token"
    assert plan.gateway.service_token_file == plan.inference.service_token_file
    assert plan.control.service_token_file == plan.token_file
    assert plan.control.data_dir == tmp_path


def test_a_token_file_of_the_operator_is_shared(tmp_path: Path) -> None:
    """One service was told where its token is; the other is told the same."""
    config = tmp_path / "corral.toml"
    config.write_text(f'[inference]\nservice_token_file = "{tmp_path}/mine"\n')

    plan = Plan.make(UpFlags(config=config, data_dir=tmp_path))

    assert plan.gateway.service_token_file == tmp_path / "mine"


def test_the_data_folder_of_inference_is_that_of_files(tmp_path: Path) -> None:
    """A file names it once; a folder of the control service's own stays."""
    config = tmp_path / "corral.toml"
    config.write_text(f'[inference]\ndata_dir = "{tmp_path}/ours"\n')

    shared = Plan.make(UpFlags(config=config))
    config.write_text(config.read_text() + f'[control]\ndata_dir = "{tmp_path}/files"\n')
    apart = Plan.make(UpFlags(config=config))

    assert shared.overrides["control"]["data_dir"] == tmp_path / "ours"
    assert shared.control.data_dir == tmp_path / "ours"
    assert apart.control.data_dir == tmp_path / "files"


def test_an_operators_target_stays(tmp_path: Path) -> None:
    """A gateway that was told where to go is not redirected."""
    config = tmp_path / "corral.toml"
    config.write_text('[gateway]\ninference_target = "dns:///inference:50051"\n')

    plan = Plan.make(UpFlags(config=config, data_dir=tmp_path))

    assert plan.gateway.inference_target == "dns:///inference:50051"


def test_an_address_of_another_machine_is_one_line(tmp_path: Path) -> None:
    """Also where its port is for us to choose."""
    flags = UpFlags(data_dir=tmp_path, inference_listen="192.0.2.1:0")

    with pytest.raises(StartupError, match=r"^cannot listen on 192\.0\.2\.1:0: "):
        Plan.make(flags)


def test_a_taken_port_is_one_line(tmp_path: Path) -> None:
    """Nothing is started for it to fail."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = f"127.0.0.1:{server.getsockname()[1]}"
        plan = Plan.make(UpFlags(data_dir=tmp_path, listen=taken, inference_listen="127.0.0.1:0"))

        with pytest.raises(StartupError, match=f"{taken} is taken: stop what listens there"):
            plan.check_ports()


def test_one_address_for_two_listeners_is_refused(tmp_path: Path) -> None:
    """It would be free now and taken a moment later."""
    twice = str(parse_address("127.0.0.1:28080"))
    plan = Plan.make(UpFlags(data_dir=tmp_path, listen=twice, inference_listen=twice))

    with pytest.raises(StartupError, match="given to two listeners"):
        plan.check_ports()


def test_a_management_port_nobody_asked_for_moves_away(tmp_path: Path) -> None:
    """A second Corral on the machine does not fail over a port that its operator never named."""
    first = Plan.make(UpFlags(data_dir=tmp_path)).gateway.management_listen
    with socket.create_server(parse_address(str(first))):
        second = Plan.make(UpFlags(data_dir=tmp_path)).gateway.management_listen

    assert second != first


def test_mistakes_of_a_file_are_found(tmp_path: Path) -> None:
    """The service is not started only to say the same in its log."""
    config = tmp_path / "corral.toml"
    config.write_text("[inference]\nmodel = 3\n")

    with pytest.raises(StartupError, match=r"\[inference\] model"):
        Plan.make(UpFlags(config=config, data_dir=tmp_path))


def test_required_keys_are_required_by_every_service(tmp_path: Path) -> None:
    """And other machines may then be served: nobody comes without a key."""
    plan = Plan.make(UpFlags(data_dir=tmp_path, listen="0.0.0.0:0", require_keys=True))
    plan.check_access()

    assert all(settings.require_keys for settings in plan.by_service.values())


def test_the_inference_service_is_told_where_control_is(tmp_path: Path) -> None:
    """It asks it for keys, and tells it what was used; an operator's word counts."""
    config = tmp_path / "corral.toml"
    config.write_text('[inference]\ncontrol_target = "none"\n')
    flags = UpFlags(data_dir=tmp_path, control_listen="127.0.0.1:0")

    plan = Plan.make(flags)
    assert plan.inference.control_target == plan.control.listen
    assert Plan.make(replace(flags, config=config)).inference.control_target is None


def test_other_machines_are_not_served_without_keys(tmp_path: Path) -> None:
    """The operator learns it before anything starts; a key or the explicit flag lets it pass."""
    open_flags = UpFlags(data_dir=tmp_path, listen="0.0.0.0:0")
    config = tmp_path / "corral.toml"
    config.write_text("[gateway]\nallow_keyless = true\n")

    with pytest.raises(StartupError, match="no API key is configured"):
        Plan.make(open_flags).check_access()
    Plan.make(replace(open_flags, config=config)).check_access()


@pytest.mark.parametrize(
    ("text", "folder"),
    [
        ('[inference]\ndata_dir = "one"', "one"),
        ('[inference]\ndata_dir = "one"\n[control]\ndata_dir = "two"', "two"),
    ],
)
def test_control_alone_finds_the_data_of_the_whole(tmp_path: Path, text: str, folder: str) -> None:
    """A database is not forgotten because its service was started without the others."""
    config = tmp_path / "corral.toml"
    config.write_text(text)

    alone = load("control", config).data_dir

    assert alone == Plan.make(UpFlags(config=config)).control.data_dir == Path(folder)


def test_an_embedding_model_is_served_beside_the_others(tmp_path: Path) -> None:
    """A file is one model more, whatever else is served; control hears its name."""
    flags = UpFlags(data_dir=tmp_path, embedding_model="meaning=minilm.gguf")
    alone, beside = Plan.make(flags), Plan.make(replace(flags, models=("chat.gguf",)))

    assert alone.inference.models == ["bundled", "meaning=minilm.gguf"]
    assert beside.inference.models == ["chat.gguf", "meaning=minilm.gguf"]
    assert alone.control.embedding_model == beside.control.embedding_model == "meaning"


def test_a_model_that_is_served_anyway_can_embed(tmp_path: Path) -> None:
    """Its name is enough, given or its file's own; nothing is served twice."""
    for name, model in (("both", "both=a.gguf"), ("demo-chat", "bundled"), ("a", "a.gguf")):
        plan = Plan.make(UpFlags(data_dir=tmp_path, models=(model,), embedding_model=name))

        assert plan.inference.models == [model]
        assert plan.control.embedding_model == name


def test_without_an_embedding_model_there_is_none(tmp_path: Path) -> None:
    """A model that writes is not taken for one that was made for search."""
    assert Plan.make(UpFlags(data_dir=tmp_path)).control.embedding_model is None
