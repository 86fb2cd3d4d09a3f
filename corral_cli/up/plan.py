"""The plan of `corral up`: the settings of each service, derived from the flags."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Self, cast

from control_svc.config import ControlSettings
from corral_cli.up.ports import bind_problem, choose_port, reachable
from corral_cli.up.settings_checks import check_together
from gateway.config import GatewaySettings
from inference_svc.config import InferenceSettings
from inference_svc.machine import available_cores, available_memory_bytes
from inference_svc.models.metadata import default_name
from inference_svc.models.sources import BUNDLED, BUNDLED_NAME, ModelReference, parse_reference
from svc_kit.lifecycle import StartupError
from svc_kit.network import Address, parse_address
from svc_kit.settings.checks import Listener, Problem, SettingsInvalid
from svc_kit.settings.groups import UpstreamTlsSettings, load_settings


class EmbeddingModel(NamedTuple):
    """Name of the embedding model, and the references of all models to serve."""

    name: str
    models: list[str]


def with_embedding_model(embedding: str, models: Sequence[str]) -> EmbeddingModel:
    """Find `embedding` among `models` by name, else add it as a reference. Raises StartupError."""
    if embedding in [_model_name(parse_reference(model)) for model in models]:
        return EmbeddingModel(embedding, list(models))
    return EmbeddingModel(_model_name(parse_reference(embedding)), [*models, embedding])


def _model_name(reference: ModelReference) -> str:
    if reference.name is not None:
        return reference.name
    if reference.source == BUNDLED:
        return BUNDLED_NAME
    remote = reference.remote
    return default_name(Path(remote.file if remote else reference.source))


_ANY_LOOPBACK_PORT = "127.0.0.1:0"
_VISIBLE_DEVICES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GGML_VK_VISIBLE_DEVICES")
ServiceWithPorts = InferenceSettings | ControlSettings | GatewaySettings
_CLASSES: Mapping[str, type[ServiceWithPorts]] = {
    settings.toml_table: settings
    for settings in (InferenceSettings, ControlSettings, GatewaySettings)
}
MAX_REPLICAS = 64


@dataclass(frozen=True, kw_only=True)
class UpFlags:
    """The flags of `corral up` by their names there. None and () mean that one was not given."""

    config: Path | None = None
    models: tuple[str, ...] = ()
    engines: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Pairs of the name of a model and the URLs of the engines that serve it."""
    tokenizer: str | None = None
    """That of the engines, as in `upstreams.NAME.tokenizer`."""
    adapters: tuple[tuple[str, str], ...] = ()
    """Pairs of name and file."""
    embedding_model: str | None = None
    """The name of one of `models`, or the reference of another model."""
    data_dir: Path | None = None
    listen: str | None = None
    inference_listen: str | None = None
    control_listen: str | None = None
    slots: int | None = None
    context_tokens: int | None = None
    threads: int | None = None
    require_keys: bool = False
    otlp_endpoint: str | None = None
    """Where all services send their traces."""
    replicas: int = 1
    """Inference services, each with its own ports and data folder."""
    gpus: tuple[str, ...] = ()
    """The numbers of the GPUs of each replica, as in "0,1"; empty: each has all."""

    def for_inference(self) -> dict[str, Any]:
        """Overrides for the settings of the inference service."""
        flags = {
            "models": list(self.models) or None,
            "upstreams": {name: self._upstream(urls) for name, urls in self.engines} or None,
            "adapters": {name: {"path": path} for name, path in self.adapters} or None,
            "data_dir": self.data_dir,
            "listen": self.inference_listen,
            "engine.slots": self.slots,
            "engine.context_tokens": self.context_tokens,
            "engine.threads": self.threads,
            **self._shared(),
        }
        return {name: value for name, value in flags.items() if value is not None}

    def for_control(self) -> dict[str, Any]:
        """Overrides for the settings of the control service."""
        flags = {"data_dir": self.data_dir, "listen": self.control_listen, **self._shared()}
        return {name: value for name, value in flags.items() if value is not None}

    def for_gateway(self) -> dict[str, Any]:
        """Overrides for the settings of the gateway."""
        return {**({"listen": self.listen} if self.listen else {}), **self._shared()}

    def _upstream(self, urls: tuple[str, ...]) -> dict[str, Any]:
        tokenizer = {} if self.tokenizer is None else {"tokenizer": self.tokenizer}
        return {"urls": list(urls), **tokenizer}

    def _shared(self) -> dict[str, Any]:
        keys = {"require_keys": True} if self.require_keys else {}
        endpoint = self.otlp_endpoint
        return keys | ({} if endpoint is None else {"tracing.endpoint": endpoint})


