"""How the bytes of a model are split between the machine's memory and each GPU."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from inference_svc.models.placement import ON_PROCESSOR, Placement, SplitMode


@dataclass(frozen=True, slots=True)
class DeviceBytes:
    """Bytes of the machine's memory, and of GPUs that have their own, by ggml's names."""

    host: int = 0
    devices: Mapping[str, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """All of them."""
        return self.host + sum(self.devices.values())

    def is_on(self, places: Collection[str | None]) -> bool:
        """Whether any of them are on one of these GPUs, or of the machine (None)."""
        return any(self.host if name is None else self.devices.get(name) for name in places)

    def __add__(self, other: "DeviceBytes") -> "DeviceBytes":
        names = dict.fromkeys((*self.devices, *other.devices))
        sums = {name: self.devices.get(name, 0) + other.devices.get(name, 0) for name in names}
        return DeviceBytes(self.host + other.host, sums)

    def without(self, other: "DeviceBytes") -> "DeviceBytes":
        """What is left once `other` is taken, nowhere less than nothing."""
        left = {
            name: max(size - other.devices.get(name, 0), 0) for name, size in self.devices.items()
        }
        return DeviceBytes(max(self.host - other.host, 0), left)


@dataclass(frozen=True, slots=True)
class LayerSplit:
    """How one model's bytes are divided, as llama.cpp does: whole layers, with their cells, and the
    output as one more. What it computes in is taken to go the same way."""

    placement: Placement = ON_PROCESSOR
    num_layers: int = 0

    def shares(self, free: DeviceBytes) -> dict[str, float]:
        """The share of the model on each GPU that has a part of it; the machine has the rest."""
        names = self._names(free)
        parts = self._parts(names, free)
        whole = sum(parts)
        layers, most = self.placement.gpu_layers, self.num_layers + 1
        offloaded = 1.0 if layers < 0 else min(layers, most) / most
        return {
            name: offloaded * part / whole
            for name, part in zip(names, parts, strict=True)
            if name in free.devices and offloaded * part > 0
        }

    def fitting_bytes(self, free: DeviceBytes, seen: DeviceBytes | None = None) -> int:
        """The most that the model may take of what is free, where a load would see `seen` (unset:
        the same) and divide the model by that."""
        shares = self.shares(seen or free)
        bounds = [free.devices[name] / share for name, share in shares.items()]
        rest = _rest(shares)
        if rest > 0:
            bounds.append(free.host / rest)
        return int(min(bounds))

    def divide(self, size: int, free: DeviceBytes) -> DeviceBytes:
        """The model's `size`, by where it goes with so much free."""
        shares = self.shares(free)
        devices = {name: int(size * share) for name, share in shares.items()}
        return DeviceBytes(size - sum(devices.values()), devices)

    def places(self, free: DeviceBytes) -> frozenset[str | None]:
        """Where it goes: names of GPUs, and None for the machine."""
        shares = self.shares(free)
        return frozenset({*shares, None} if _rest(shares) > 0 else shares)

    def _names(self, free: DeviceBytes) -> Sequence[str]:
        names = self.placement.devices or tuple(free.devices)
        if self.placement.split_mode is SplitMode.NONE:
            main = self.placement.main_device
            names = names[main : main + 1]
        return names

    def _parts(self, names: Sequence[str], free: DeviceBytes) -> list[float]:
        """The share of each device; by free memory unless configured."""
        split = self.placement.tensor_split
        given = [*split, *(0.0 for _ in names)][: len(names)]
        if self.placement.split_mode is SplitMode.NONE or not any(given):
            given = [float(free.devices.get(name, 0)) for name in names]
        return given if any(given) else [1.0 for _ in names]


def _rest(shares: Mapping[str, float]) -> float:
    """The machine's share, nothing where rounding alone leaves some."""
    rest = 1.0 - sum(shares.values())
    return rest if rest > 1e-9 else 0.0
