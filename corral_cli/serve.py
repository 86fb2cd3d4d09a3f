"""`corral serve`: one service, in this process."""

import asyncio
from pathlib import Path

import click
import uvloop

from corral_cli.lifeline import follow_lifeline
from corral_cli.services import SERVICES, load, serve_function
from svc_kit.logs import configure_logging


@click.command("serve")
@click.argument("service", type=click.Choice(SERVICES))
@click.option("--config", type=click.Path(path_type=Path), help="A TOML file with its settings.")
@click.option("--lifeline", type=int, hidden=True, help="Of `corral up`: a pipe that ends with it.")
def serve(service: str, config: Path | None, lifeline: int | None) -> None:
    """Run one service alone; its settings come from the file and the environment."""
    if lifeline is not None:
        follow_lifeline(lifeline)
    settings = load(service, config)
    configure_logging(service, level=settings.log_level)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve_function(service)(settings))