@dataclass(frozen=True)
class Plan:
    """The settings of all services, and the overrides that produce them."""

    config: Path | None
    by_service: Mapping[str, ServiceWithPorts]
    """The settings by service: inference, inference-2 and so on for replicas, control, gateway."""
    overrides: Mapping[str, Mapping[str, Any]]
    """Settings passed to each service in addition to the file and the environment, by service."""
    gpus: tuple[str, ...] = ()

    @classmethod
    def load(cls, flags: UpFlags) -> Self:
        """Load the settings with those that all services share. Raises SettingsInvalid."""
        overrides = {
            "inference": flags.for_inference(),
            "control": flags.for_control(),
            "gateway": flags.for_gateway(),
        }
        first = cls._load(flags.config, overrides)
        if flags.embedding_model is not None:
            embedding = EmbeddingModel(flags.embedding_model, first.inference.models)
            if flags.embedding_model not in first.inference.upstreams:
                embedding = with_embedding_model(flags.embedding_model, first.inference.models)
            overrides["inference"]["models"] = embedding.models
            overrides["control"]["embedding_model"] = embedding.name
        if "data_dir" not in first.control.model_fields_set:
            # All services share one folder, also if only that of inference is configured.
            overrides["control"]["data_dir"] = first.inference.data_dir
        if first.is_on_loopback and (
            "archive_scope" not in first.inference.snapshots.model_fields_set
        ):
            overrides["inference"]["snapshots.archive_scope"] = "all"
        for shared in overrides.values():
            shared["service_token_file"] = first.token_file
        overrides = _with_replicas(overrides, first.inference, flags.replicas)
        return replace(cls._load(flags.config, overrides), gpus=flags.gpus)

    def with_ports(self) -> Self:
        """Choose ports and connect the services. Raises StartupError."""
        overrides = {name: dict(values) for name, values in self.overrides.items()}
        assigned: list[Address] = []
        for service, settings in self.by_service.items():
            for name in ("listen", "management_listen"):
                assigned.append(_choose_address(settings, name, assigned))
                overrides[service][name] = str(assigned[-1])
        listening = self._load(self.config, overrides)
        for service in overrides:
            overrides[service] |= listening.targets_for(service)
        return replace(self._load(self.config, overrides), gpus=self.gpus)

    @classmethod
    def _load(cls, config: Path | None, overrides: Mapping[str, Mapping[str, Any]]) -> Self:
        loaded: dict[str, ServiceWithPorts] = {}
        problems: list[Problem] = []
        for name, values in overrides.items():
            settings = _CLASSES[_table(name)]
            try:
                loaded[name] = load_settings(settings, toml=config, overrides=values)
            except SettingsInvalid as error:
                problems += error.problems
        if problems:
            raise SettingsInvalid(problems)
        return cls(config, loaded, overrides)

    def check_settings(self, *, is_running: bool = False) -> None:
        """Raise SettingsInvalid for settings that cannot work. `is_running`: the services of this
        data folder are running already."""
        check_together(self.by_service, is_running=is_running)

    def check_reload(self) -> None:
        """Read the settings again, as the running services will, and check them. Raises
        SettingsInvalid."""
        self._load(self.config, self.overrides).check_settings(is_running=True)

    @property
    def inference(self) -> InferenceSettings:
        """Those of the first replica."""
        return cast(InferenceSettings, self.by_service["inference"])

    @property
    def control(self) -> ControlSettings:
        return cast(ControlSettings, self.by_service["control"])

    @property
    def gateway(self) -> GatewaySettings:
        return cast(GatewaySettings, self.by_service["gateway"])

    @property
    def is_on_loopback(self) -> bool:
        """Whether only programs on this machine can send requests to the models."""
        listening = (self.gateway.listen, self.inference.listen)
        return all(parse_address(each).is_loopback for each in listening)

    @property
    def replicas(self) -> list[str]:
        """The names of the inference services."""
        return [name for name in self.by_service if _table(name) == "inference"]

    @property
    def replica_settings(self) -> list[InferenceSettings]:
        return [cast(InferenceSettings, self.by_service[name]) for name in self.replicas]

    def visible_devices(self, name: str) -> dict[str, str]:
        """The variables by which ggml's backends see only the GPUs of a replica."""
        gpus = dict(zip(self.replicas, self.gpus, strict=False))
        return dict.fromkeys(_VISIBLE_DEVICES, gpus[name]) if name in gpus else {}

    def _replica_addresses(self) -> str:
        return ",".join(str(reachable(self.address(name))) for name in self.replicas)

    def targets_for(self, service: str) -> dict[str, Any]:
        """The settings with the addresses of the other services, except those configured."""
        targets = {
            "inference_target": self._replica_addresses(),
            "control_target": str(reachable(self.address("control"))),
        }
        settings = self.by_service[service]
        unset = type(settings).model_fields.keys() - settings.model_fields_set
        return {name: target for name, target in targets.items() if name in unset}

    @property
    def token_file(self) -> Path:
        """The service token file: a configured one, else one in the data folder."""
        configured = [settings.service_token_file for settings in self.by_service.values()]
        return next(filter(None, configured), self.inference.data_dir / "service-token")

    def access(self) -> dict[str, str]:
        """How commands on this machine call the services, by the fields of a profile."""
        target = str(self.target("inference"))
        if len(self.replicas) > 1:
            target = self._replica_addresses()
        scheme = "https" if self.gateway.tls else "http"
        addresses = {
            "target": target,
            "control": str(self.target("control")),
            "gateway": f"{scheme}://{reachable(self.address('gateway'))}",
        }
        return addresses | {"service_token_file": str(self.token_file.absolute())}

    def target(self, service: str) -> Address:
        """The address of a service for clients on this machine, with the name in its certificate
        as host if that differs."""
        address = reachable(self.address(service))
        tls: UpstreamTlsSettings | None = getattr(self.gateway, f"{service}_tls")
        return Address(tls.server_name, address.port) if tls and tls.server_name else address

    def address(self, service: str) -> Address:
        """Listen address of a service, of HTTP for the gateway and gRPC for the others."""
        return parse_address(self.by_service[service].listen)

    def management(self, service: str) -> Address:
        return parse_address(self.by_service[service].management_listen or _ANY_LOOPBACK_PORT)

    @property
    def listeners(self) -> list[Listener]:
        """The listeners of all services."""
        return [
            listener._replace(service=name)
            for name, settings in self.by_service.items()
            for listener in settings.listeners
        ]

    def check_ports(self) -> None:
        """Raise StartupError with a line for each address that is in use."""
        found = (bind_problem(listener.address) for listener in self.listeners)
        problems = [problem for problem in found if problem]
        if problems:
            raise StartupError("\n".join(problems))


