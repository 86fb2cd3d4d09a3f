"""Plans `corral up`: from flags to the settings of each service."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

from control_svc.config import ControlSettings
from corral_cli.up.ports import reachable, why_not, with_free_port
from gateway.config import GatewaySettings
from inference_svc.config import InferenceSettings
from inference_svc.models.metadata import default_name
from inference_svc.models.sources import BUNDLED, BUNDLED_NAME, ModelReference, parse_reference
from svc_kit.auth.authenticator import keyless_scopes
from svc_kit.lifecycle import StartupError
from svc_kit.network import Address, parse_address
from svc_kit.settings.groups import load_settings


class EmbeddingModel(NamedTuple):
    """What requests call it, and all models that are served with it."""

    name: str
    models: list[str]


def with_embedding_model(request: str, models: Sequence[str]) -> EmbeddingModel:
    """The embedding model of a flag beside the references of others. Raises StartupError."""
    if request in [_name_of(parse_reference(model)) for model in models]:
        return EmbeddingModel(request, list(models))
    return EmbeddingModel(_name_of(parse_reference(request)), [*models, request])


def _name_of(reference: ModelReference) -> str:
    if reference.name is not None:
        return reference.name
    if reference.source == BUNDLED:
        return BUNDLED_NAME
    remote = reference.remote
    return default_name(Path(remote.file if remote else reference.source))


ANY_LOOPBACK_PORT = "127.0.0.1:0"
ServiceWithPorts = InferenceSettings | ControlSettings | GatewaySettings


@dataclass(frozen=True, kw_only=True)
class UpFlags:
    """The flags; None and () mean not given."""

    config: Path | None = None
    models: tuple[str, ...] = ()
    adapters: tuple[tuple[str, str], ...] = ()
    """Names and files."""
    embedding_model: str | None = None
    """By its name where it is served anyway, else as a model's reference."""
    data_dir: Path | None = None
    listen: str | None = None
    inference_listen: str | None = None
    control_listen: str | None = None
    slots: int | None = None
    context_tokens: int | None = None
    threads: int | None = None
    require_keys: bool = False

    def for_inference(self) -> dict[str, Any]:
        """What they set for the inference service."""
        flags = {
            "models": list(self.models) or None,
            "adapters": {name: {"path": path} for name, path in self.adapters} or None,
            "data_dir": self.data_dir,
            "listen": self.inference_listen,
            "engine.slots": self.slots,
            "engine.context_tokens": self.context_tokens,
            "engine.threads": self.threads,
            **self._for_all(),
        }
        return {name: value for name, value in flags.items() if value is not None}

    def for_control(self) -> dict[str, Any]:
        """What they set for the control service."""
        flags = {"data_dir": self.data_dir, "listen": self.control_listen, **self._for_all()}
        return {name: value for name, value in flags.items() if value is not None}

    def for_gateway(self) -> dict[str, Any]:
        """What they set for the gateway."""
        return {**({"listen": self.listen} if self.listen else {}), **self._for_all()}

    def _for_all(self) -> dict[str, Any]:
        return {"require_keys": True} if self.require_keys else {}


