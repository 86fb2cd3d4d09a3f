"""Keeps the sources of an encoder-decoder model encoded while its sequences run.

llama.cpp has the output of one encode, which all decodes attend to, each sequence to its own part.
So when a sequence joins, the sources of all running sequences are encoded again; those that have
ended stay in the output until then.
"""

from collections.abc import Iterable, Mapping

from inference_svc.engine.backend import Backend, Source
from inference_svc.engine.sequence import Sequence, Work


class SourceEncoder:
    """Encodes the sources of `running` sequences, by id. Without effect for other models."""

    def __init__(self, backend: Backend, running: Mapping[int, Sequence]) -> None:
        self._backend = backend
        self._running = running
        self._is_needed = backend.limits.source_tokens is not None
        self._encoded: dict[int, int] = {}  # the ids of sequences by slot

    def prepare(self, work: Iterable[Work]) -> None:
        """Encode if the source of one of the sequences is missing. Raises `DecodeError`."""
        if not self._is_needed or all(
            self._encoded.get(row.slot) == sequence.request.sequence_id for sequence, row in work
        ):
            return
        requests = {
            sequence.slot.index: sequence.request
            for sequence in self._running.values()
            if sequence.slot is not None
        }
        self._encoded.clear()
        self._backend.encode([Source(slot, requests[slot].source) for slot in sorted(requests)])
        self._encoded.update((slot, each.sequence_id) for slot, each in requests.items())
