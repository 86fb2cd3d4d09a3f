"""What a sequence needs before it says its first token: a sampler, the grammar of its constraint,
and the output of an earlier life replayed over both.

A grammar is built on another thread. Its sequence may run meanwhile: all of its prompt but the last
token can be computed without it.
"""

from collections.abc import Iterable

from inference_svc.engine.backend import Backend, Sampler
from inference_svc.engine.guide import GuideFailed
from inference_svc.engine.origin import hidden_of
from inference_svc.engine.roster import Roster
from inference_svc.engine.saved import SavedPrefixes
from inference_svc.engine.saying import Speaker
from inference_svc.engine.sequence import Sequence
from svc_kit.errors import InvalidField, SnapshotNotFound


class Preparer:
    """Prepares the sequences of a roster; `saved` has the snapshots that they may resume from."""

    def __init__(
        self, backend: Backend, roster: Roster, speaker: Speaker, saved: SavedPrefixes
    ) -> None:
        self._backend = backend
        self._roster = roster
        self._speaker = speaker
        self._saved = saved

    def is_left(self, sequence: Sequence) -> bool:
        """Make the sampler and replay what is resumed, once; whether there is more to do.
        A constrained one is replayed when it has a slot and its grammar is built."""
        if sequence.sampler is None:
            sequence.sampler = self._backend.new_sampler(sequence.request)
            if sequence.request.snapshot_id and not self._recall(sequence, sequence.sampler):
                return False
            if sequence.request.constraint is None:
                self._speaker.replay(sequence)
            else:
                sequence.guide = self._backend.new_guide(sequence.request.constraint)
        return sequence in self._roster

    def _recall(self, sequence: Sequence, sampler: Sampler) -> bool:
        """Have a sampler know what it knew when a snapshot was taken; a sequence that the snapshot
        is not of fails."""
        try:
            sampler.recall(hidden_of(sequence, self._saved))
        except (SnapshotNotFound, InvalidField) as error:
            self._roster.fail(sequence, error)
            return False
        return True

    def begin_guided(self, running: Iterable[Sequence], patience_s: float) -> None:
        """Begin the sequences whose grammar has been built meanwhile; the first is waited for."""
        for sequence in running:
            try:
                if sequence.guide is not None and sequence.guide.wait(patience_s):
                    sequence.awaits_guide = False
                    self._speaker.replay(sequence)
            except GuideFailed as problem:
                self._roster.fail_guide(sequence, problem)
            patience_s = 0.0
