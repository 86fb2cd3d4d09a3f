"""Who hears what an engine is loading at this moment."""

from typing import Protocol


class LoadMarks(Protocol):
    """Hears what an engine is loading, so that it is known after the death of both processes."""

    def begin(self, digest: str) -> None:
        """It is being loaded from now on."""

    def end(self, digest: str) -> None:
        """It is no more."""

    def blame(self, digest: str) -> None:
        """The engine died while it loaded it."""


class NoMarks:
    """Forgets it all."""

    def begin(self, digest: str) -> None:
        """Nothing."""

    def end(self, digest: str) -> None:
        """Nothing."""

    def blame(self, digest: str) -> None:
        """Nothing."""
