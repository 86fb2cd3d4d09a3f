"""The `corral` command: every subcommand in one group, and failures as one line."""

import platform
import sys
from importlib.metadata import version as installed_version

import click

from corral_cli.adapters import adapters
from corral_cli.batch import batch
from corral_cli.chat import chat
from corral_cli.config import config
from corral_cli.db import db
from corral_cli.jobs import jobs
from corral_cli.keys import keys
from corral_cli.models import models
from corral_cli.moving.commands import export_group, import_group, threads
from corral_cli.projects import projects
from corral_cli.serve import serve
from corral_cli.up import up
from corral_cli.usage import usage
from svc_kit.startup import StartupError


@click.group()
def cli() -> None:
    """Serve GGUF models behind the OpenAI API and gRPC."""


@cli.command("version")
def version() -> None:
    """Print the versions that a bug report needs."""
    names = ("corral", "llama-cpp-python", "grpcio", "protobuf")
    versions = [f"{name} {installed_version(name)}" for name in names]
    click.echo("\n".join([*versions, f"Python {platform.python_version()}", platform.platform()]))


for command in (
    up,
    serve,
    chat,
    batch,
    models,
    adapters,
    config,
    db,
    projects,
    keys,
    usage,
    jobs,
    export_group,
    import_group,
    threads,
):
    cli.add_command(command)


def main() -> None:
    """Run the command; what keeps it from starting is one message and exit code 1."""
    try:
        cli()
    except StartupError as error:
        click.echo(f"corral: {error}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
