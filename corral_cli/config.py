"""`corral config check`: the settings in force, or every mistake."""

from pathlib import Path

import click

from corral_cli.serve import SERVICES, load
from svc_kit.lifecycle import StartupError
from svc_kit.settings.groups import settings_toml


@click.group("config")
def config() -> None:
    """Look at the settings."""


@config.command("check")
@click.option("--config", type=click.Path(path_type=Path), help="A TOML file with settings.")
@click.option("--service", "services", type=click.Choice(SERVICES), multiple=True)
def check(config: Path | None, services: tuple[str, ...]) -> None:
    """Print the settings in force with secrets hidden, or every problem; then the code is 1."""
    shown, problems = [], []
    for service in services or SERVICES:
        try:
            shown.append(settings_toml(load(service, config)))
        except StartupError as error:
            problems.append(str(error))
    if problems:
        raise StartupError("\n".join(problems))
    click.echo("\n".join(shown), nl=False)
