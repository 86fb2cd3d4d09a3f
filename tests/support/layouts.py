"""A batch layout for tests that need certain holes filled or certain moves made."""

from collections.abc import Hashable, Sequence

from inference_svc.engine.defrag.batch_layout import BatchLayout


class FixedLayout(BatchLayout):
    """Uses the step times it was created with, whatever the steps of a small model take."""

    def observe(self, rows: Sequence[int], seconds: float, kind: Hashable = None) -> None:
        """Ignore measurements."""
