"""`corral doctor`: checks a machine and an installation."""

import json
from collections.abc import Iterable
from pathlib import Path

import click

from corral_cli.doctor.findings import Finding, Level
from corral_cli.doctor.machine_checks import check_machine
from corral_cli.output import echo, echo_styled
from corral_cli.serve import SERVICES, settings_options


@click.command("doctor")
@settings_options
@click.option("--service", "services", type=click.Choice(SERVICES), multiple=True)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON array of the findings.")
@click.pass_context
def doctor(
    context: click.Context,
    config: Path | None,
    data_dir: Path | None,
    services: tuple[str, ...],
    as_json: bool,
) -> None:
    """Check this machine and the installation: what is wrong, and what to do.

    Without --service all services are checked together, as `corral up` runs them.
    Exits with code 1 if there is an error; warnings alone are no error.
    """
    # Imported here because it is slow, and other commands do not need it.
    from corral_cli.doctor.installation_checks import check_installation

    findings = [*check_machine(), *check_installation(config, data_dir, services)]
    if as_json:
        echo(json.dumps([each.as_json() for each in findings], indent=2))
    else:
        echo_styled(report(findings))
    context.exit(any(finding.level is Level.ERROR for finding in findings))


def report(findings: Iterable[Finding]) -> str:
    """One line a finding, and how many are bad."""
    listed = list(findings)
    width = max(len(finding.check) for finding in listed)
    counts = [
        f"{num} {level}{'' if num == 1 else 's'}"
        for level in (Level.ERROR, Level.WARNING)
        if (num := sum(finding.level is level for finding in listed))
    ]
    summary = ", ".join(counts) or "nothing is wrong"
    return "\n".join([*(finding.as_line(width) for finding in listed), "", summary])
