"""`corral check`, `corral backup` and `corral restore`: the data of the control service."""

import asyncio
import functools
import json
import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from corral_cli.output import echo, echo_line, object_option, rewrite_line
from corral_cli.serve import load, settings_options
from svc_kit.errors import DomainError
from svc_kit.lifecycle import StartupError

if TYPE_CHECKING:
    from control_svc.backup.check import Report
    from control_svc.backup.layout import Manifest
    from control_svc.config import ControlSettings

ResultT = TypeVar("ResultT")
DAMAGED: Final = 3
"""The exit code if the installation is damaged."""


def installation_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that name an installation; the command receives its `settings`."""

    @settings_options
    @functools.wraps(command)
    def with_settings(*args: Any, config: Path | None, data_dir: Path | None, **kwargs: Any) -> Any:
        return command(*args, settings=load("control", config, data_dir), **kwargs)

    return with_settings


@click.command("check")
@click.option("--quick", is_flag=True, help="Read one byte of each file instead of all.")
@object_option
@installation_options
def check(settings: "ControlSettings", *, quick: bool, as_json: bool) -> None:
    """Check the database and the stored files, also while services run; change nothing.

    Exit with code 3 if something is damaged.
    """
    # Imported here because it is slow, and most commands need no database.
    from control_svc.backup.check import check as check_installation

    progress = Progress("checked")
    report = asyncio.run(_run(check_installation(settings, quick=quick, progress=progress)))
    echo(json.dumps(_report_object(report)) if as_json else "\n".join(_lines(report)))
    if report.problems:
        sys.exit(DAMAGED)


def _report_object(report: "Report") -> dict[str, Any]:
    return {**asdict(report), "problems": [problem._asdict() for problem in report.problems]}


def _lines(report: "Report") -> list[str]:
    lines = [f"{each.kind}: {each.subject}: {each.detail}" for each in report.problems]
    return [
        *lines,
        f"checked {report.blobs:,} files ({report.blob_bytes / 1e6:,.1f} MB),"
        f" {report.foreign_keys:,} foreign keys and {report.sealed:,} encrypted contents:"
        f" {len(report.problems):,} problems; {report.unreferenced:,} files without a row",
    ]


@click.command("backup")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option("--keep", type=click.IntRange(min=1), help="Then remove all but the newest N.")
@object_option
@installation_options
def backup(settings: "ControlSettings", *, folder: Path, keep: int | None, as_json: bool) -> None:
    """Add a backup of the database and the stored files to FOLDER, while services run.

    FOLDER is empty, or has backups of this installation, and is outside the data folder. Files that
    an earlier backup in it has are not copied again. Exit with code 3 if files were lost before.
    """
    from control_svc.backup.backup import back_up

    manifest = asyncio.run(
        _run(back_up(settings, folder, keep=keep, progress=Progress("backed up")))
    )
    _print_manifest(manifest, as_json=as_json, verb="backed up")
    if manifest.lost:
        sys.exit(DAMAGED)


@click.command("restore")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option("--backup", "backup_id", help="The id of a backup. Default: the newest in FOLDER.")
@click.option("--list", "list_ids", is_flag=True, help="Only list the backups, oldest first.")
@click.option("--verify", "verify_only", is_flag=True, help="Only read it and compare all digests.")
@object_option
@installation_options
def restore(
    settings: "ControlSettings",
    *,
    folder: Path,
    backup_id: str | None,
    list_ids: bool,
    verify_only: bool,
    as_json: bool,
) -> None:
    """Restore a backup from FOLDER where nothing is yet: an empty data folder, database and bucket.

    Services must not run. All bytes are verified.
    """
    from control_svc.backup.layout import BackupFolder
    from control_svc.backup.restore import restore as restore_backup
    from control_svc.backup.restore import verify

    if list_ids:
        backups, problems = BackupFolder(folder), list[StartupError]()
        for each in backups.ids():
            try:
                _print_manifest(backups.read(each), as_json=as_json, verb="has")
            except StartupError as error:
                problems.append(error)
        if problems:
            raise StartupError("; ".join(map(str, problems)))
    elif verify_only:
        manifest = asyncio.run(_run(verify(folder, backup_id, Progress("verified"))))
        _print_manifest(manifest, as_json=as_json, verb="verified")
    else:
        restoring = restore_backup(settings, folder, backup_id, Progress("restored"))
        _print_manifest(asyncio.run(_run(restoring)), as_json=as_json, verb="restored")


async def _run(work: Awaitable[ResultT]) -> ResultT:
    """Await work on the data. Raises StartupError."""
    try:
        return await work
    except DomainError as error:
        raise StartupError(error.message) from error
    except OSError as error:
        raise StartupError(f"{error.filename or 'the data'}: {error.strerror or error}") from error
    finally:
        if sys.stderr.isatty():
            echo(err=True)  # ends the line of the progress


def _print_manifest(manifest: "Manifest", *, as_json: bool, verb: str) -> None:
    if as_json:
        lost = [each._asdict() for each in manifest.lost]
        fields = {**asdict(manifest), "mark": manifest.mark.isoformat(), "lost": lost}
        echo(json.dumps(fields))
        return
    for each in manifest.lost:
        echo_line(f"lost before the backup: {each.object}: blob {each.key}: {each.problem}")
    echo(
        f"{verb} {manifest.backup_id} of installation {manifest.installation}:"
        f" {manifest.database} at revision {manifest.revision},"
        f" {manifest.num_blobs:,} files ({manifest.num_bytes / 1e6:,.1f} MB,"
        f" {manifest.copied_bytes / 1e6:,.1f} MB of them new), everything until"
        f" {manifest.mark.isoformat(timespec='seconds')}"
    )


class Progress:
    """Prints a count to stderr, in place, if that is a terminal."""

    def __init__(self, verb: str) -> None:
        self._verb = verb

    def __call__(self, num_blobs: int) -> None:
        """Print the number of files so far."""
        if sys.stderr.isatty():
            rewrite_line(f"{self._verb} {num_blobs:,} files")
