"""`corral serve`: runs one service. Each service is imported only when it is needed."""

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from corral_cli.up.parent_watch import exit_with_parent
from corral_cli.up.settings_checks import check_alone
from svc_kit.lifecycle import importing_modules
from svc_kit.logs import configure_logging
from svc_kit.service_main import Serve, run
from svc_kit.settings.groups import load_settings
from svc_kit.settings.reloader import ignore_hangup

if TYPE_CHECKING:
    from control_svc.config import ControlSettings
    from gateway.config import GatewaySettings
    from inference_svc.config import InferenceSettings


SERVICES = ("inference", "control", "gateway")


def settings_class(
    name: str,
) -> "type[ControlSettings] | type[GatewaySettings] | type[InferenceSettings]":
    """Import the settings class of a service."""
    if name == "inference":
        from inference_svc.config import InferenceSettings

        return InferenceSettings
    if name == "control":
        from control_svc.config import ControlSettings

        return ControlSettings
    from gateway.config import GatewaySettings

    return GatewaySettings


def load(name: str, config: Path | None) -> Any:
    """Load the settings of a service that runs alone, from its file and the environment.

    The default data folder of the control service is that of the inference service, as with
    `corral up`. Raises StartupError.
    """
    settings = load_settings(settings_class(name), toml=config)
    if name != "control" or "data_dir" in settings.model_fields_set:
        return settings
    inference = load_settings(settings_class("inference"), toml=config)
    overrides = {"data_dir": inference.model_dump()["data_dir"]}
    return load_settings(settings_class(name), toml=config, overrides=overrides)


def load_alone(name: str, config: Path | None, *, is_running: bool = False) -> Any:
    """Load the settings of a service that runs alone, and check them. `is_running`: it is running
    already. Raises StartupError."""
    settings = load(name, config)
    check_alone(settings, is_running=is_running)
    return settings


def serve_function(name: str) -> Serve[Any]:
    """Import the function that runs a service until it is stopped."""
    if name == "inference":
        from inference_svc.app import serve
    elif name == "control":
        from control_svc.app import serve  # type: ignore[assignment]
    else:
        from gateway.app import serve  # type: ignore[assignment]
    return serve


@click.command("serve")
@click.argument("service", type=click.Choice(SERVICES))
@click.option("--config", type=click.Path(path_type=Path), help="A TOML file with its settings.")
@click.option(
    "--lifeline",
    type=int,
    hidden=True,
    help="Set by `corral up`: a pipe that closes when it exits.",
)
def serve(service: str, config: Path | None, lifeline: int | None) -> None:
    """Run one service. Its settings come from the file and the environment."""
    if lifeline is not None:
        exit_with_parent(lifeline)
    ignore_hangup()
    read = functools.partial(load, service, config)
    # `corral up` checks all services together, before it starts one or passes SIGHUP on.
    settings = read() if lifeline is not None else load_alone(service, config)
    if lifeline is None:
        read = functools.partial(load_alone, service, config, is_running=True)
    configure_logging(service, level=settings.log_level)
    with importing_modules():
        serve_service = serve_function(service)
    run(serve_service, settings, read)
