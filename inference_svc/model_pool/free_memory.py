"""What the machine and its GPUs can give now.

What a GPU has free is known to processes that use it, and using it takes some of it. So a process
of a moment's life is asked before a load; between two such looks what our own engines take and give
back is counted.
"""

import asyncio
from collections.abc import Callable

from inference_svc.llama import devices
from inference_svc.machine import available_memory_bytes
from inference_svc.models.device_memory import PlacedBytes


class FreeMemory:
    """`held` is what all engines have now; `ask` tells what each GPU has free, None where that
    cannot be told. Use on the event loop."""

    def __init__(
        self,
        held: Callable[[], PlacedBytes],
        ask: Callable[[], dict[str, int] | None] = devices.free_bytes_from_outside,
    ) -> None:
        self._held = held
        self._ask = ask
        self._seen: PlacedBytes | None = None
        self._held_then = PlacedBytes()

    async def look(self) -> None:
        """Ask what is free; where that cannot be told, what was known stays. A GPU that was there
        and tells nothing any more is too full for the process that asks."""
        if self._seen is not None and not self._seen.devices:
            return  # no GPU appears while we run
        before = self._held()
        found = await asyncio.to_thread(self._ask)
        if found is None:
            return
        names = found if self._seen is None else self._seen.devices
        self._seen = PlacedBytes(devices={name: found.get(name, 0) for name in names})
        # Nobody knows on which side of the answer something was taken or given back meanwhile: of
        # both numbers the smaller one never promises too much.
        self._held_then = before.without(before.without(self._held()))

    def now(self) -> PlacedBytes:
        """What can be taken without pushing others out."""
        held, seen = self._held(), self._seen or PlacedBytes()
        given_back = self._held_then.without(held)
        left = (seen + given_back).without(held.without(self._held_then))
        devices = {name: left.devices[name] for name in seen.devices}
        return PlacedBytes(available_memory_bytes(), devices)
