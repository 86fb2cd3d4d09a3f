"""Private copies, own files, atomic files and locks."""

import hashlib
import os
import re
from pathlib import Path

import pytest

from svc_kit.lifecycle import StartupError
from svc_kit.local_files import PrivateFile, atomic_file, lock_folder, open_regular, own_files


def test_a_copy_is_independent_of_its_source(tmp_path: Path) -> None:
    """It can be read repeatedly by its path, and is unlinked."""
    source, folder = tmp_path / "source", tmp_path / "copies"
    source.write_bytes(b"abc" * 1_000_000)
    copy = PrivateFile.copy_of(source, folder)
    source.write_bytes(b"something else")
    read = [copy.path.read_bytes() for _ in range(2)]
    left = list(folder.iterdir())
    copy.close()
    copy.close()

    assert read == [b"abc" * 1_000_000] * 2
    assert copy.digest == hashlib.sha256(read[0]).hexdigest()
    assert left == []


def test_an_unreadable_source_leaves_no_copy(tmp_path: Path) -> None:
    """The OSError is raised."""
    with pytest.raises(FileNotFoundError):
        PrivateFile.copy_of(tmp_path / "missing", tmp_path / "copies")


def make_kinds(folder: Path) -> None:
    (folder / "a-file").write_bytes(b"x")
    (folder / "a-folder").mkdir()
    os.mkfifo(folder / "a-fifo")
    (folder / "a-link").symlink_to("a-file")
    (folder / "a-device").symlink_to("/dev/null")


def test_own_files_are_regular_and_have_the_whole_form(tmp_path: Path) -> None:
    """Links and folders are of others; without a folder there are none."""
    make_kinds(tmp_path)
    for name in ("b-file", "a-file~", "a-file\n"):
        (tmp_path / name).touch()

    assert own_files(tmp_path, re.compile("a-[a-z]+")) == [tmp_path / "a-file"]
    assert own_files(tmp_path / "missing", re.compile(".*")) == []
    assert own_files(tmp_path / "a-file", re.compile(".*")) == []


@pytest.mark.parametrize("name", ["a-folder", "a-fifo", "a-link", "a-device", "missing"])
def test_only_regular_files_are_opened(tmp_path: Path, name: str) -> None:
    """Without following a link, and without blocking."""
    make_kinds(tmp_path)
    with open_regular(tmp_path / "a-file") as file:
        assert file.read() == b"x"

    with pytest.raises(OSError, match=name):
        open_regular(tmp_path / name)


@pytest.mark.parametrize("name", ["a-folder", "a-fifo", "a-device"])
def test_an_output_that_is_no_file_is_not_replaced(tmp_path: Path, name: str) -> None:
    """Such as /dev/stdout; a link to a file stays a link."""
    make_kinds(tmp_path)
    before = (tmp_path / name).lstat()
    with pytest.raises(OSError, match="not a regular file"), atomic_file(tmp_path / name):
        pass
    with atomic_file(tmp_path / "a-link") as file:
        file.write(b"y")

    assert (tmp_path / name).lstat().st_ino == before.st_ino
    assert (tmp_path / "a-link").is_symlink()
    assert (tmp_path / "a-file").read_bytes() == b"y"


def test_a_lock_file_of_earlier_holders_is_taken_over(tmp_path: Path) -> None:
    """Its text is replaced; a second holder is refused with it."""
    old = "process 1 on höst.example, since 2026-11-23T01:02:03+00:00\n"
    (tmp_path / "up.lock").write_text(old)
    with lock_folder(tmp_path, "up.lock", holder="x", remedy="stop it"):
        text = (tmp_path / "up.lock").read_text()
        with (
            pytest.raises(StartupError, match=rf"process {os.getpid()} on"),
            lock_folder(tmp_path, "up.lock", holder="x", remedy="stop it"),
        ):
            pass

    assert text.startswith(f"process {os.getpid()} on")
    assert text.count("\n") == 1


def test_drafts_of_killed_processes_are_deleted_by_the_next_write(tmp_path: Path) -> None:
    """After an hour: another process may write the same file. Files with other names stay."""
    drafts = ["a.json.0123abcd.part", "a.json.89ef4567.part"]
    others = ["a.json.part", "a.json.0123.part", "b.json.0123abcd.part", "xa.json.0123abcd.part"]
    for name in (*drafts, *others):
        (tmp_path / name).touch()
    for name in (drafts[0], *others):
        os.utime(tmp_path / name, (0, 0))
    with atomic_file(tmp_path / "a.json") as file:
        file.write(b"1")

    assert {path.name for path in tmp_path.iterdir()} == {"a.json", drafts[1], *others}
