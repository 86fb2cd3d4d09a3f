"""The services that the command knows: their settings and how each is run.

A service is imported when it is asked for, because each brings its libraries with it: a terminal
that asks for the version should not load llama.cpp.
"""

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

from svc_kit.settings import load_settings

if TYPE_CHECKING:
    from control_svc.config import ControlSettings
    from gateway.config import GatewaySettings
    from inference_svc.config import InferenceSettings

SERVICES = ("inference", "control", "gateway")


def settings_class(
    name: str,
) -> "type[ControlSettings] | type[GatewaySettings] | type[InferenceSettings]":
    """The settings class of a service."""
    if name == "inference":
        from inference_svc.config import InferenceSettings

        return InferenceSettings
    if name == "control":
        from control_svc.config import ControlSettings

        return ControlSettings
    from gateway.config import GatewaySettings

    return GatewaySettings


def load(name: str, config: Path | None) -> Any:
    """The settings of a service that runs alone, from its file and the environment.

    The control service finds its data where `corral up` keeps it: unless told otherwise, in the
    inference service's folder. Raises StartupError.
    """
    settings = load_settings(settings_class(name), toml=config)
    if name != "control" or "data_dir" in settings.model_fields_set:
        return settings
    inference = load_settings(settings_class("inference"), toml=config)
    overrides = {"data_dir": inference.model_dump()["data_dir"]}
    return load_settings(settings_class(name), toml=config, overrides=overrides)


def serve_function(name: str) -> Callable[[Any], Coroutine[Any, Any, None]]:
    """The function that runs a service with its settings until it is told to stop."""
    if name == "inference":
        from inference_svc.app import serve
    elif name == "control":
        from control_svc.app import serve  # type: ignore[assignment]
    else:
        from gateway.app import serve  # type: ignore[assignment]
    return serve
