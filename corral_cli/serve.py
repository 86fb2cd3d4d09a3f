"""`corral serve`: runs one service. Each service is imported only when it is needed."""

import functools
from collections.abc import Callable
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


def settings_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say where the settings and the data are; the command receives `config`
    and `data_dir`."""
    path = click.Path(path_type=Path)
    folder = click.Path(path_type=Path, file_okay=False)
    described = "The data folder, as with `corral up`. Default: that of the settings."
    config_option = click.option("--config", type=path, help="A TOML file with settings.")
    return config_option(click.option("--data-dir", type=folder, help=described)(command))


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


def load(name: str, config: Path | None, data_dir: Path | None = None) -> Any:
    """Load the settings of a service that runs alone, from its file and the environment.

    `data_dir` replaces their data folder; the gateway has none. The default of the control service
    is that of the inference service, as with `corral up`. Raises StartupError.
    """
    has_folder = data_dir is not None and name != "gateway"
    overrides = {"data_dir": data_dir} if has_folder else {}
    settings = load_settings(settings_class(name), toml=config, overrides=overrides)
    if name != "control" or "data_dir" in settings.model_fields_set:
        return settings
    inference = load_settings(settings_class("inference"), toml=config)
    overrides = {"data_dir": inference.model_dump()["data_dir"]}
    return load_settings(settings_class(name), toml=config, overrides=overrides)


def load_alone(
    name: str, config: Path | None, data_dir: Path | None = None, *, is_running: bool = False
) -> Any:
    """Load the settings of a service that runs alone, and check them. `is_running`: it is running
    already. Raises StartupError."""
    settings = load(name, config, data_dir)
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
@settings_options
@click.option(
    "--lifeline",
    type=int,
    hidden=True,
    help="Set by `corral up`: a pipe that closes when it exits.",
)
def serve(service: str, config: Path | None, data_dir: Path | None, lifeline: int | None) -> None:
    """Run one service. Its settings come from the file and the environment."""
    if lifeline is not None:
        exit_with_parent(lifeline)
    ignore_hangup()
    read = functools.partial(load, service, config, data_dir)
    # `corral up` checks all services together, before it starts one or passes SIGHUP on.
    settings = read() if lifeline is not None else load_alone(service, config, data_dir)
    if lifeline is None:
        read = functools.partial(load_alone, service, config, data_dir, is_running=True)
    configure_logging(service, level=settings.log_level)
    with importing_modules():
        serve_service = serve_function(service)
    run(serve_service, settings, read)
