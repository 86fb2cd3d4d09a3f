"""A process that writes prefixes to a folder, and deletes them, until it is killed. Run as
`python -m tests.support.archive_writer FOLDER SEED`, it prints a line at each moment of a write.
"""

import random
import sys
from array import array
from pathlib import Path
from typing import Any, Final

from inference_svc.engine.saved_state import CellArray, CellLayout
from inference_svc.snapshots.file_format import write
from inference_svc.snapshots.snapshot import Snapshot
from inference_svc.snapshots.store import FolderLimits, SnapshotStore, new_snapshot_id
from tests.support.snapshots import make_snapshot

SAVED: Final = "saved "
CELL_BYTES, MAX_CELLS, NUM_KEPT = 200, 4000, 4
LIMITS: Final = (20 << 20, 9)
"""Bytes and files of the folder, less than the files of several writers."""


def make_prefix(number: int, num_cells: int) -> tuple[Snapshot, bytearray]:
    """One of the prefixes with this number, which all begin alike."""
    state = bytearray(random.Random(number).randbytes(MAX_CELLS * CELL_BYTES))
    del state[num_cells * CELL_BYTES :]
    tokens = array("i", [number]) * num_cells
    name, size = new_snapshot_id(), len(state)
    return make_snapshot(name, size, tokens=tokens, num_computed=num_cells), state


def tell(moment: str) -> None:
    sys.stdout.write(f"{moment}\n")
    sys.stdout.flush()


def main(folder: str, seed: str) -> None:
    rng, saved = random.Random(seed), list[str]()

    def write_and_tell(*parts: Any) -> None:
        tell("blocks are written")
        write(*parts)
        tell("the file is written")

    store = SnapshotStore(FolderLimits(Path(folder), *LIMITS), write_and_tell)
    while True:
        num_cells = rng.randrange(MAX_CELLS)
        snapshot, state = make_prefix(rng.randrange(3), num_cells)
        store.save(snapshot, state, CellLayout(num_cells, (CellArray(0, 1, CELL_BYTES),)))
        saved.append(snapshot.snapshot_id)
        tell(SAVED + saved[-1])
        store.drop(saved[:-NUM_KEPT])
        del saved[:-NUM_KEPT]
        tell("others are dropped")


if __name__ == "__main__":
    main(*sys.argv[1:])
