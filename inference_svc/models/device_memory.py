"""How the bytes of a model are split between the machine's memory and each GPU."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from inference_svc.models.placement import ON_PROCESSOR, Placement, SplitMode


@dataclass(frozen=True, slots=True)
class DeviceBytes:
    """Bytes of the machine's memory (`host`), and of GPUs with memory of their own by ggml name."""

    host: int = 0
    devices: Mapping[str, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """The sum over all devices."""
        return self.host + sum(self.devices.values())

    def is_on(self, places: Collection[str | None]) -> bool:
        """Whether any bytes are on one of `places`: GPU names, or None for the machine."""
        return any(self.host if name is None else self.devices.get(name) for name in places)

    def __add__(self, other: "DeviceBytes") -> "DeviceBytes":
        names = dict.fromkeys((*self.devices, *other.devices))
        sums = {name: self.devices.get(name, 0) + other.devices.get(name, 0) for name in names}
        return DeviceBytes(self.host + other.host, sums)

    def without(self, other: "DeviceBytes") -> "DeviceBytes":
        """Subtract `other`; no result is less than 0."""
        devices = {
            name: max(size - other.devices.get(name, 0), 0) for name, size in self.devices.items()
        }
        return DeviceBytes(max(self.host - other.host, 0), devices)


@dataclass(frozen=True, slots=True)
class LayerSplit:
    """Divides the bytes of one model among devices like llama.cpp: by whole layers with their KV
    cache, with the output as one more layer. Compute buffers are assumed to be divided equally."""

    placement: Placement = ON_PROCESSOR
    num_layers: int = 0

    def shares(self, free: DeviceBytes) -> dict[str, float]:
        """Return the share of the model on each GPU that gets one; the machine has the rest."""
        names = self._names(free)
        parts = self._parts(names, free)
        total = sum(parts)
        layers, num_layers = self.placement.gpu_layers, self.num_layers + 1
        offloaded = 1.0 if layers < 0 else min(layers, num_layers) / num_layers
        return {
            name: offloaded * part / total
            for name, part in zip(names, parts, strict=True)
            if name in free.devices and offloaded * part > 0
        }

    def fitting_bytes(self, free: DeviceBytes, reported: DeviceBytes | None = None) -> int:
        """Return the maximum size of the model that fits into `free`. `reported` (default: `free`)
        is the free memory at load time, from which llama.cpp computes the shares."""
        shares = self.shares(reported or free)
        bounds = [free.devices[name] / share for name, share in shares.items()]
        rest = _rest(shares)
        if rest > 0:
            bounds.append(free.host / rest)
        return int(min(bounds))

    def divide(self, size: int, free: DeviceBytes) -> DeviceBytes:
        """Divide `size` among devices with this much free memory."""
        shares = self.shares(free)
        devices = {name: int(size * share) for name, share in shares.items()}
        return DeviceBytes(size - sum(devices.values()), devices)

    def places(self, free: DeviceBytes) -> frozenset[str | None]:
        """Return the devices that get a share: GPU names, and None for the machine."""
        shares = self.shares(free)
        return frozenset({*shares, None} if _rest(shares) > 0 else shares)

    def _names(self, free: DeviceBytes) -> Sequence[str]:
        names = self.placement.devices or tuple(free.devices)
        if self.placement.split_mode is SplitMode.NONE:
            main = self.placement.main_device
            names = names[main : main + 1]
        return names

    def _parts(self, names: Sequence[str], free: DeviceBytes) -> list[float]:
        """The weight of each device: as configured, else its free memory."""
        split = self.placement.tensor_split
        parts = [*split, *(0.0 for _ in names)][: len(names)]
        if self.placement.split_mode is SplitMode.NONE or not any(parts):
            parts = [float(free.devices.get(name, 0)) for name in names]
        return parts if any(parts) else [1.0 for _ in names]


def _rest(shares: Mapping[str, float]) -> float:
    """The machine's share; 0 if it is only a rounding error."""
    rest = 1.0 - sum(shares.values())
    return rest if rest > 1e-9 else 0.0