@dataclass(frozen=True)
class Plan:
    """The settings that all services will have, and the overrides that make them have them."""

    config: Path | None
    inference: InferenceSettings
    control: ControlSettings
    gateway: GatewaySettings
    overrides: Mapping[str, Mapping[str, Any]]
    """By service: what is passed on beside the file and the environment."""

    @classmethod
    def make(cls, flags: UpFlags) -> Self:
        """Load, fill in what connects the services, and load again. Raises StartupError."""
        overrides = {
            "inference": flags.for_inference(),
            "control": flags.for_control(),
            "gateway": flags.for_gateway(),
        }
        first = cls._load(flags.config, overrides)
        if flags.embedding_model is not None:
            chosen = with_embedding_model(flags.embedding_model, first.inference.models)
            overrides["inference"]["models"] = chosen.models
            overrides["control"]["embedding_model"] = chosen.name
        if "data_dir" not in first.control.model_fields_set:
            # One folder holds everything of a Corral, also where a file names it for inference.
            overrides["control"]["data_dir"] = first.inference.data_dir
        settled: list[Address] = []
        for service, settings in first.by_service.items():
            for name in ("listen", "management_listen"):
                settled.append(_settled(settings, name, settled))
                overrides[service][name] = str(settled[-1])
        second = cls._load(flags.config, overrides)
        for service in overrides:
            overrides[service] |= second.connection(service)
        for service in overrides:
            overrides[service]["service_token_file"] = second.token_file
        return cls._load(flags.config, overrides)

    @classmethod
    def _load(cls, config: Path | None, overrides: dict[str, dict[str, Any]]) -> Self:
        inference = load_settings(InferenceSettings, toml=config, overrides=overrides["inference"])
        control = load_settings(ControlSettings, toml=config, overrides=overrides["control"])
        gateway = load_settings(GatewaySettings, toml=config, overrides=overrides["gateway"])
        return cls(config, inference, control, gateway, overrides)

    @property
    def by_service(self) -> "dict[str, ServiceWithPorts]":
        """The settings of every service."""
        return {"inference": self.inference, "control": self.control, "gateway": self.gateway}

    def connection(self, service: str) -> dict[str, Any]:
        """Addresses of the other services, unless configured."""
        targets = {
            "inference_target": str(reachable(self.inference_address)),
            "control_target": str(reachable(self.control_address)),
        }
        settings = type(self.by_service[service])
        events = self.by_service[service].model_fields_set
        return {
            name: target
            for name, target in targets.items()
            if name in settings.model_fields and name not in events
        }

    @property
    def token_file(self) -> Path:
        """The file of the token by which the services know each other."""
        chosen = [settings.service_token_file for settings in self.by_service.values()]
        return next(filter(None, chosen), self.inference.data_dir / "service-token")

    @property
    def gateway_address(self) -> Address:
        """Where HTTP is served."""
        return parse_address(self.gateway.listen)

    @property
    def inference_address(self) -> Address:
        """Where gRPC is served."""
        return parse_address(self.inference.listen)

    @property
    def control_address(self) -> Address:
        """Where files, uploads and batches are served over gRPC."""
        return parse_address(self.control.listen)

    @property
    def gateway_management(self) -> Address:
        """Where the gateway is probed."""
        return parse_address(self.gateway.management_listen or ANY_LOOPBACK_PORT)

    @property
    def inference_management(self) -> Address:
        """Where the inference service is probed."""
        return parse_address(self.inference.management_listen or ANY_LOOPBACK_PORT)

    @property
    def control_management(self) -> Address:
        """Where the control service is probed."""
        return parse_address(self.control.management_listen or ANY_LOOPBACK_PORT)

    @property
    def listeners(self) -> list[Address]:
        """Where the services listen."""
        return [
            self.gateway_address,
            self.inference_address,
            self.control_address,
            self.gateway_management,
            self.inference_management,
            self.control_management,
        ]

    def check_ports(self) -> None:
        """Raise StartupError with a line for each address that is taken or given twice."""
        listeners = self.listeners
        problems = [problem for problem in map(why_not, dict.fromkeys(listeners)) if problem]
        problems += [
            f"{address} is given to two listeners: choose another port for one of them"
            for address in dict.fromkeys(listeners)
            if listeners.count(address) > 1
        ]
        if problems:
            raise StartupError("\n".join(problems))

    def check_access(self) -> None:
        """Raise StartupError where the gateway would serve other machines without keys.

        The other services always have the service token, so they are never open.
        """
        keyless_scopes(
            self.gateway.listen,
            has_keys=bool(self.gateway.keys),
            allow_keyless=self.gateway.allow_keyless,
            require_keys=self.gateway.require_keys,
        )


def _settled(settings: ServiceWithPorts, name: str, others: list[Address]) -> Address:
    """A listener's address with its port chosen, different from those of the others where that is
    free. The supervisor needs the management ones.

    Port 0 becomes a free port. A management port that is not set and already in use becomes a free
    one too, so that a second Corral on the same machine starts.
    """
    address = parse_address(getattr(settings, name) or ANY_LOOPBACK_PORT)
    is_default = name not in settings.model_fields_set
    if name == "management_listen" and is_default and why_not(address):
        address = Address(address.host, 0)
    try:
        return with_free_port(address, others)
    except OSError as error:
        raise StartupError(f"cannot listen on {address}: {error.strerror or error}") from error
