"""`corral check`, `corral backup` and `corral restore`: the data of the control service."""

import asyncio
import functools
import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from corral_cli.serve import load

if TYPE_CHECKING:
    from control_svc.backup.check import Report
    from control_svc.config import ControlSettings

DAMAGED: Final = 3
"""The exit code if the installation is damaged."""


def installation_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that name an installation; the command receives its `settings`."""

    @click.option(
        "--config", type=click.Path(path_type=Path), help="A TOML file with the settings."
    )
    @click.option(
        "--data-dir",
        type=click.Path(path_type=Path, file_okay=False),
        help="The data folder of `corral up`. Default: that of the settings.",
    )
    @functools.wraps(command)
    def with_settings(*args: Any, config: Path | None, data_dir: Path | None, **kwargs: Any) -> Any:
        settings: ControlSettings = load("control", config)
        if data_dir is not None:
            settings = settings.model_copy(update={"data_dir": data_dir})
        return command(*args, settings=settings, **kwargs)

    return with_settings


as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@click.command("check")
@click.option("--quick", is_flag=True, help="Read one byte of each file instead of all.")
@as_json
@installation_options
def check(settings: "ControlSettings", *, quick: bool, as_json: bool) -> None:
    """Check the database and the stored files, also while services run; change nothing.

    Exit with code 3 if something is damaged.
    """
    # Imported here because it is slow, and most commands need no database.
    from control_svc.backup.check import check as check_installation

    report = asyncio.run(check_installation(settings, quick=quick, progress=Progress("checked")))
    click.echo(json.dumps(_report_object(report)) if as_json else "\n".join(_lines(report)))
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


class Progress:
    """Prints a count to stderr, in place, if that is a terminal."""

    def __init__(self, verb: str) -> None:
        self._verb = verb

    def __call__(self, num_blobs: int) -> None:
        """Print the number of files so far."""
        if sys.stderr.isatty():
            click.echo(f"\r{self._verb} {num_blobs:,} files", err=True, nl=False)
