"""`corral config check`: prints the effective settings, or every problem with them."""

import json
import tomllib
from datetime import datetime
from pathlib import Path

import click

from corral_cli.output import echo, object_option
from corral_cli.serve import SERVICES, load_alone, settings_options
from corral_cli.up.plan import Plan, UpFlags
from corral_cli.up.up_lock import read_running
from svc_kit.settings.toml_text import settings_toml


@click.group("config")
def config() -> None:
    """Inspect the settings."""


@config.command("check")
@settings_options
@click.option("--service", "services", type=click.Choice(SERVICES), multiple=True)
@object_option
def check(
    config: Path | None, data_dir: Path | None, services: tuple[str, ...], as_json: bool
) -> None:
    """Print the effective settings with secrets hidden. If they have problems, print all of them
    and exit with code 1.

    Without --service all services are checked together, as `corral up` runs them.
    """
    loaded = [load_alone(service, config, data_dir) for service in services]
    if not services:
        plan = Plan.load(UpFlags(config=config, data_dir=data_dir))
        plan.check_settings(is_running=read_running(plan.inference.data_dir) is not None)
        loaded = list(plan.by_service.values())
    text = "\n".join(map(settings_toml, loaded))
    echo(_to_json(text) if as_json else text, nl=as_json)


def _to_json(toml: str) -> str:
    return json.dumps(tomllib.loads(toml), indent=2, default=datetime.isoformat)
