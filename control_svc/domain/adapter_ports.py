"""What the use cases of adapters need from the database."""

from typing import Final

ADAPTERS_TOPIC: Final = "adapters"
"""What is announced when the registry of adapters changes, or a frontend reports."""
