"""The archive of the inference service: what it has computed for stored objects, kept on its disk.

Objects are named to it with each turn (`TurnRequest.keep_for`), and go on from there after their
place in memory was taken, or the service was started anew. What is kept goes with its object.
"""

from typing import Protocol


class Archive(Protocol):
    """What is kept for stored objects."""

    async def drop(self, object_id: str) -> None:
        """Delete it, wherever it is, and keep no more of what runs; there need be nothing.

        Raises Unavailable while the service cannot be asked.
        """