def _table(name: str) -> str:
    """The table of a service in the file: that of inference-2 is inference."""
    return name.partition("-")[0]


def _with_replicas(
    overrides: Mapping[str, dict[str, Any]], first: InferenceSettings, count: int
) -> dict[str, dict[str, Any]]:
    """Add the replicas, on any ports, behind the first inference service. Each has a part of the
    cores and of the memory, unless the settings say how much."""
    if count == 1:
        return dict(overrides)
    inference = dict(overrides["inference"])
    if first.engine.threads is None:
        inference["engine.threads"] = max(1, available_cores() // count)
    if first.pool.memory_mib is None:
        inference["pool.memory_mib"] = max(1, available_memory_bytes() // count >> 20)
    added = {
        f"inference-{number}": inference | _of_replica(first, f"replica-{number}")
        for number in range(2, count + 1)
    }
    others = {name: overrides[name] for name in overrides if name != "inference"}
    return {"inference": inference, **added, **others}


def _of_replica(first: InferenceSettings, folder: str) -> dict[str, Any]:
    """What a replica has for itself; folders of files to load are those of the first."""
    snapshots = first.snapshots.folder
    return {
        "listen": str(parse_address(first.listen)._replace(port=0)),
        "management_listen": _ANY_LOOPBACK_PORT,
        "data_dir": first.data_dir / folder,
        "download_folder": first.download_folder or first.data_dir / "models",
        "adapter_folders": [*first.adapter_folders, first.data_dir / "adapters"],
        **({} if snapshots is None else {"snapshots.folder": snapshots / folder}),
    }


def _choose_address(settings: ServiceWithPorts, name: str, assigned: list[Address]) -> Address:
    """Return the address of a listener with a definite port. Raises StartupError.

    Port 0 becomes a free port. A default management port that is in use becomes a free one too, so
    that a second Corral can start on the same machine.
    """
    address = parse_address(getattr(settings, name) or _ANY_LOOPBACK_PORT)
    is_default = name not in settings.model_fields_set
    if name == "management_listen" and is_default and bind_problem(address):
        address = Address(address.host, 0)
    try:
        return choose_port(address, assigned)
    except OSError as error:
        raise StartupError(f"cannot listen on {address}: {error.strerror or error}") from error
