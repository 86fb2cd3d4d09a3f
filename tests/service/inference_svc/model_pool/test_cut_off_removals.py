"""A process is killed after each of the files that the removal of a model deletes."""

import subprocess
import sys
from pathlib import Path
from typing import Final

from inference_svc.model_pool.added_models_file import delete_unused_downloads, write_file_list
from inference_svc.models.sources import DownloadFile

NAMES: Final = ("model.gguf", "adapter.gguf")
FOLDER: Final = "0" * 32
REMOVE: Final = """
import os, sys
from pathlib import Path
from inference_svc.model_pool.added_models_file import delete_downloads

folder, left = Path(sys.argv[1]), int(sys.argv[2])

def kill(event, _):
    global left
    if event in ("os.remove", "os.rmdir"):
        if not left:
            os.kill(os.getpid(), 9)
        left -= 1

sys.addaudithook(kill)
delete_downloads(folder, sys.argv[3:])
"""


def begin_to_remove(folder: Path, num_deleted: int) -> bool:
    """Delete a download in a process that is killed before the next deletion; returns whether it
    lived to the end."""
    command = [sys.executable, "-c", REMOVE, str(folder), str(num_deleted), *NAMES]
    return not subprocess.run(command, timeout=60).returncode


def test_what_a_killed_removal_has_left_is_deleted_at_the_next_start(tmp_path: Path) -> None:
    folder = tmp_path / FOLDER
    is_complete, num_deleted = False, 0
    while not is_complete:
        write_file_list(
            folder, [DownloadFile(source=f"https://hub/{name}", name=name) for name in NAMES]
        )
        for name in (*NAMES, f"{NAMES[0]}.part", f"{NAMES[1]}.etag"):
            (folder / name).write_bytes(b"GGUF")
        is_complete = begin_to_remove(folder, num_deleted)
        delete_unused_downloads(tmp_path, ())
        assert not folder.exists(), num_deleted
        num_deleted += 1
    assert num_deleted == 7
