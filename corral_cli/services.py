"""The services that the command knows: their settings and how each is run.

A service is imported when it is asked for, because each brings its libraries with it: a terminal
that asks for the version should not load llama.cpp.
"""

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

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


def serve_function(name: str) -> Callable[[Any], Coroutine[Any, Any, None]]:
    """The function that runs a service with its settings until it is told to stop."""
    if name == "inference":
        from inference_svc.app import serve
    elif name == "control":
        from control_svc.app import serve  # type: ignore[assignment]
    else:
        from gateway.app import serve  # type: ignore[assignment]
    return serve
